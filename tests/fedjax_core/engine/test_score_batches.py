"""A network is scored on the rows that there are, and on few others."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from fedjax_core import nn
from fedjax_core.algorithm import Examples
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import client_loop, evaluation
from fedjax_core.engine.score_batches import COSTS, BatchCost, choose_batch
from fedjax_core.engine.simulator import Evaluation, Simulator, build_spec, one_group
from fedjax_core.task import make_task
from methods.local import local
from tests import toy
from tests.fedjax_core.engine.tallied import SGD

SIZES = [3, 9, 120, 14, 7, 31, 64, 2, 18, 45, 5, 90]


def divided(sizes):
    """A client for each size, with as many test rows and validation rows."""
    rng, rows = np.random.default_rng(0), sum(sizes)
    examples = Examples(rng.standard_normal((rows, toy.INPUTS), np.float32), rng.integers(0, toy.CLASSES, rows).astype(np.int32))
    own = np.split(np.arange(rows), np.cumsum(sizes)[:-1])
    dataset = sources.Dataset("made", examples, examples, tuple(f"class {i}" for i in range(toy.CLASSES)))
    return dataclasses.replace(federated_data.from_index(dataset, [one[:2] for one in own], own), validation_index=own)


def simulate(sizes, build=None, plan=client_loop.Plan(1, 1), **evaluation):  # noqa: B008
    of = divided(sizes)
    task = make_task(toy.model(), classes=toy.CLASSES, population=of.clients, shape=(toy.INPUTS,))
    build = functools.partial(local, optimizer=SGD) if build is None else build
    return Simulator(build_spec(one_group(build, task, of.clients), of, plan=plan, evaluation=Evaluation(**evaluation)))


@pytest.mark.parametrize(
    ("sizes", "parts", "wanted"),
    [
        ([50, 50, 50], 1, 50),  # no padding, and one batch each
        ([100] * 9, 1, 50),  # two batches of 50 rather than of 64
        ([], 1, 1),
        ([1], 1, 1),
        ([640], 8, 40),  # each of 8 devices has two batches
    ],
)
def test_the_batch_is_the_one_that_costs_least(sizes, parts, wanted):
    assert choose_batch(np.array(sizes, int), BatchCost(max_batch=64, overhead=4), parts) == wanted


def test_a_simulation_of_a_convolutional_network_takes_small_batches():
    rng = np.random.default_rng(0)
    examples = Examples(rng.standard_normal((200, 8, 8, 1), np.float32), rng.integers(0, toy.CLASSES, 200).astype(np.int32))
    data = federated_data.from_index(sources.Dataset("made", examples, examples, ("a", "b", "c")), *[[np.arange(100)] * 2] * 2)
    own = {}
    for network in ("cnn", "mlp"):
        task = make_task(nn.build(network, toy.CLASSES, (8, 8, 1)), classes=toy.CLASSES, population=2, shape=(8, 8, 1))
        groups = one_group(functools.partial(local, optimizer=SGD), task, 2)
        own[network] = Simulator(build_spec(groups, data, plan=client_loop.Plan(1, 1))).spec.batches.own
    assert own["cnn"] <= 16 < own["mlp"] == 50


def test_chosen_batches_cost_little_more_than_the_rows():
    rng = np.random.default_rng(0)
    for mean in (8, 40, 150, 600):
        sizes = 1 + rng.exponential(mean, 300).astype(int)
        b = choose_batch(sizes, COSTS["cpu"])
        assert (-(-sizes // b) * b).sum() <= (1.3 if mean > 8 else 1.5) * sizes.sum()


def test_a_network_is_run_on_few_rows_beside_those_that_there_are():
    """A fixed size of 256 would pad them to 120 each."""
    passed = []

    def counting(task):
        algorithm = local(task, optimizer=SGD)

        def predict(sent, client, x):
            jax.debug.callback(lambda x: passed.append(len(x)), x)
            return algorithm.predict["personal"](sent, client, x)

        return algorithm._replace(predict={"personal": predict})

    sim = simulate(SIZES, counting, scopes=("own",))
    state = sim.init(0)
    scores = sim.client_scores(state)
    jax.effects_barrier()
    for rows in ("own", "validation"):
        np.testing.assert_array_equal(scores[rows]["personal"]["accuracy"][1], SIZES)
    assert 2 * sum(SIZES) <= sum(passed) <= 1.3 * 2 * sum(SIZES)


def test_scores_do_not_depend_on_the_batch_and_a_given_one_is_kept():
    found = []
    for batch in (None, 7):
        sim = simulate(SIZES, scopes=("own", "all"), batch=batch)
        assert batch is None or set(sim.spec.batches) == {batch}
        found.append(sim.evaluate(sim.init(0)).metrics)
        assert set(found[-1]) == set(found[0])
    for other in found[1:]:
        for name, value in other.items():
            assert value == pytest.approx(found[0][name], rel=1e-5), name


def test_devices_have_equally_many_rows_to_score():
    """By ids the first of two would have 184 rows, the other 224."""
    sim = simulate(SIZES, plan=client_loop.Plan(1, 2), scopes=("own",))
    (block,) = evaluation.client_blocks(sim.compiled, 0)
    loads = np.array(SIZES)[block].reshape(2, -1).sum(1)
    assert sorted(block.tolist()) == list(range(len(SIZES)))
    assert loads.max() / loads.mean() < 1.02
    scores = sim.client_scores(sim.init(0))["own"]["personal"]["accuracy"]
    np.testing.assert_array_equal(scores[1], SIZES)  # in the order of the ids


def test_an_evaluation_in_pieces_is_the_same_to_the_bit(monkeypatch):
    """Whatever pieces it is cut into; somebody hears of each and may end it."""
    devices = 2
    sim, told = simulate(SIZES, plan=client_loop.Plan(1, devices), scopes=("global", "own", "all")), []
    state = sim.init(0)
    whole = [sim.evaluate(state).metrics for _ in range(2)][-1]
    monkeypatch.setattr(evaluation, "INTERVAL_SECONDS", 0.0)
    pieces, _ = sim.evaluate(state, lambda *piece: told.append(piece))
    assert pieces == whole
    assert told == [("clients", done, 12) for done in range(devices, 13, devices)]

    def stop(what, done, of):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sim.evaluate(state, stop)
    assert sim.evaluate(state).metrics == whole
    assert all(program._cache_size() == 1 for program in sim.compiled.programs.score_clients)
