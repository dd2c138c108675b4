"""HetLoRA in loops over clients with adapters of their own size, which they prune; and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.algorithm import Cohort
from methods.fedit import fedit
from methods.hetlora import hetlora
from tests import naive, toy
from tests.fedjax_core.training.test_client_ranks import RANK, RANKS, after_two_rounds, cut, pad, task
from tests.methods.test_fedper import made

GAMMA, LAM = 0.6, 3.0
METHOD = functools.partial(hetlora, prune=True, gamma=GAMMA, lam=LAM)


def penalty(params, outputs, x, y, is_pruned):
    del outputs, x, y
    body = params["adapter"]["body"]
    squares = jnp.sum((body["a"] * is_pruned[None]) ** 2), jnp.sum((body["b"] * is_pruned[:, None]) ** 2)
    norms = [jnp.where(s > 0, jnp.sqrt(jnp.where(s > 0, s, 1.0)), 0.0) for s in squares]
    return LAM * norms[0] * norms[1]


def tail(params, kept):
    body = params["adapter"]["body"]
    return np.linalg.norm(body["a"][:, kept:]) * np.linalg.norm(body["b"][kept:])


@functools.cache
def oracle(rounds=2):
    """Returns (parameters, ranks of all clients)."""
    model, clients = task().model, naive.rows(toy.data())
    w, ranks = naive.arrays(model.init(naive.stream(0, naive.INIT)).params), np.full(len(clients), RANK)
    whole = naive.with_term(model, penalty)
    for r in range(rounds):
        sent, norms = [], []
        for i in naive.cohort(0, r, len(clients), 5):
            rank = min(ranks[i], RANKS[i])
            kept = max(int(np.floor(GAMMA * rank)), 1)
            own, is_pruned, key = cut(w, rank), np.arange(rank, dtype=np.float32) >= kept, naive.client_key(0, r, i)
            settings = {"epochs": 2, "batch": toy.BATCH, "lr": 0.1, "momentum": 0.5}
            end = naive.train(None, own, {}, *clients[i], key, whole=whole, given=is_pruned.astype(np.float32), **settings)
            end = naive.arrays(end.params)
            ranks[i] = kept if tail(end, kept) < tail(own, kept) else rank
            end = cut(end, ranks[i])
            norms.append(np.linalg.norm(end["adapter"]["body"]["a"] @ end["adapter"]["body"]["b"]))
            sent.append(pad(end))
        w = naive.mean(sent, norms)
    return w, ranks


def test_equals_the_loops():
    sim, state = after_two_rounds(tuple(RANKS), method=METHOD)
    w, ranks = oracle()
    chex.assert_trees_all_close(state.server.net.params, w, atol=5e-6)
    np.testing.assert_array_equal(np.minimum(state.clients[0], RANKS), np.minimum(ranks, RANKS))
    assert (ranks < np.minimum(RANK, RANKS)).any(), "some prune"
    _, records = sim.run_rounds(sim.init(0), 2)
    members = naive.cohort(0, 1, toy.CLIENTS, 5)
    assert records[1]["train/rank"] == pytest.approx(np.minimum(ranks, RANKS)[members].mean())
    sizes = 4 * (RANKS * (toy.INPUTS + 6) + 6 * 3 + 3)
    assert (sim.spec.shapes.down, sim.spec.shapes.up) == (sizes.mean(), sizes.mean())


def cohort_of(clients):
    return Cohort(np.array(clients, np.int32), np.array([len(toy.data().train_index[i]) for i in clients], np.int32))


@functools.cache
def outputs(method, clients, **arguments):
    """Returns (algorithm, server, output of each client's first round)."""
    algorithm = made(method, epochs=2, **arguments)(task())
    server = algorithm.server_init(jax.random.key(3))
    return algorithm, server, [toy.update_client(algorithm, server.net, (), i) for i in clients]


def finish(method, clients, **arguments):
    """Returns the server after one round of these clients."""
    algorithm, server, outs = outputs(method, clients, **arguments)
    cohort = cohort_of(clients)
    parts = [algorithm.collect.map(out.uplink, jax.tree.map(lambda x, c=c: x[c], cohort)) for c, out in enumerate(outs)]
    collected = algorithm.collect.finalize(jax.tree.map(lambda *x: sum(x), *parts))
    return algorithm.server_update(server, collected, cohort, jax.random.key(0))[0]


@pytest.mark.parametrize(("clients", "weights"), [((3,), "norms"), ((0, 3), "uniform"), ((0, 3), "samples")])
def test_of_one_client_or_with_equal_ranks_and_weights_it_is_fedit(clients, weights):
    after = finish(hetlora, clients, weights=weights)
    expected = finish(fedit, clients, weights="uniform" if weights == "norms" else weights)
    chex.assert_trees_all_close(after.net, expected.net, atol=1e-6)


def test_a_server_that_gets_nothing_stays():
    algorithm, server, (out,) = outputs(hetlora, (3,), weights="norms")
    nothing = jax.tree.map(np.zeros_like, algorithm.collect.map(out.uplink, jax.tree.map(lambda x: x[0], cohort_of((3,)))))
    after, _ = algorithm.server_update(server, nothing, None, None)
    chex.assert_trees_all_equal(after, server)


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        (toy.task, {}, "hetlora needs a network with an adapter; set config.adapter"),
        (task, {"gamma": 0.0}, r"gamma=0.0 must be in \(0, 1\]"),
        (task, {"weights": "size"}, "weights='size' must be one of"),
    ],
)
def test_bad_arguments(task, arguments, message):
    with pytest.raises(ValueError, match=message):
        made(hetlora, **arguments)(task())
