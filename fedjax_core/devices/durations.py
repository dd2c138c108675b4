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


def list_awaited(wait_for: int | float, cohort: int, most: int) -> np.ndarray:
    """Returns [most + 1] int32 how many clients the server waits for, by how many are sampled in a round.

    Args:
      wait_for: a number, or a fraction of the sampled clients, rounded, at least one.
      cohort: C, the expected number of sampled clients.
      most: the largest.

    Raises:
      ValueError: it is more than the cohort.

    >>> list_awaited(0.75, 4, 5).tolist(), list_awaited(3, 4, 5).tolist()
    ([1, 1, 2, 2, 3, 4], [3, 3, 3, 3, 3, 3])
    """
    is_number, number = wait_for >= 1, count_awaited(wait_for, cohort)
    return np.array([number if is_number else count_awaited(wait_for, sampled) for sampled in range(most + 1)], np.int32)
