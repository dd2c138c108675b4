"""The seconds of a client's round."""

import numpy as np
import pytest

from fedjax_core.devices import DeviceProfiles, client_seconds
from fedjax_core.devices.durations import count_awaited

ONES = np.ones(2)
PROFILES = DeviceProfiles(np.array([100.0, 50.0]), np.array([1e6, np.inf]), np.array([2e5, np.inf]), 0.5 * ONES, ONES, 0 * ONES)


def test_seconds_by_hand():
    seconds = client_seconds(PROFILES, np.array([200.0, 200.0]), np.array([1e6, 1e6]), np.array([4e5, 4e5]))
    np.testing.assert_allclose(seconds, [0.5 + 1 + 2 + 2, 0.5 + 4])  # the second has no bandwidth to wait for


def test_twice_the_bytes_take_twice_the_time():
    once, twice = (client_seconds(PROFILES, 0 * ONES, b * ONES, b * ONES) - PROFILES.latency for b in (1e5, 2e5))
    np.testing.assert_allclose(twice, 2 * once)


@pytest.mark.parametrize(("wait_for", "awaited"), [(None, None), (3, 3), (10, 10), (0.75, 8), (0.01, 1)])
def test_how_many_the_server_waits_for(wait_for, awaited):
    assert count_awaited(wait_for, 10) == awaited


def test_more_than_a_cohort():
    with pytest.raises(ValueError, match=r"devices.wait_for=11 must be at most the 10 clients of a cohort"):
        count_awaited(11, 10)
