"""Seeds in one program give what their runs give alone: the same draws, numbers to rounding, and nothing of one reaches another."""

from typing import Any

import jax
import numpy as np
import pytest

from fedjax_core.engine import dispatch
from fedjax_core.engine import vmapped_runs as module
from fedjax_core.engine.simulator import Diverged
from fedjax_core.engine.vmapped_runs import VmappedSeeds, find_vmap_obstacle
from tests import toy

SEEDS = (0, 1, 2)


def three(sim: Any) -> tuple[VmappedSeeds, list[Any]]:
    vmapped = VmappedSeeds(sim, len(SEEDS))
    return vmapped, [(replica, replica.init(seed)) for seed, replica in zip(SEEDS, vmapped.replicas, strict=True)]


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
def test_seeds_are_their_runs_alone(name, scored):
    """Two rounds, of which the last may score its clients after training; then a third, of which one seed has no partner."""
    sim, *_ = toy.CASES[name].reference_run
    alone = [sim.run_rounds(sim.init(seed), 3, scored) for seed in SEEDS]
    vmapped, seeds = three(sim)
    first, *others = seeds
    plain = vmapped.advance_seeds(seeds, 2)
    for result in plain:
        assert not isinstance(result, Exception)
    (state, records), *rest = plain
    (last,) = vmapped.advance_seeds([(first[0], state)], 1, scored)  # alone, as it is the only one left
    results = vmapped.advance_seeds([(one[0], result[0]) for one, result in zip(others, rest, strict=True)], 1, scored)
    for before, after, expected in zip([records, *(r[1] for r in rest)], [last, *results], alone, strict=True):
        assert not isinstance(after, Exception)
        same((after[0], before + after[1]), expected)


def test_rounds_are_dispatched_as_those_of_a_run_alone(monkeypatch):
    """At most `rounds_per_dispatch` at once; a scored round has a dispatch of its own."""
    assert module._dispatches(5, False, 2) == [(2, False), (2, False), (1, False)]
    assert module._dispatches(5, True, 2) == [(2, False), (2, False), (1, True)]
    assert module._dispatches(1, True, 10) == [(1, True)]


def test_a_seed_that_diverges_ends_alone():
    sim, *_ = toy.CASES["fedavg"].reference_run
    vmapped, seeds = three(sim)
    fine = sim.run_rounds(sim.init(0), 2)
    replica, state = seeds[1]
    broken = jax.tree.map(lambda x: x * np.inf if x.dtype == np.float32 else x, state.server)
    seeds[1] = replica, state._replace(server=replica.compiled.put(broken))
    with pytest.raises(Diverged) as alone:
        sim.run_rounds(jax.tree.map(np.copy, seeds[1][1]), 2)
    first, second, third = vmapped.advance_seeds(seeds, 2)
    assert isinstance(second, Diverged)
    assert str(second) == str(alone.value)
    same(first, fine)
    assert not isinstance(third, Exception)
    assert jax.device_get(third[0].round) == 2


def test_where_so_many_do_not_fit_fewer_train_at_once(monkeypatch, caplog):
    sim, *_ = toy.CASES["fedavg"].reference_run
    vmapped, seeds = three(sim)
    tried = []

    def find_excess(compiled, program, arguments):
        tried.append(len(arguments[1]))
        return "it needs 2.0 GiB of 1.0 GiB" if tried[-1] > 2 else None

    monkeypatch.setattr(dispatch, "out_of_memory_reason", find_excess)
    results = vmapped.advance_seeds(seeds, 2)
    assert tried == [3, 2]
    assert "3 seeds at once do not fit (it needs 2.0 GiB of 1.0 GiB); trying 2" in caplog.text
    for seed, result in zip(SEEDS, results, strict=True):
        same(result, sim.run_rounds(sim.init(seed), 2))


def test_a_seed_with_another_plan_goes_alone(monkeypatch):
    vmapped, seeds = three(toy.CASES["fedavg"].reference_run[0])
    vmapped.replicas[1].use_plan(vmapped.replicas[1].spec.plan._replace(chunk=2))
    monkeypatch.setattr(vmapped, "_run_batch", lambda batch, n, scored: ["together"] * len(batch))
    monkeypatch.setattr(vmapped.replicas[1], "run_rounds", lambda state, n, scored: "alone")
    assert vmapped._dispatch(seeds, 2, False) == ["together", "alone", "together"]
    assert vmapped.replicas[0].spec.plan.chunk == 1


def test_what_fails_alone_ends_alone(monkeypatch, caplog):
    """A seed that has a plan of its own; a program that has fitted before is not tried with fewer, for its states are gone."""
    vmapped, seeds = three(toy.CASES["fedavg"].reference_run[0])
    vmapped.replicas[1].use_plan(vmapped.replicas[1].spec.plan._replace(chunk=2))
    error = MemoryError("no room for it alone")

    def fails(*asked):
        raise error

    monkeypatch.setattr(vmapped, "_run_batch", lambda batch, n, scored: [(state, [{}] * n) for _, state in batch])
    monkeypatch.setattr(vmapped.replicas[1], "run_rounds", fails)
    first, second, third = vmapped.advance_seeds(seeds, 2)
    assert second is error
    assert not isinstance(first, Exception)
    assert not isinstance(third, Exception)
    assert [len(records) for _, records in (first, third)] == [2, 2]
    monkeypatch.setattr(vmapped, "_run_batch", fails)
    vmapped._fits.add((3, False))
    with pytest.raises(MemoryError, match="no room"):
        vmapped.advance_seeds([seeds[0], seeds[2]], 2)
    assert not caplog.text


def test_seeds_share_their_data_when_they_are_needed():
    sim = toy.CASES["fedavg"].simulate()
    vmapped = VmappedSeeds(sim, 2)
    vmapped.trace()
    assert all(not one.compiled.feed.is_on_device for one in (sim, *vmapped.replicas))
    first, second = (one.compiled.device_arrays for one in vmapped.replicas)
    assert (
        jax.tree.leaves(first.train)[0] is jax.tree.leaves(second.train)[0] is jax.tree.leaves(sim.compiled.device_arrays.train)[0]
    )
    vmapped.release()
    assert all(not one.compiled.feed.is_on_device for one in (sim, *vmapped.replicas))


def test_what_cannot_share_a_program_says_why(monkeypatch):
    assert find_vmap_obstacle(toy.CASES["fedavg"].reference_run[0]) == ""
    assert "plan.hold='disk'" in find_vmap_obstacle(toy.CASES["fedavg"].offloaded_run[0])
    streamed = toy.CASES["fedavg"].simulate(data_on="host")
    assert find_vmap_obstacle(streamed) == "the data are on the host"
    monkeypatch.setattr(module.jax, "process_count", lambda: 2)
    assert find_vmap_obstacle(streamed) == "there are 2 processes"
