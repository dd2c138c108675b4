"""Ranks of an adapter by client: against clients whose factors are that small, programs and bits that stay, bytes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.algorithm import ClientSettings, Net
from fedjax_core.devices import ClientDevices, DeviceProfiles, parse_schedule
from fedjax_core.training import adapters
from fedjax_core.training.client_ranks import with_client_ranks
from methods.ditto import ditto
from methods.fedit import fedit
from tests import naive, toy
from tests.fedjax_core.engine import test_asynchronous
from tests.fedjax_core.engine.test_participation import text_of

RANK = 4
RANKS = np.arange(toy.CLIENTS, dtype=np.int32) % RANK + 1
FULL = np.full(toy.CLIENTS, RANK, np.int32)
task = functools.partial(toy.task_adapted, dropout=0.0, rank=RANK, alpha=6.0)


def simulate(ranks=None, method=fedit, *, rank=RANK, **settings):
    """Returns a simulation; `rank`: that of the network as `with_client_ranks` knows it, None: without it."""

    def build(task, **options):
        make = functools.partial(method, epochs=2, batch=toy.BATCH, **options)
        return (make if rank is None else with_client_ranks(make, rank))(task)

    if ranks is not None:
        settings["client_settings"] = ClientSettings(rank=np.array(ranks, np.int32))
    return toy.Case(build, task=task).simulate(**settings)


@functools.cache
def after_two_rounds(ranks=None, **settings):
    sim = simulate(ranks, **settings)
    return sim, jax.device_get(sim.run_rounds(sim.init(0), 2)[0])


def cut(params, rank):
    """Returns the parameters with the first columns of "a" and rows of "b", as arrays of that size."""
    body = params["adapter"]["body"]
    return params | {"adapter": {"body": {"a": body["a"][:, :rank], "b": body["b"][:rank]}}}


def pad(params):
    """Returns parameters of some rank with zeros up to the network's."""
    body = params["adapter"]["body"]
    wide = {"a": np.zeros((toy.INPUTS, RANK), np.float32), "b": np.zeros((RANK, 6), np.float32)}
    wide["a"][:, : body["a"].shape[1]], wide["b"][: len(body["b"])] = body["a"], body["b"]
    return params | {"adapter": {"body": wide}}


def oracle(rounds=2):
    """Returns FedIT's parameters: w + the mean of the clients' changes, with zeros for what they lack."""
    model, clients = task().model, naive.rows(toy.data())
    w = naive.arrays(model.init(naive.stream(0, naive.INIT)).params)
    for r in range(rounds):
        deltas = []
        for i in naive.cohort(0, r, len(clients), 5):
            own, key = cut(w, RANKS[i]), naive.client_key(0, r, i)
            end = naive.train(model, own, {}, *clients[i], key, epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)
            deltas.append(pad(naive.minus(end.params, own)))
        w = naive.plus(w, naive.mean(deltas, [1] * len(deltas)))
    return w


def test_a_client_trains_a_network_of_its_rank():
    _, state = after_two_rounds(tuple(RANKS))
    chex.assert_trees_all_close(state.server.net.params, oracle(), atol=5e-6)


def test_bytes_follow_the_rank():
    profiles = DeviceProfiles(*(np.full(toy.CLIENTS, value) for value in (np.inf, 100.0, 50.0, 0.0, np.inf, 0.0)))
    spec = simulate(RANKS, client_devices=ClientDevices(profiles)).spec
    sizes = 4 * (RANKS * (toy.INPUTS + 6) + 6 * 3 + 3)
    assert (spec.shapes.down, spec.shapes.up) == (sizes.mean(), sizes.mean())
    np.testing.assert_allclose(spec.client_seconds, sizes / 100 + sizes / 50)


def test_the_networks_rank_for_all_changes_no_bit():
    plain, expected = after_two_rounds(rank=None)
    assert text_of(simulate()) == text_of(plain)
    chex.assert_trees_all_equal(after_two_rounds(tuple(FULL))[1], expected)


def test_plans_agree():
    chex.assert_trees_all_close(
        after_two_rounds(tuple(RANKS), plan=(5, 1))[1].server, after_two_rounds(tuple(RANKS))[1].server, atol=1e-5
    )


def test_a_stale_client_changes_nothing_in_what_it_lacks():
    """FedAsync moves towards the client's model, which has zeros there as the server had at its download."""
    ranks, old = np.where(np.arange(toy.CLIENTS) % 2, 1, RANK), 0
    sim = simulate(ranks, schedule=parse_schedule("fedasync"), client_devices=test_asynchronous.devices())
    state = sim.init(test_asynchronous.SEED)
    lacked = lambda net: [*(a[:, 1:] for a in _factors(net, "a")), *(b[1:] for b in _factors(net, "b"))]
    for version, ((client,), (download,), *_) in enumerate(test_asynchronous.plain_queue(10, 1)):
        before = lacked(state.server.inner.net)
        state, _ = sim.run_rounds(state, 1)
        if ranks[client] == 1:
            old += download < version
            chex.assert_trees_all_equal(lacked(state.server.inner.net), before)
    assert old >= 2


def test_a_personal_model_has_the_clients_rank_and_the_global_one_all():
    sim, state = after_two_rounds(tuple(RANKS), method=ditto)
    view = sim.client_view(sim.compiled.put(state), 1)
    sent, client = view.holds["personal"]
    for net in (sent, client):
        for a, b in zip(_factors(net, "a"), _factors(net, "b"), strict=True):
            assert not a[:, RANKS[1] :].any()
            assert not b[RANKS[1] :].any()
            assert a[:, : RANKS[1]].all()
    assert all(a.all() for a in _factors(view.holds["global"][0], "a"))


def _factors(tree, name):
    return [np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree) if path[-1] == jax.tree_util.DictKey(name)]


def test_stacked_factors_are_truncated_and_counted():
    adapter = {"layers": {"query": {"a": np.ones((2, 5, 4), np.float16), "b": np.ones((2, 4, 3), np.float16)}}}
    tree = (Net({"adapter": adapter, "head": {"a": np.ones((3, 4), np.float32)}}),)
    (net,) = adapters.truncate_adapters(tree, jnp.int32(1))
    assert [int(leaf.sum()) for leaf in jax.tree.leaves(net)] == [2 * 5, 2 * 3, 12]
    np.testing.assert_array_equal(adapters.count_bytes(tree, np.array([1, 4])), [2 * 2 * 8 + 48, 2 * 2 * 32 + 48])
    assert adapters.find_ranks(tree) == {4}


def test_networks_of_another_rank():
    with pytest.raises(
        ValueError, match=r"receive or keep adapters of the network.s rank, 5; those of fedit have adapters of rank 4"
    ):
        simulate(RANKS, rank=RANK + 1)
