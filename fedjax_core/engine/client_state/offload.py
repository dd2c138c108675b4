"""Client states that are kept off the devices: read and written in a thread while the devices train.

While round r trains, what round r - 1 left is written and what round r + 1 needs is read, in this order. A client that is in both
r and r + 1 takes its state from what round r left on the devices.
"""

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.engine.client_state.host_store import HostStore
from fedjax_core.engine.shares import Route


class Coming(NamedTuple):
    """A round that can begin.

    Attributes:
      number: rounds done before it.
      drawn: per group, its cohort and their places, on the devices.
      places: per group, the places [C], on the host.
      there: per group, [C] which of them are real clients that come back.
      rows: per group, states [C, ...], on the devices.
      touched: per group, [C] on the host, which states were ever written.
      routes: per group, how its states travel between processes; none on one process.
    """

    number: int
    drawn: Sequence[tuple[Any, Any]]
    places: list[np.ndarray]
    there: list[np.ndarray]
    rows: list[PyTree]
    touched: list[np.ndarray]
    routes: Sequence[Route] = ()


class Exchange:
    """Between stores and devices."""

    def __init__(
        self, stores: Sequence[HostStore], draw: Callable[[Any, int], Any], put: Callable[[PyTree], PyTree], sharding: Any
    ):
        """Reads nothing yet.

        Args:
          stores: per group.
          draw: (key data, rounds done) -> `rounds.draw`.
          put: rows of clients -> on the devices.
          sharding: of such rows, or for each group a tree of such in a list.
        """
        self._stores, self._draw, self._put = stores, draw, put
        each = sharding if isinstance(sharding, list) else [sharding] * len(stores)
        self._patch = [jax.jit(_patched, out_shardings=one) for one in each]  # as the round has them: else it is compiled anew
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._next: tuple[tuple[bytes, int], concurrent.futures.Future[Coming]] | None = None
        self._writes: list[concurrent.futures.Future[None]] = []
        self._last: tuple[Coming, list[PyTree]] | None = None

    def take(self, key: np.ndarray, number: int) -> Coming:
        """The round after `number`, with the states as the rounds before have left them.

        Raises:
          OSError: states cannot be read or written; one line.
        """
        if self._next is None or self._next[0] != (key.tobytes(), number):
            self.close()
            return self._newest(self._read(key, number))
        found = self._next[1].result()
        self._next = None
        for write in self._writes:
            if write.done():  # all but the last are, for they came before what was read
                write.result()
        self._writes = self._writes[-1:]
        return self._newest(found)

    def drawn(self, key: np.ndarray, number: int) -> Any:
        """The draw of the round after `number`, begun."""
        return self._draw(key, number)

    def begin(self, key: np.ndarray, number: int, drawn: Any) -> None:
        """Begins to read for the round after `number`, while the one before it trains. `drawn`: its draw."""
        self._next = (key.tobytes(), number), self._begun().submit(self._read, key, number, drawn)

    def give(self, of: Coming, rows: list[PyTree]) -> None:
        """Begins to write what a round left, whose reading successor has begun."""
        self._last = of, rows
        self._writes.append(self._begun().submit(self._write, of, rows))

    def settle(self) -> None:
        """Waits until all is written.

        Raises:
          OSError: something cannot be; one line.
        """
        writes, self._writes = self._writes, []
        for write in writes:
            write.result()

    def close(self) -> None:
        """Waits until all is written, forgets what was read ahead, and ends the thread."""
        try:
            self.settle()
        finally:
            self._next = self._last = None
            if self._thread is not None:
                self._thread.shutdown(wait=True, cancel_futures=True)
                self._thread = None

    def _begun(self) -> concurrent.futures.ThreadPoolExecutor:
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "client states")
        return self._thread

    def _read(self, key: np.ndarray, number: int, drawn: Any = None) -> Coming:
        coming = self._known(number, self._draw(key, number) if drawn is None else drawn)
        read = [store.read(p) for store, p in zip(self._stores, coming.places, strict=True)]
        return coming._replace(rows=self._put([rows for rows, _ in read]), touched=[touched for _, touched in read])

    def _known(self, number: int, drawn: Any) -> Coming:
        """What a draw says, without states."""
        on_host = jax.device_get(drawn)
        places = [np.asarray(places) for _, places in on_host]
        return Coming(number, drawn, places, [np.asarray(cohort.examples) > 0 for cohort, _ in on_host], [], [])

    def _write(self, of: Coming, rows: list[PyTree]) -> None:
        for store, places, there, new in zip(self._stores, of.places, of.there, jax.device_get(rows), strict=True):
            store.write(places, new, there)

    def _newest(self, found: Coming) -> Coming:
        """What was read, but of clients of the last round what it has left."""
        if self._last is None:
            return found
        last, left = self._last
        rows, touched = list(found.rows), list(found.touched)
        for g, (at, both) in enumerate(again(found, last)):
            if both.any():
                rows[g] = self._patch[g](rows[g], left[g], at.astype(np.int32), both)
                touched[g] = touched[g] | both
        return found._replace(rows=rows, touched=touched)


def again(found: Coming, last: Coming) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per group: (positions [C] in the last cohort, [C] whether that is the same client, and it was there)."""
    found_again = []
    for g, (places, before) in enumerate(zip(found.places, last.places, strict=True)):
        order = np.argsort(before)
        at = order[np.minimum(np.searchsorted(before, places, sorter=order), len(before) - 1)]
        found_again.append((at, (before[at] == places) & last.there[g][at]))
    return found_again


def _patched(rows: PyTree, left: PyTree, at: jax.Array, both: jax.Array) -> PyTree:
    """`rows` [C, ...], those of `both` [C] taken from `left` at [C]."""
    return jax.tree.map(lambda new, old: jnp.where(both.reshape(-1, *[1] * (new.ndim - 1)), old[at], new), rows, left)
