"""A cohort buffer holds the examples of any round's clients, and not many more."""

import types
from typing import Any

import numpy as np
import pytest

from fedjax_core.engine import client_loop
from fedjax_core.engine.client_sampling import FixedSampler, PoissonSampler
from fedjax_core.engine.data_feed import cohort_buffer
from fedjax_core.engine.simulation_spec import Group

DRAWN = 100


def cohorts(sizes, cohort, rate):
    """Rows of the clients of random rounds, largest first: one [C] each."""
    rng = np.random.default_rng(0)
    for _ in range(DRAWN):
        ids = rng.choice(len(sizes), cohort, replace=False) if rate is None else np.flatnonzero(rng.random(len(sizes)) < rate)
        yield np.sort(sizes[ids[:cohort]])[::-1]


@pytest.mark.parametrize("rate", [None, 0.02])
@pytest.mark.parametrize("kind", ["alike", "long tail", "one has most"])
def test_no_cohort_has_more_rows_and_the_room_is_no_multiple_of_them(kind, rate):
    rng, n, cohort = np.random.default_rng(1), 5000, 100
    sizes = {
        "alike": np.full(n, 30),
        "long tail": np.minimum(1 + rng.pareto(1.5, n) * 20, 10_000).astype(int),
        "one has most": np.where(np.arange(n) == 7, 10_000, 10),
    }[kind]
    sampler = FixedSampler(cohort, n) if rate is None else PoissonSampler(round(rate * n), n)
    cohort = sampler.slots
    bound, found = cohort_buffer.SizeBound(sizes, sampler), list(cohorts(sizes, cohort, rate))
    totals, largest = [of.sum() for of in found], [of[:10].sum() for of in found]
    assert max(totals) <= bound.total() <= np.sort(sizes)[-cohort:].sum()
    assert max(largest) <= bound.largest(10) <= bound.total()
    if kind == "alike" and rate is None:
        assert bound.total() == cohort * 30
    if kind == "long tail":
        assert bound.total() < np.sort(sizes)[-cohort:].sum() / 2
    if kind == "one has most":
        assert bound.total() < 10_000 + 2 * cohort * 10


def test_each_of_several_devices_has_room_for_its_part():
    rng, cohort = np.random.default_rng(2), 96
    sizes = np.minimum(1 + rng.pareto(1.5, 4000) * 20, 5000).astype(int)
    for chunk in (1, 4, 12):
        plan = client_loop.Plan(chunk, 8)
        nothing: Any = None
        groups = [Group("all", nothing, nothing, np.arange(4000))]
        spec: Any = types.SimpleNamespace(
            plan=plan, sampler=FixedSampler(cohort, 4000), groups=groups, plan_of=lambda g, plan=plan: plan
        )
        room, bound = (
            cohort_buffer.round_capacity(spec, sizes, is_dealt=True),
            cohort_buffer.SizeBound(sizes, FixedSampler(cohort, 4000)),
        )
        assert room <= cohort_buffer.round_capacity(spec, sizes, is_dealt=False) == 1 + bound.largest(12)
        for of in cohorts(sizes, cohort, None):
            parts = of[client_loop.arrange_on_host(of, plan)].reshape(8, -1).sum(1)
            assert 1 + parts.max() <= room
        assert room < bound.total() if chunk > 1 else bound.total() / 2
