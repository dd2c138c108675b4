"""Lanes give what their runs give alone: the same draws, numbers to rounding, and nothing of one reaches another."""

from typing import Any

import jax
import numpy as np
import pytest

from fedjax_core.engine import vmapped_runs as module
from fedjax_core.engine.simulator import Diverged
from fedjax_core.engine.vmapped_runs import Lanes, Wanted, reason
from tests import toy

SEEDS = (0, 1, 2)


def three(sim: Any) -> tuple[Lanes, list[Any]]:
    lanes = Lanes(sim, len(SEEDS), numbered=False)
    return lanes, [lane.init(seed) for lane, seed in zip(lanes.each, SEEDS, strict=True)]


def wanted(lanes: Lanes, states: list[Any], numbers: tuple[int, ...], scored: bool = False) -> list[Wanted]:
    return [Wanted(*one, scored) for one in zip(lanes.each, states, numbers, strict=True)]


def same(found: Any, alone: Any) -> None:
    (state, records), (state_alone, records_alone) = jax.device_get((found, alone))
    assert state.round == state_alone.round
    np.testing.assert_array_equal(state.key, state_alone.key)
    assert [one["train/examples"] for one in records] == [one["train/examples"] for one in records_alone]  # the same cohorts
    for one, other in zip(records, records_alone, strict=True):
        assert one.keys() == other.keys()
        np.testing.assert_allclose(list(one.values()), list(other.values()), atol=1e-5, rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), state, state_alone)


@pytest.mark.parametrize(("name", "scored"), [("scaffold", False), ("fedper", True)])
def test_lanes_are_their_runs_alone(name, scored):
    """Of which the first wants fewer rounds, and the others may score their clients after training."""
    sim, *_ = toy.CASES[name].reference
    alone = [sim.rounds(sim.init(seed), 3, scored) for seed in SEEDS]
    lanes, states = three(sim)
    some = wanted(lanes, states, (2, 3, 3), scored)
    some[0] = some[0]._replace(scored=False)
    first, *others = lanes.rounds(some)
    for found, one in zip(others, alone[1:], strict=True):
        same(found, one)
    assert not isinstance(first, Exception)
    assert jax.device_get(first[0].round) == 2
    (last,) = lanes.rounds([Wanted(lanes.each[0], first[0], 1, scored)])  # alone, as it is the only one left
    assert not isinstance(last, Exception)
    same((last[0], first[1] + last[1]), alone[0])


def test_a_lane_that_diverges_ends_alone():
    sim, *_ = toy.CASES["fedavg"].reference
    lanes, states = three(sim)
    fine = sim.rounds(sim.init(0), 2)
    broken = jax.tree.map(lambda x: x * np.inf if x.dtype == np.float32 else x, states[1].server)
    states[1] = states[1]._replace(server=lanes.each[1].compiled.put(broken))
    with pytest.raises(Diverged) as alone:
        sim.rounds(jax.tree.map(np.copy, states[1]), 2)
    first, second, third = lanes.rounds(wanted(lanes, states, (2, 2, 2)))
    assert isinstance(second, Diverged)
    assert str(second) == str(alone.value)
    same(first, fine)
    assert not isinstance(third, Exception)
    assert jax.device_get(third[0].round) == 2


def test_where_so_many_do_not_fit_fewer_train_at_once(monkeypatch, caplog):
    sim, *_ = toy.CASES["fedavg"].reference
    lanes, states = three(sim)
    tried = []

    def too_large(compiled, program, arguments):
        tried.append(len(arguments[2]))
        return "it needs 2.0 GiB of 1.0 GiB" if tried[-1] > 2 else None

    monkeypatch.setattr(module.dispatch, "out_of_memory_reason", too_large)
    found = lanes.rounds(wanted(lanes, states, (2, 2, 2)))
    assert tried == [3, 2]
    assert "3 lanes at once do not fit (it needs 2.0 GiB of 1.0 GiB); trying 2" in caplog.text
    for seed, one in zip(SEEDS, found, strict=True):
        same(one, sim.rounds(sim.init(seed), 2))


def test_a_lane_with_another_plan_goes_alone(monkeypatch):
    lanes, states = three(toy.CASES["fedavg"].reference[0])
    lanes.each[1].use_plan(lanes.each[1].spec.plan._replace(chunk=2))
    monkeypatch.setattr(lanes, "_at_once", lambda some: {id(one.simulation): "together" for one in some})
    monkeypatch.setattr(lanes.each[1], "rounds", lambda state, n, scored: "alone")
    assert lanes._together(wanted(lanes, states, (2, 2, 2))) == ["together", "alone", "together"]
    assert lanes.each[0].spec.plan.chunk == 1


def test_what_fails_alone_ends_alone(monkeypatch, caplog):
    """A lane that has a plan of its own; a program that has fitted before is not tried with fewer, for its states are gone."""
    lanes, states = three(toy.CASES["fedavg"].reference[0])
    lanes.each[1].use_plan(lanes.each[1].spec.plan._replace(chunk=2))
    error = MemoryError("no room for it alone")

    def fails(*asked):
        raise error

    monkeypatch.setattr(lanes, "_at_once", lambda some: {id(one.simulation): (one.state, [{}] * one.n) for one in some})
    monkeypatch.setattr(lanes.each[1], "rounds", fails)
    first, second, third = lanes.rounds(wanted(lanes, states, (1, 2, 2)))
    assert second is error
    assert not isinstance(first, Exception)
    assert not isinstance(third, Exception)
    assert [len(records) for _, records in (first, third)] == [1, 2]
    monkeypatch.setattr(lanes, "_at_once", fails)
    lanes._fits.add((3, False))
    with pytest.raises(MemoryError, match="no room"):
        lanes.rounds(wanted(lanes, states, (2, 0, 2)))
    assert not caplog.text


def test_lanes_have_their_data_in_common_when_they_are_needed():
    sim = toy.CASES["fedavg"].simulate()
    lanes = Lanes(sim, 2, numbered=True)
    lanes.traced()
    assert all(not one.compiled.feed.is_on_device for one in (sim, *lanes.each))
    first, second = (one.compiled.device_arrays for one in lanes.each)
    assert (
        jax.tree.leaves(first.train)[0] is jax.tree.leaves(second.train)[0] is jax.tree.leaves(sim.compiled.device_arrays.train)[0]
    )
    assert (int(first.lane), int(second.lane)) == (0, 1)
    lanes.release()
    assert all(not one.compiled.feed.is_on_device for one in (sim, *lanes.each))


def test_what_has_no_lanes_says_why(monkeypatch):
    assert reason(toy.CASES["fedavg"].reference[0]) == ""
    assert "plan.hold='disk'" in reason(toy.CASES["fedavg"].elsewhere[0])
    streamed = toy.CASES["fedavg"].simulate(data_on="host")
    assert reason(streamed) == "rows of data are on the host"
    monkeypatch.setattr(module.jax, "process_count", lambda: 2)
    assert reason(streamed) == "there are 2 processes"
