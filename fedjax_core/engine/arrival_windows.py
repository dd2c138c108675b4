"""The order of arrivals of an experiment, and what a program reads of the next rounds' arrivals."""

import dataclasses
import functools
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array
from fedjax_core.devices.arrivals import ArrivalOrder, ServerStep, order_arrivals
from fedjax_core.devices.schedules import Schedule
from fedjax_core.engine.client_sampler import ClientSampler
from fedjax_core.engine.client_sampling import FixedSampler, PoissonSampler, draw_rounds
from fedjax_core.engine.streams import stream_key

DRAWS = 64  # cohorts that are drawn at once for the stream of clients
ORDERS = 256  # experiments whose order of arrivals is remembered


class Arrivals(NamedTuple):
    """Arrays of the next W rounds that a program reads (`ServerStep`).

    Attributes:
      first: [] number of the first of them.
      ids, staleness, slots: [W, K] int32.
      weight: [W, K] float32, of each update.
      target: [W] int32.
    """

    first: Any
    ids: Any
    staleness: Any
    slots: Any
    weight: Any
    target: Any


class ClientArrival(NamedTuple):
    """One client's arrival: [] each."""

    staleness: Array
    slot: Array
    weight: Array


@dataclasses.dataclass(frozen=True)
class BufferSampler(ClientSampler):
    """The clients of a server step. `Arrivals` has them; nothing is drawn."""


@dataclasses.dataclass(frozen=True, eq=False)
class Asynchrony:
    """The asynchronous schedule of a simulation.

    Attributes:
      sampler: of the stream of clients; its size is the number that train at once.
      buffer: K.
      seconds: [N] of each client's round.
      slots: S, of the ring of broadcasts.
      in_ring: of each leaf of the method's server state, whether broadcasts are made of it.
      memory: index of the transform that weights stale updates.
    """

    schedule: Schedule
    sampler: FixedSampler | PoissonSampler
    buffer: int
    seconds: np.ndarray
    server_seconds: float
    slots: int
    in_ring: tuple[bool, ...]
    memory: int
    _orders: dict[bytes, ArrivalOrder] = dataclasses.field(default_factory=dict)
    _lock: Any = dataclasses.field(default_factory=threading.Lock)

    def read_steps(self, key_data: Any, first: int, number: int) -> list[ServerStep]:
        """Returns the steps of an experiment, from number `first`."""
        key_data = np.asarray(jax.device_get(key_data))
        with self._lock:
            name = key_data.tobytes()
            order = self._orders.pop(name, None) or ArrivalOrder(functools.partial(self._begin, key_data))
            self._orders[name] = order  # most recently used last
            while len(self._orders) > ORDERS:
                del self._orders[next(iter(self._orders))]
        return order.read(first, number)

    def _begin(self, key_data: np.ndarray) -> Iterator[ServerStep]:
        key = stream_key(jnp.asarray(key_data), "cohort")

        def stream() -> Iterator[np.ndarray]:
            first = 0
            while True:
                yield from np.asarray(draw_rounds(self.sampler, key, first, DRAWS))
                first += DRAWS

        m, limits = self.sampler.size, (self.schedule.max_staleness, self.server_seconds)
        return order_arrivals(self.seconds, stream(), m, self.buffer, *limits)

    def read_window(self, key_data: Any, first: int, number: int) -> Arrivals:
        """Returns what a program reads of rounds `first` to before `first + number`, on the host."""
        steps = self.read_steps(key_data, first, number)
        ids, staleness, slots = (np.stack([step[i] for step in steps]) for i in range(3))
        weight = np.asarray(self.schedule.weight_fn(staleness.ravel().astype(float)), np.float32).reshape(staleness.shape)
        return Arrivals(np.int32(first), ids, staleness, slots, weight, np.array([step.target for step in steps], np.int32))
