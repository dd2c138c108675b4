"""Slabs: the rows of the clients that a program is about, each device's with the device that works on its clients.

A program's clients are divided as `client_loop.map_clients` divides them: of each group of clients device d has the d-th part. So a
slab has a part for each device, leaves [D * rows of a part, ...], and its tables have the clients [D * C / D]. Inside the client
loop a device sees its own part alone, and row 0 of it is what lists are filled up with. A program that is not divided has one part.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from fedjax_core.algorithm import PyTree
from fedjax_core.data.ragged_index import RowLists
from fedjax_core.data.row_readers import Reader
from fedjax_core.engine.client_loop import AXIS
from fedjax_core.engine.federation import Held
from fedjax_core.engine.tables import RowTable, SlabTable

PART = {  # of the data, that each table of `Held` is about
    "index": "train",
    "validation_index": "train",
    "unseen_index": "train",
    "test_index": "test",
    "unseen_test_index": "test",
}


def divided(cohort: Sequence[np.ndarray], parts: int) -> np.ndarray:
    """[D, C / D] each device's clients, from those of each group [C of the group]."""
    return np.concatenate([ids.reshape(parts, -1) for ids in cohort], axis=1)


def filled(tables: Sequence[RowTable], ids: np.ndarray) -> np.ndarray:
    """[D] int64, rows that each device's clients `ids` [D, C / D] have by several tables together; N for an empty place."""
    of = lambda table: np.where(ids < len(table.size), np.asarray(table.size)[np.minimum(ids, len(table.size) - 1)], 0)
    return np.sum([of(table).sum(1, dtype=np.int64) for table in tables], axis=0)


def packed(reader: Reader, tables: Sequence[RowTable], ids: np.ndarray, room: int) -> tuple[PyTree, list[SlabTable]]:
    """The rows of the clients `ids` [C] by each of the tables: a slab's part, leaves [room, ...], and its tables.

    Raises:
      ValueError: there is not so much room.
      OSError: rows cannot be read; one line.
    """
    rows, found, begin = [np.array([tables[0].filler], np.int32)], [], 1
    for table in tables:
        there = ids < len(table.size)
        known = np.where(there, ids, 0)
        size = np.where(there, table.size[known], 0).astype(np.int32)
        rows.append(RowLists(np.asarray(table.rows), np.asarray(table.start)[known], size).joined())
        ends = begin + np.cumsum(size)
        found.append(SlabTable(ids, (ends - size).astype(np.int32), size, table.most))
        begin = int(ends[-1]) if len(ends) else begin
    return reader.slab(np.concatenate(rows), room), found


def like(all_rows: PyTree, tables: Sequence[RowTable], shape: tuple[int, int], room: int) -> tuple[PyTree, list[SlabTable]]:
    """Shapes of a slab and its tables, for clients [D, C / D]. `all_rows`: where they are taken from."""
    parts, each = shape
    slab = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((parts * room, *leaf.shape[1:]), leaf.dtype), all_rows)
    one = jax.ShapeDtypeStruct((parts * each,), np.int32)
    return slab, [SlabTable(one, one, one, table.most) for table in tables]  # pyright: ignore[reportArgumentType]


def lies(shared: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Returns a prefix of PartitionSpecs, for `client_loop.map_clients`, of what all clients of a program read.

    Cohort buffers are sharded as clients are. None: there is no such buffer.
    """
    tables = {name for held in shared if isinstance(held, Held) for name in PART if isinstance(getattr(held, name), SlabTable)}
    if not tables:
        return None
    divided = tables | {PART[name] for name in tables}
    specs: list[Any] = [PartitionSpec(AXIS) if name in divided else PartitionSpec() for name in Held._fields]
    of_held = Held(*specs)
    return tuple(of_held if isinstance(part, Held) else PartitionSpec() for part in shared)
