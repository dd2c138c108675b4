"""Over two hundred rounds with different cohorts, memory stays constant and nothing is retraced."""

import gc
import os
import tracemalloc
from pathlib import Path

import chex
import jax
import pytest

from fedjax_core.engine import rounds
from fedjax_core.engine.heap import trim_heap
from tests import toy

WARM, ROUNDS, EVERY = 60, 200, 10


def resident() -> int:
    """Returns the resident bytes of this process, without what its heap holds unused: a process of many tests has much of that."""
    trim_heap()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def traces(sim) -> list[int]:
    """Returns the number of compiled versions of each program."""
    made = sim.compiled.programs
    programs = [made.run_resident_rounds, made.run_scored_round, made.score_server["test"], made.draw_cohorts]
    programs += [*made.run_offloaded_round.values(), *made.score_clients, *made.prepare_clients]
    return [program._cache_size() for program in programs]


@pytest.mark.parametrize(
    ("name", "settings"),
    [("fedavg", {"plan": (1, 2)}), ("fedhe_mixed", {}), ("scaffold", {"hold": "host", "dropout": 0.2, "data_on": "host"})],
    ids=["fedavg on two devices", "fedhe with two architectures", "scaffold on the host, as its data"],
)
def test_memory_is_flat_and_nothing_is_traced_again(name, settings):
    sim = toy.simulate(name, rounds_per_dispatch=EVERY, **settings)
    state = sim.init(0)
    cohorts = set()

    def run(rounds):
        nonlocal state
        for _ in range(0, rounds, EVERY):
            state, records = sim.run_rounds(state, EVERY)
            sim.evaluate(state)
            cohorts.update((record["train/loss"], record["cohort"]) for record in records)
        sim.close()  # prefetched examples vary

    run(WARM)
    gc.collect()
    tracemalloc.start()
    try:
        run(EVERY)
        gc.collect()
        before, seen = (resident(), len(jax.live_arrays()), tracemalloc.get_traced_memory()[0], traces(sim)), len(cohorts)
        run(ROUNDS - WARM - EVERY)
        gc.collect()
        after = resident(), len(jax.live_arrays()), tracemalloc.get_traced_memory()[0], traces(sim)
    finally:
        tracemalloc.stop()
    assert int(state.round) == ROUNDS
    assert len(cohorts) - seen > 100  # cohorts differ
    assert after[1] <= before[1], f"{after[1] - before[1]} more live arrays"
    assert after[2] - before[2] < 300_000, (
        f"{after[2] - before[2]} more bytes of Python objects"
    )  # jax's caches grow by up to 150,000
    assert after[0] - before[0] < 10_000_000, f"{after[0] - before[0]} more bytes resident"
    assert after[3] == before[3]


def test_the_round_is_traced_once(monkeypatch):
    """One trace serves single rounds and several, with evaluations between."""
    sim = toy.simulate("fedavg")
    monkeypatch.setattr(rounds, "run_resident_rounds", chex.assert_max_traces(rounds.run_resident_rounds, n=1))
    sim.use_plan(sim.spec.plan)
    state = sim.init(0)
    for count in (1, 2, 5, 1):
        state, _ = sim.run_rounds(state, count)
        sim.evaluate(state)
    assert int(state.round) == 9
    chex.clear_trace_counter()
