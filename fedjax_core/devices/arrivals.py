"""The order in which clients' updates arrive at an asynchronous server: an event queue.

It depends on the durations of the clients' rounds and on who is sampled, never on what is trained.
So it is known before training, and is computed on the host in float64.

  - `concurrency` clients train at once; each has its place. They are the first of the sampler's
    stream.
  - A client that arrives leaves its place, and its update waits in the buffer. When `buffer` of
    them wait, the server steps.
  - All that arrive at one instant, or while the server steps, are handled in the order of their
    arrival, then of their dispatch. Then the next clients of the stream take the free places.
  - A client of the stream that trains, or whose update waits, is passed over. If there is no other,
    a place stays free until the next instant.

So with equal durations, and a buffer of all places, the steps are the rounds of a synchronous server.
"""

import collections
import heapq
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

KEPT = 4096  # steps that an `ArrivalOrder` remembers


class ServerStep(NamedTuple):
    """One step of the server, and the K updates that it takes.

    Attributes:
      ids: [K] int32, their clients, in the order of arrival.
      staleness: [K] int32, server steps since each client's download.
      slots: [K] int32, where the ring of broadcasts has what each client downloaded.
      target: where the ring takes the broadcast that this step makes; it may be one of `slots`.
      seconds: at which the step ends, since the start.
      dropped: updates that arrived since the step before and were too stale.
    """

    ids: np.ndarray
    staleness: np.ndarray
    slots: np.ndarray
    target: int
    seconds: float
    dropped: int


class _Ring:
    """Slots of the versions that clients may still need.

    Needed are the newest version, and those that clients at their places have downloaded, unless
    they are too old. The lowest free slot is taken.
    """

    def __init__(self, max_staleness: int | None):
        self.slots, self._readers = {0: 0}, collections.Counter[int]()
        self._free: list[int] = []
        self._max_staleness = max_staleness

    def add_reader(self, version: int) -> None:
        self._readers[version] += 1

    def remove_reader(self, version: int) -> None:
        """Forgets a client at its place; the newest version loses its last one only where a step makes the next one."""
        self._readers[version] -= 1
        if not self._readers[version]:
            self._release(version)

    def add_version(self, newest: int) -> int:
        """Returns the slot of a new version."""
        if not self._readers[newest - 1]:
            self._release(newest - 1)
        if self._max_staleness is not None:
            self._release(newest - 1 - self._max_staleness)
        slot = heapq.heappop(self._free) if self._free else len(self.slots)
        self.slots[newest] = slot
        return slot

    def _release(self, version: int) -> None:
        if version in self.slots:
            heapq.heappush(self._free, self.slots.pop(version))
        if not self._readers[version]:
            del self._readers[version]


def order_arrivals(
    seconds: np.ndarray,
    stream: Iterator[np.ndarray],
    concurrency: int,
    buffer: int,
    max_staleness: int | None = None,
    server_seconds: float = 0.0,
) -> Iterator[ServerStep]:
    """Yields the server's steps, without end.

    Args:
      seconds: [N] from the broadcast to the arrival of each client's update.
      stream: arrays of client ids, in the order in which clients are sampled; N for nobody.
      concurrency: M, places of clients that train at once, at most N.
      buffer: K, updates of a step, at most M.
      max_staleness: above which an update is dropped; None: none is.
      server_seconds: of a step.
    """
    busy = np.zeros(len(seconds) + 1, bool)
    busy[-1] = True  # nobody
    idle, block, position = len(seconds), np.zeros(0, np.int32), 0
    places: list[tuple[float, int, int, int]] = []  # (arrival, number of the dispatch, client, version)
    waiting: list[tuple[int, int]] = []  # (client, version)
    ring, version, number, dropped, now = _Ring(max_staleness), 0, 0, 0, 0.0
    while True:
        while len(places) < concurrency and idle:  # dispatch
            while not len(free := np.flatnonzero(~busy[block[position:]])):
                block, position = next(stream), 0
            position += int(free[0]) + 1
            client = int(block[position - 1])
            busy[client], idle = True, idle - 1
            ring.add_reader(version)
            heapq.heappush(places, (now + float(seconds[client]), number, client, version))
            number += 1
        now, arrived = max(now, places[0][0]), []
        while places and places[0][0] <= now:
            arrived.append(heapq.heappop(places))
        for _, _, client, downloaded in arrived:
            if max_staleness is not None and version - downloaded > max_staleness:
                ring.remove_reader(downloaded)
                busy[client], idle, dropped = False, idle + 1, dropped + 1
                continue
            waiting.append((client, downloaded))
            if len(waiting) < buffer:
                continue
            now += server_seconds
            ids = np.array([client for client, _ in waiting], np.int32)
            staleness = np.array([version - downloaded for _, downloaded in waiting], np.int32)
            slots = np.array([ring.slots[downloaded] for _, downloaded in waiting], np.int32)
            for _, downloaded in waiting:
                ring.remove_reader(downloaded)
            busy[ids], idle = False, idle + len(ids)
            version, waiting = version + 1, []
            yield ServerStep(ids, staleness, slots, ring.add_version(version), now, dropped)
            dropped = 0


def bound_ring(seconds: np.ndarray, concurrency: int, buffer: int, max_staleness: int | None, server_seconds: float) -> int:
    """Returns how many slots the ring of broadcasts has at most.

    When a step ends, at most M - 1 clients are at their places, and each of them needs one version
    beside the newest. No client needs a version older than the largest staleness: while it trains,
    each other place has an arrival at most every min(seconds).

    Args:
      seconds, concurrency, buffer, max_staleness, server_seconds: as in `order_arrivals`.
    """
    slots = concurrency
    if max_staleness is not None:
        slots = min(slots, max_staleness + 1)
    if seconds.min() > 0 and not server_seconds:
        arrivals = (concurrency - 1) * (int(seconds.max() / seconds.min() * (1 + 1e-9)) + 1)
        slots = min(slots, (buffer - 1 + arrivals) // buffer + 1)
    return slots


class ArrivalOrder:
    """The steps of `order_arrivals` by their numbers. It remembers some, and begins anew for older ones."""

    def __init__(self, begin: Callable[[], Iterator[ServerStep]]):
        """Computes nothing. `begin` is `order_arrivals` with its arguments."""
        self._begin, self._steps, self._lock = begin, begin(), threading.Lock()
        self._recent: collections.deque[ServerStep] = collections.deque(maxlen=KEPT)
        self._count = 0  # steps computed

    def read(self, first: int, number: int) -> list[ServerStep]:
        """Returns the steps numbered `first`, `first + 1` ... from 0; at most `KEPT`."""
        with self._lock:
            if first < self._count - len(self._recent):
                self._steps, self._count = self._begin(), 0
                self._recent.clear()
            while self._count < first + number:
                self._recent.append(next(self._steps))
                self._count += 1
            offset = self._count - len(self._recent)
            return [self._recent[i - offset] for i in range(first, first + number)]
