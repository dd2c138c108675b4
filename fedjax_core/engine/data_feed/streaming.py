"""Where clients' rows lie, and how programs get them: all of the data on the devices, or a slab of rows for each program.

A slab has the rows of the clients that a program is about, which it finds by a `SlabTable` where it else has a `RowTable`. The rows
are the same, so are the draws inside a client, and so is every number. Cohorts follow from (seed, round) alone: the slabs of coming
rounds are packed, and brought to the devices, in a thread while the devices train. All have one size (`slab_room.py`), and each
device has the rows of its own clients (`cohort_buffer.py`).
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.data.row_readers import Reader
from fedjax_core.engine import ahead, client_loop, slab_room
from fedjax_core.engine.data_feed import cohort_buffer
from fedjax_core.engine.data_feed.cohort_buffer import PART
from fedjax_core.engine.federation import Federation, Held

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

    def of_cohort(self, held: Held, cohort: Sequence[np.ndarray], tables: Sequence[str]) -> Held:
        """What a round of these clients of each group reads that uses these tables of `Held`."""
        del cohort, tables
        return held

    def of_client(self, held: Held, client: int, tables: Sequence[str]) -> Held:
        """What a program about one client reads."""
        del client, tables
        return held

    def of_blocks(self, held: Held, blocks: Sequence[np.ndarray], tables: Sequence[str]) -> Iterator[Held]:
        """What a program about clients `ids` of one group reads, for one block of them after another."""
        del tables
        return (held for _ in blocks)

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
        fed: Federation,
        host: Held,
        readers: dict[str, Reader],
        draw: Callable[[Held, Any, Any], Sequence[tuple[Any, Any]]],
        keep_test: bool,
    ):
        """Puts nothing on a device.

        Args:
          fed: with its plan and devices.
          host: with all data.
          readers: of these data.
          draw: `rounds.draw`, compiled.
          keep_test: whether the test set stays on the devices.
        """
        self.streamed = frozenset({"train"} if keep_test else {"train", "test"})
        self._fed, self._readers, self._host, self._draw = fed, readers, host, draw
        gone: dict[str, Any] = {name: () for name, part in PART.items() if part in self.streamed}
        self.rest = host._replace(**gone | dict.fromkeys(self.streamed, ()))
        self._rooms: dict[tuple[str, ...], int] = {}  # of rounds, by the tables that they use
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
        cohort, of_round = self._ahead.take(number)
        if jax.process_count() > 1:  # the next one's, before this round: a device does one program after another
            self._drawn = number + 1, self._draw(held, self._of[2], self._put(np.int32(number + 1)))
        return self.of_cohort(of_round, cohort, ["test_index"]) if scored else of_round

    def _round(self, number: int) -> tuple[list[np.ndarray], Held]:
        assert self._of is not None
        (held, _, key), begun = self._of, self._drawn
        drawn = begun[1] if begun and begun[0] == number else self._draw(held, key, self._put(np.int32(number)))
        drawn = jax.device_get(drawn)
        cohort = [np.where(of.examples > 0, of.ids, len(self._host.size)).astype(np.int32) for of, _ in drawn]
        return cohort, self.of_cohort(held, cohort, ["index"])

    def of_cohort(self, held: Held, cohort: Sequence[np.ndarray], tables: Sequence[str]) -> Held:
        """What a round of these clients [C] of each group, in the order of the plan, reads that uses these tables of `Held`; N for
        an empty place."""
        for part, mine in self._tables(tables):
            ids = cohort_buffer.divided(cohort, self._fed.plan.parts)
            room = max(self._room(mine), 1 + int(cohort_buffer.filled(self._named(mine), ids).max()))
            held = self._given(held, part, mine, ids, room)
        return held

    def of_client(self, held: Held, client: int, tables: Sequence[str]) -> Held:
        """What a program about one client reads: all devices have the same."""
        for part, mine in self._tables(tables):
            room = sum(table.most for table in self._named(mine)) + 1
            held = self._given(held, part, mine, np.array([[client]], np.int32), room)
        return held

    def of_blocks(self, held: Held, blocks: Sequence[np.ndarray], tables: Sequence[str]) -> Iterator[Held]:
        """What a program about clients `ids` [C] of one group reads, for one block of them after another, each made while its
        predecessor is in use; N for an empty place."""
        parts, chosen = self._fed.plan.parts, self._tables(tables)
        rooms = [slab_room.of_blocks(self._named(mine), blocks, parts) for _, mine in chosen]

        def block(number: int) -> Held:
            found, ids = held, cohort_buffer.divided([blocks[number]], parts)
            for (part, mine), room in zip(chosen, rooms, strict=True):
                found = self._given(found, part, mine, ids, room)
            return found

        return ahead.each(block, len(blocks))

    def _tables(self, names: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """By part of the data that is streamed, those of the tables that are about it."""
        found = {part: tuple(name for name in names if PART[name] == part) for part in sorted(self.streamed)}
        return [(part, mine) for part, mine in found.items() if mine]

    def _named(self, names: Sequence[str]) -> list[Any]:
        return [getattr(self._host, name) for name in names]

    def _room(self, tables: tuple[str, ...]) -> int:
        """Rows of a device's part of the slabs of rounds that use these tables."""
        if tables not in self._rooms:
            sizes = np.sum([np.asarray(table.size, np.int64) for table in self._named(tables)], axis=0)
            self._rooms[tables] = slab_room.of_rounds(self._fed, sizes, dealt=tables == ("index",))
        return self._rooms[tables]

    def _given(self, held: Held, part: str, tables: Sequence[str], ids: np.ndarray, room: int) -> Held:
        """With the rows of the clients `ids` [D, C / D] by these tables, on the devices: one part for each, or one for all."""
        of, reader = self._named(tables), self._readers[part]
        if len(ids) == 1:
            slab, found = cohort_buffer.packed(reader, of, ids[0], room)
            slab, found = self._put((slab, found))
        else:
            make = functools.cache(lambda d: jax.tree.leaves(cohort_buffer.packed(reader, of, ids[d], room)))
            slab, found = client_loop.assembled(cohort_buffer.like(reader.like, of, ids.shape, room), self._fed.mesh, make)
        return held._replace(**{part: slab}, **dict(zip(tables, found, strict=True)))

    def _put(self, tree: PyTree) -> PyTree:
        return client_loop.place(tree, self._fed.mesh)

    def beside(self, held: Held) -> int:
        """Bytes on each device of what is brought for coming rounds, while the one that reads `held` trains."""
        coming = ahead.DEPTH + 1  # those that are ready, and the next round's, which has begun
        mine = lambda leaf: math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        return coming * sum(map(mine, jax.tree.leaves((held.train, held.index))))

    def like(self, part: str) -> PyTree:
        """All rows of a part, where they lie."""
        return self._readers[part].like

    def shapes(self, tables: Sequence[str], blocks: Sequence[np.ndarray] | None = None) -> dict[str, PyTree]:
        """What of `Held` `of_cohort` puts in place of what lies there, or `of_blocks` for these blocks, as shapes with their
        shardings: nothing is read or put anywhere."""
        fed, found = self._fed, {}
        parts = fed.plan.parts
        lies = client_loop.replicated(fed.mesh) if parts == 1 else client_loop.spread(fed.mesh)
        for part, mine in self._tables(tables):
            if blocks is None:
                slots = [client_loop.slots(min(fed.cohort, len(of.clients)), fed.plan_of(g)) for g, of in enumerate(fed.groups)]
                room, number = self._room(mine), sum(slots)
            else:
                room, number = slab_room.of_blocks(self._named(mine), blocks, parts), len(blocks[0])
            slab, slab_tables = cohort_buffer.like(self.like(part), self._named(mine), (parts, number // parts), room)
            put = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=lies)
            found |= jax.tree.map(put, {part: slab, **dict(zip(mine, slab_tables, strict=True))})
        return found

    def batches(self, part: str, rows: np.ndarray | None, batch: int, devices: int) -> "Batches":
        """All test rows (part "test"), or these of the training rows, as batches for the server's model."""
        reader = self._readers[part]
        number = len(jax.tree.leaves(reader.like)[0]) if rows is None else len(rows)
        return Batches(reader, np.arange(number, dtype=np.int32) if rows is None else rows, batch, devices, self._put)

    def close(self) -> None:
        """Ends the thread, and lets go of what it had put on the devices."""
        self._ahead.close()
        self._of = self._drawn = None


class Batches:
    """Rows of a test set in blocks of batches. Each device (with `plan.model`, those that hold a network together) has the batches
    that it has where all rows are resident, in their order: the sums are the same to the bit.

    Attributes:
      number: rows in all.
      batch: rows at once.
      devices: over which each block's batches are spread.
      each: batches that a device has in all.
      at_once: of a block.
    """

    def __init__(self, reader: Reader, rows: np.ndarray, batch: int, devices: int, put: Callable[[PyTree], PyTree]):
        self._reader, self._rows, self._put, self.devices = reader, rows, put, devices
        self.number, self.batch = len(rows), max(1, min(batch, len(rows)))
        self.each = math.ceil(math.ceil(len(rows) / self.batch) / devices)
        at_once = max(1, SLAB_BYTES // max(1, self.batch * reader.row_bytes * devices))
        self.at_once = max(1, math.ceil(self.each / max(1, math.ceil(self.each / at_once))))

    def __iter__(self) -> Iterator[tuple[PyTree, PyTree]]:
        """(rows [n * B], first place [n] of each batch among all rows), on the devices; n is a multiple of `devices`."""
        return ahead.each(self._block, -(-self.each // self.at_once))

    def _block(self, number: int) -> tuple[PyTree, PyTree]:
        mine = number * self.at_once + np.arange(self.at_once)
        batches = np.arange(self.devices)[:, None] * self.each + np.minimum(mine, self.each)
        first = np.where(mine < self.each, batches * self.batch, len(self._rows)).reshape(-1).astype(np.int32)
        at = (first[:, None] + np.arange(self.batch)).reshape(-1)
        rows = np.where(at < len(self._rows), self._rows[np.minimum(at, len(self._rows) - 1)], 0)
        return self._put((self._reader.slab(rows, len(rows)), first))
