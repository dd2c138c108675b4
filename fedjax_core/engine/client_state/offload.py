"""Offloaded client states: read and written in a thread while the devices train.

While round r trains, what round r - 1 left is written, then what round r + 1 needs is read. A client that is in both
r and r + 1 gets its state from what round r left on the devices.
"""

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.engine.client_state.stores import HostStore
from fedjax_core.training.aggregators import append_axes


class Route(NamedTuple):
    """How the states of clients [C] travel between processes (`multi_process.py`); all processes make the same one.

    D is the number of keepers, K the number of slots for each pair of devices.

    Attributes:
      position: [D, D * K] for each keeper and each of its slots, whose state is there: an index into [C], or -1.
      store_slots: [D, D * K] that client's slot in the store, or -1.
      keeper, slot: [C] each client's keeper and its slot there; -1 for an empty slot of the cohort.
      arrived: [D, C / D] for each device, where the state of each of its clients is in what has arrived.
      leaving: [D, D * K] for each device, which of its clients' states goes where in what it sends back.
    """

    position: np.ndarray
    store_slots: np.ndarray
    keeper: np.ndarray
    slot: np.ndarray
    arrived: np.ndarray
    leaving: np.ndarray


class PrefetchedRound(NamedTuple):
    """A round that can begin.

    Attributes:
      round_num: rounds done before it.
      drawn: per group, its cohort and their slots in the store, on the devices.
      slots: per group, the slots [C], on the host.
      mask: per group, [C] which of them are real clients that come back.
      states: per group, client states [C, ...], on the devices.
      touched: per group, [C] on the host, which states were ever written.
      routes: per group, how its states travel between processes; none on one process.
    """

    round_num: int
    drawn: Sequence[tuple[Any, Any]]
    slots: list[np.ndarray]
    mask: list[np.ndarray]
    states: list[PyTree]
    touched: list[np.ndarray]
    routes: Sequence[Route] = ()


class Exchange:
    """Moves client states between stores and devices."""

    def __init__(self, stores: Sequence[HostStore], draw: Callable[[Any, int], Any], sharding: Any):
        """Reads nothing yet.

        Args:
          draw: (key data, rounds done) -> `rounds.draw_cohorts`.
          sharding: of such states, or for each group a tree of such in a list; None: any.
        """
        self._stores, self._draw, self._sharding = stores, draw, sharding
        shardings = sharding if isinstance(sharding, list) else [sharding] * len(stores)
        # The round expects its states sharded so; other shardings would compile it again.
        self._patch = [jax.jit(_patch_states, out_shardings=of_group) for of_group in shardings]
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._next: tuple[tuple[bytes, int], concurrent.futures.Future[PrefetchedRound]] | None = None
        self._writes: list[concurrent.futures.Future[None]] = []
        self._last: tuple[PrefetchedRound, list[PyTree]] | None = None

    def get(self, key: np.ndarray, round_num: int) -> PrefetchedRound:
        """Returns the round after `round_num`, with the states as the rounds before left them."""
        if self._next is None or self._next[0] != (key.tobytes(), round_num):
            self.close()
            return self._patch_newest(self._read(key, round_num))
        prefetched = self._next[1].result()
        self._next = None
        for write in self._writes:
            if write.done():  # all but the last are, for they came before what was read
                write.result()
        self._writes = self._writes[-1:]
        return self._patch_newest(prefetched)

    def prefetch(self, key: np.ndarray, round_num: int, drawn: Any) -> None:
        """Begins to read for the round after `round_num`, while the one before it trains; `drawn`: its draw."""
        future = self._start_thread().submit(self._read, key, round_num, drawn)
        self._next = (key.tobytes(), round_num), future

    def put_async(self, done: PrefetchedRound, states: list[PyTree]) -> None:
        """Begins to write what a round left; the next round must have been prefetched before."""
        self._last = done, states
        self._writes.append(self._start_thread().submit(self._write, done, states))

    def flush(self) -> None:
        """Waits until all is written."""
        writes, self._writes = self._writes, []
        for write in writes:
            write.result()

    def close(self) -> None:
        """Waits until all is written, drops what was prefetched, and ends the thread."""
        try:
            self.flush()
        finally:
            self._next = self._last = None
            if self._thread is not None:
                self._thread.shutdown(wait=True, cancel_futures=True)
                self._thread = None

    def _start_thread(self) -> concurrent.futures.ThreadPoolExecutor:
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "client states")
        return self._thread

    def _read(self, key: np.ndarray, round_num: int, drawn: Any = None) -> PrefetchedRound:
        coming = self._without_states(round_num, self._draw(key, round_num) if drawn is None else drawn)
        read = [store.read(slots) for store, slots in zip(self._stores, coming.slots, strict=True)]
        states = jax.device_put([states for states, _ in read], self._sharding)
        return coming._replace(states=states, touched=[touched for _, touched in read])

    def _without_states(self, round_num: int, drawn: Any) -> PrefetchedRound:
        on_host = jax.device_get(drawn)
        slots = [np.asarray(slots) for _, slots in on_host]
        mask = [np.asarray(cohort.examples) > 0 for cohort, _ in on_host]
        return PrefetchedRound(round_num, drawn, slots, mask, [], [])

    def _write(self, done: PrefetchedRound, states: list[PyTree]) -> None:
        groups = zip(self._stores, done.slots, done.mask, jax.device_get(states), strict=True)
        for store, slots, mask, new in groups:
            store.write(slots, new, mask)

    def _patch_newest(self, coming: PrefetchedRound) -> PrefetchedRound:
        """Replaces the states of clients of the last round by what that round left."""
        if self._last is None:
            return coming
        last, left = self._last
        states, touched = list(coming.states), list(coming.touched)
        for g, (index, is_returning) in enumerate(find_returning_clients(coming, last)):
            if is_returning.any():
                states[g] = self._patch[g](states[g], left[g], index.astype(np.int32), is_returning)
                touched[g] = touched[g] | is_returning
        return coming._replace(states=states, touched=touched)


def find_returning_clients(coming: PrefetchedRound, last: PrefetchedRound) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns per group (indices [C] into the last cohort, [C] whether that is the same client and it came back)."""
    returning = []
    for slots, before, mask in zip(coming.slots, last.slots, last.mask, strict=True):
        order = np.argsort(before)
        index = order[np.minimum(np.searchsorted(before, slots, sorter=order), len(before) - 1)]
        returning.append((index, (before[index] == slots) & mask[index]))
    return returning


def _patch_states(states: PyTree, left: PyTree, index: jax.Array, mask: jax.Array) -> PyTree:
    """Replaces `states` [C, ...] where `mask` [C] by those of `left` at `index` [C]."""
    choose = lambda new, old: jnp.where(append_axes(mask, new), old[index], new)
    return jax.tree.map(choose, states, left)
