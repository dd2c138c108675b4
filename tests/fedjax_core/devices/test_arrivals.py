"""The order of arrivals against a plain loop over events, and the ring against a list of all versions."""

import itertools

import numpy as np
import pytest

from fedjax_core.devices import arrivals
from tests import naive

N = 12


def cohorts(seed: int, size: int):
    """Cohorts without end; some have empty slots."""
    rng = np.random.default_rng(seed)
    while True:
        ids = rng.permutation(N)[:size]
        yield np.where(rng.random(size) < 0.1, N, ids).astype(np.int32)


def durations(kind: str) -> np.ndarray:
    rng = np.random.default_rng(5)
    return {
        "equal": np.full(N, 2.0),
        "spread": rng.lognormal(0, 1, N),
        "ties": rng.integers(1, 4, N).astype(float),
        "alike": np.random.default_rng(5).integers(4, 8, N) * 1.0,  # some rounds have two arrivals of each other place
        "instant": np.where(np.arange(N) % 4 == 0, 0.0, 1.5),
    }[kind]


@pytest.mark.parametrize("kind", ["equal", "spread", "ties", "alike", "instant"])
@pytest.mark.parametrize(("places", "buffer"), [(1, 1), (5, 1), (5, 3), (5, 5), (N, 4), (N, N)])
@pytest.mark.parametrize(("most", "server"), [(None, 0.0), (2, 0.0), (0, 0.3), (None, 0.7)])
def test_order_and_ring(kind, places, buffer, most, server):
    seconds, steps = durations(kind), 40
    stream = (int(i) for ids in cohorts(1, 6) for i in ids if i < N)
    expected = naive.arrivals(seconds, stream, places, buffer, steps, most, server)
    queue = arrivals.order_arrivals(seconds, cohorts(1, 6), places, buffer, most, server)
    ring: list = [None] * arrivals.bound_ring(seconds, places, buffer, most, server)
    ring[0] = 0
    for version, (step, (clients, downloads, time, dropped)) in enumerate(
        zip(itertools.islice(queue, steps), expected, strict=True)
    ):
        assert step.ids.tolist() == clients
        assert (version - step.staleness).tolist() == downloads == [ring[slot] for slot in step.slots]
        assert (step.seconds, step.dropped) == (time, dropped)
        assert len(set(clients)) == buffer
        assert most is None or step.staleness.max() <= most
        ring[step.target] = version + 1


def test_equal_durations_and_a_buffer_of_all_places_are_synchronous_rounds():
    queue = arrivals.order_arrivals(np.full(N, 3.0), cohorts(2, 5), 5, 5, server_seconds=1.0)
    candidates = [int(i) for ids in itertools.islice(cohorts(2, 5), 200) for i in ids if i < N]
    for number, step in enumerate(itertools.islice(queue, 10)):
        block = list(dict.fromkeys(candidates))[:5]  # nobody is at a place when all are free
        assert step.ids.tolist() == block
        last = max(candidates.index(i) for i in block)
        candidates = candidates[last + 1 :]
        assert not step.staleness.any()
        assert (step.target, step.seconds) == (0, 4.0 * (number + 1))


def test_durations_of_one_order_change_the_clock_alone():
    seconds = durations("spread")
    one, two = (arrivals.order_arrivals(factor * seconds, cohorts(3, 6), 5, 2) for factor in (1.0, 4.0))
    for a, b in zip(itertools.islice(one, 30), itertools.islice(two, 30), strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)
        np.testing.assert_array_equal(a.staleness, b.staleness)
        assert b.seconds == 4 * a.seconds


def test_steps_are_read_in_any_order(monkeypatch):
    monkeypatch.setattr(arrivals, "KEPT", 8)
    begin = lambda: arrivals.order_arrivals(durations("ties"), cohorts(4, 6), 5, 2)
    whole, order = list(itertools.islice(begin(), 40)), arrivals.ArrivalOrder(begin)
    for first, number in ((0, 3), (2, 4), (30, 5), (29, 3), (4, 6), (0, 1)):
        for step, expected in zip(order.read(first, number), whole[first : first + number], strict=True):
            np.testing.assert_array_equal(step.ids, expected.ids)
            assert step[3:] == expected[3:]
