"""Where clients' rows lie, and how programs get them: all of the data on the devices, or a slab of rows for each program.

A slab has the rows of the clients that a program is about, which it finds by a `SlabTable` where it else has a `RowTable`. The rows
are the same, so are the draws inside a client, and so is every number. Cohorts follow from (seed, round) alone: the slabs of coming
rounds are packed, and brought to the devices, in a thread while the devices train.
"""

import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.data.readers import Reader
from fedjax_core.data.row_lists import RowLists
from fedjax_core.engine import ahead
from fedjax_core.engine.federation import Held
from fedjax_core.engine.tables import RowTable, SlabTable

PART = {  # of the data, that each table of `Held` is about
    "index": "train",
    "validation_index": "train",
    "unseen_index": "train",
    "test_index": "test",
    "unseen_test_index": "test",
}
SLAB_BYTES = 2**26  # of the server's tests at once, on each device


class Resident:
    """All data are on the devices.

    Attributes:
      rest: what lies there, on the host.
    """

    streamed: frozenset[str] = frozenset()

    def __init__(self, host: Held):
        self.rest = host

    def of_round(self, held: Held, key: PyTree, number: int, scored: bool) -> Held:
        """What a round's program reads. `held`: what lies on the devices."""
        del key, number, scored
        return held

    def of_clients(self, held: Held, ids: np.ndarray, tables: Sequence[str]) -> Held:
        """What a program about the clients `ids` reads that uses these tables of `Held`."""
        del ids, tables
        return held

    def of_blocks(self, held: Held, blocks: Sequence[np.ndarray], tables: Sequence[str]) -> Iterator[Held]:
        """`of_clients` of one block after another."""
        return (self.of_clients(held, ids, tables) for ids in blocks)

    def beside(self, held: Held) -> int:
        """Bytes on each device of what is brought for coming rounds, while the one that reads `held` trains."""
        del held
        return 0

    def close(self) -> None:
        """Nothing is under way."""


class Streamed:
    """Data on the host or on the disk; programs get slabs.

    Attributes:
      rest: what lies on the devices all the time: everything but the rows.
      streamed: "train", and "test" unless all of the test set stays on the devices.
    """

    def __init__(
        self,
        host: Held,
        readers: dict[str, Reader],
        put: Callable[[PyTree], PyTree],
        draw: Callable[[Held, Any, Any], Sequence[tuple[Any, Any]]],
        keep_test: bool,
    ):
        """Puts nothing on a device.

        Args:
          host: with all data.
          readers: of these data.
          put: host values -> on the devices.
          draw: `rounds.draw`, compiled.
          keep_test: whether the test set stays on the devices.
        """
        self.streamed = frozenset({"train"} if keep_test else {"train", "test"})
        self._readers, self._host, self._put, self._draw = readers, host, put, draw
        gone: dict[str, Any] = {name: () for name, part in PART.items() if part in self.streamed}
        self.rest = host._replace(**gone | dict.fromkeys(self.streamed, ()))
        self._rooms: dict[tuple[tuple[str, ...], int], _Room] = {}
        self._of: tuple[Held, np.ndarray, Any] | None = None  # what lies on the devices, and the run's key data, here and there
        self._drawn: tuple[int, Any] | None = None  # a round and its draw, begun
        self._ahead = ahead.Ahead(self._round)

    def of_round(self, held: Held, key: PyTree, number: int, scored: bool) -> Held:
        """What a round's program reads; those of the coming rounds are begun.

        Raises:
          OSError: rows cannot be read; one line.
        """
        key = np.asarray(jax.device_get(key))
        if self._of is None or self._of[0] is not held or not np.array_equal(self._of[1], key):
            self._ahead.close()
            self._of, self._drawn = (held, key, self._put(key)), None
        ids, of_round = self._ahead.take(number)
        if jax.process_count() > 1:  # the next one's, before this round: a device does one program after another
            self._drawn = number + 1, self._draw(held, self._of[2], self._put(np.int32(number + 1)))
        return self.of_clients(of_round, ids, ["test_index"]) if scored else of_round

    def _round(self, number: int) -> tuple[np.ndarray, Held]:
        assert self._of is not None
        (held, _, key), begun = self._of, self._drawn
        drawn = begun[1] if begun and begun[0] == number else self._draw(held, key, self._put(np.int32(number)))
        drawn = jax.device_get(drawn)
        everyone = [np.where(cohort.examples > 0, cohort.ids, len(self._host.size)) for cohort, _ in drawn]
        ids = np.concatenate(everyone).astype(np.int32)
        return ids, self.of_clients(held, ids, ["index"])

    def of_clients(self, held: Held, ids: np.ndarray, tables: Sequence[str]) -> Held:
        """What a program about the clients `ids` [C] reads that uses these tables of `Held`; N for an empty place."""
        for part in sorted(self.streamed):
            mine = tuple(name for name in tables if PART[name] == part)
            if mine:
                room = (mine, len(ids))  # a round's slab and those of other blocks of clients are of different sizes
                if room not in self._rooms:
                    self._rooms[room] = _Room([getattr(self._host, name) for name in mine])
                slab, found = packed(self._readers[part], self._rooms[room], ids)
                placed = self._put({part: slab, **dict(zip(mine, found, strict=True))})
                held = held._replace(**placed)
        return held

    def beside(self, held: Held) -> int:
        """Bytes on each device of what is brought for coming rounds, while the one that reads `held` trains."""
        coming = ahead.DEPTH + 1  # those that are ready, and the next round's, which has begun
        return coming * sum(leaf.nbytes for leaf in jax.tree.leaves((held.train, held.index)))

    def like(self, part: str) -> PyTree:
        """All rows of a part, where they lie."""
        return self._readers[part].like

    def room(self, ids: np.ndarray, tables: Sequence[str]) -> dict[str, PyTree]:
        """As `of_clients`, what of `Held` would be in place of what lies there, as shapes: nothing is read or put anywhere."""
        found: dict[str, PyTree] = {}
        for part in sorted(self.streamed):
            mine = [name for name in tables if PART[name] == part]
            if not mine:
                continue
            room = _Room([getattr(self._host, name) for name in mine])
            there = ids[ids < len(room.tables[0].size)]
            rows = 1 + sum(int(np.asarray(table.size, np.int64)[there].sum()) for table in room.tables)
            slab = functools.partial(_rows_like, room.capacity(len(ids), rows))
            found[part] = jax.tree.map(slab, self.like(part))
            one = np.zeros(len(ids), np.int32)
            found |= {name: SlabTable(one, one, one, table.most) for name, table in zip(mine, room.tables, strict=True)}
        return found

    def of_blocks(self, held: Held, blocks: Sequence[np.ndarray], tables: Sequence[str]) -> Iterator[Held]:
        """`of_clients` of one block after another, each made while its predecessor is in use."""
        return ahead.each(lambda i: self.of_clients(held, blocks[i], tables), len(blocks))

    def batches(self, part: str, rows: np.ndarray | None, batch: int, devices: int) -> "Batches":
        """All test rows (part "test"), or these of the training rows, as batches for the server's model."""
        reader = self._readers[part]
        number = len(jax.tree.leaves(reader.like)[0]) if rows is None else len(rows)
        return Batches(reader, np.arange(number, dtype=np.int32) if rows is None else rows, batch, devices, self._put)

    def close(self) -> None:
        """Ends the thread, and lets go of what it had put on the devices."""
        self._ahead.close()
        self._of = self._drawn = None


def _rows_like(number: int, leaf: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((number, *leaf.shape[1:]), leaf.dtype)


class Batches:
    """Rows of a test set in blocks of batches. Each device (with `plan.model`, those that hold a network together) has the batches
    that it has where all rows are resident, in their order: the sums are the same to the bit.
    """

    def __init__(self, reader: Reader, rows: np.ndarray, batch: int, devices: int, put: Callable[[PyTree], PyTree]):
        self._reader, self._rows, self._put, self.devices = reader, rows, put, devices
        self.number, self.batch = len(rows), max(1, min(batch, len(rows)))
        self._each = math.ceil(math.ceil(len(rows) / self.batch) / devices)  # batches of a device
        at_once = max(1, SLAB_BYTES // max(1, self.batch * reader.row_bytes * devices))
        self._at_once = max(1, math.ceil(self._each / max(1, math.ceil(self._each / at_once))))

    def __iter__(self) -> Iterator[tuple[PyTree, PyTree]]:
        """(rows [n * B], first place [n] of each batch among all rows), on the devices; n is a multiple of `devices`."""
        return ahead.each(self._block, -(-self._each // self._at_once))

    def _block(self, number: int) -> tuple[PyTree, PyTree]:
        mine = number * self._at_once + np.arange(self._at_once)
        batches = np.arange(self.devices)[:, None] * self._each + np.minimum(mine, self._each)
        first = np.where(mine < self._each, batches * self.batch, len(self._rows)).reshape(-1).astype(np.int32)
        at = (first[:, None] + np.arange(self.batch)).reshape(-1)
        rows = np.where(at < len(self._rows), self._rows[np.minimum(at, len(self._rows) - 1)], 0)
        return self._put((self._reader.slab(rows, len(rows)), first))

    def totals(self, blocks: Sequence[PyTree]) -> PyTree:
        """Each device's sums [devices, ...] of what its batches gave, of all blocks [n, ...], added one after another."""

        def total(*parts):
            of_device = [np.asarray(part).reshape(self.devices, -1, *np.shape(part)[1:]) for part in parts]
            return np.add.accumulate(np.concatenate(of_device, 1), 1, dtype=of_device[0].dtype)[:, -1]

        return jax.tree.map(total, *blocks)


class _Room:
    """How many rows slabs of some tables have room for: few sizes, so that few programs are compiled. Several threads may ask."""

    def __init__(self, tables: Sequence[RowTable]):
        self.tables, self._capacity, self._lock = tables, 0, threading.Lock()
        sizes = np.sum([np.asarray(table.size, np.int64) for table in tables], axis=0)
        self._largest_first = np.sort(sizes)[::-1]

    def capacity(self, clients: int, rows: int) -> int:
        """For a slab of so many rows of so many clients: at most what the largest clients have, or a half, a quarter of it."""
        with self._lock:
            if rows > self._capacity:
                most = fits = 1 + int(self._largest_first[:clients].sum())
                while (most := -(-most // 2)) >= 1.2 * rows:
                    fits = most
                self._capacity = max(fits, rows)
            return self._capacity


def packed(reader: Reader, room: _Room, ids: np.ndarray) -> tuple[PyTree, list[SlabTable]]:
    """The rows of the clients `ids` [C] by each of the room's tables, as a slab and its tables."""
    rows, found, begin = [np.array([room.tables[0].filler], np.int32)], [], 1
    for table in room.tables:
        there = ids < len(table.size)
        known = np.where(there, ids, 0)
        size = np.where(there, table.size[known], 0).astype(np.int32)
        rows.append(RowLists(np.asarray(table.rows), np.asarray(table.start)[known], size).joined())
        ends = begin + np.cumsum(size)
        found.append(SlabTable(ids, (ends - size).astype(np.int32), size, table.most))
        begin = int(ends[-1]) if len(ends) else begin
    together = np.concatenate(rows)
    return reader.slab(together, room.capacity(len(ids), len(together))), found
