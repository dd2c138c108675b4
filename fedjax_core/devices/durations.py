"""The seconds of a client's round."""

import numpy as np

from fedjax_core.devices.profiles import DeviceProfiles


def client_seconds(profiles: DeviceProfiles, examples: np.ndarray, down: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Returns [N] seconds from the server's broadcast to the arrival of each client's uplink.

    They are latency + down / bandwidth down + examples / (examples per second) + up / bandwidth up.

    Args:
      profiles: of the clients.
      examples: [N] that a client computes on in a round, in examples of plain training.
      down, up: [N] bytes that it receives and sends.

    >>> one = DeviceProfiles(*(np.array([x]) for x in (100.0, 1e6, 5e5, 0.25, np.inf, 0.0)))
    >>> float(client_seconds(one, np.array([200.0]), np.array([1e6]), np.array([1e6]))[0])
    5.25
    """
    return profiles.latency + down / profiles.down + examples / profiles.examples_per_second + up / profiles.up


def count_awaited(wait_for: int | float | None, cohort: int) -> int | None:
    """Returns how many clients of a cohort the server waits for; None: all that come back.

    Args:
      wait_for: a number, or a fraction of the cohort, rounded, at least one.
      cohort: C, of which clients are sampled.

    Raises:
      ValueError: it is more than the cohort.

    >>> count_awaited(0.75, 10), count_awaited(3, 10), count_awaited(None, 10)
    (8, 3, None)
    """
    if wait_for is None:
        return None
    if 0 < wait_for < 1:
        return max(1, round(wait_for * cohort))
    if wait_for > cohort:
        raise ValueError(f"devices.wait_for={wait_for} must be at most the {cohort} clients of a cohort, or a fraction in (0, 1)")
    return int(wait_for)
