"""Cohort buffers: the packed examples of a program's clients, sharded as the clients are.

A buffer has a shard for each of D devices, leaves [D * capacity, ...], and its tables have the
clients [D * C / D]. Inside the client loop a device sees its own shard only, whose example 0 is
what index lists are padded with.

All buffers of a run have one capacity, so that one program serves all its rounds. A cohort exceeds
it with a probability below `OVERFLOW`, by Chernoff's bound on the sum of the sizes of the sampled
clients: P(S >= t) <= E[exp(a S)] / exp(a t) for every a > 0, where the sampler bounds E[exp(a S)].
Its round is then compiled anew, for a larger buffer.

`client_loop.arrange` deals chunks to devices by size: a device's first chunk has at most the
examples of the cohort's largest clients, and its others together at most a D-th of all examples.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.data.row_readers import ExampleReader
from fedjax_core.engine.client_sampler import ClientSampler
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays, IndexTable
from fedjax_core.engine.sharding.mesh import AXIS
from fedjax_core.engine.simulation_spec import SimulationSpec

SPLITS = {  # the data that each table of `DeviceArrays` indexes
    "index": "train",
    "validation_index": "train",
    "unseen_index": "train",
    "test_index": "test",
    "unseen_test_index": "test",
}
OVERFLOW = 1e-9
_LEVELS, _THRESHOLDS = 1000, 12  # distinct sizes that are distinguished; thresholds that are tried
_EXPONENTS = np.geomspace(1e-4, 1e2, 73)  # a, in units of one over the largest size


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BufferTable:
    """An `IndexTable` of a buffer's clients, whose examples are one client after another. Lists are padded with 0.

    Attributes:
      ids: [C] int32 the clients; N for an empty slot.
      start, size: [C] int32.
    """

    ids: Array | np.ndarray
    start: Array | np.ndarray
    size: Array | np.ndarray
    most: int = dataclasses.field(metadata={"static": True})

    def __getitem__(self, i: Array | int) -> Array:
        slot, offsets = jnp.argmax(jnp.asarray(self.ids) == i), jnp.arange(self.most)
        start, size = jnp.asarray(self.start)[slot], jnp.asarray(self.size)[slot]
        return jnp.where(offsets < size, start + offsets, 0)


def split_by_device(cohort: Sequence[np.ndarray], shards: int) -> np.ndarray:
    """Returns each device's clients [D, C / D], from those of each group [C of the group]."""
    return np.concatenate([ids.reshape(shards, -1) for ids in cohort], axis=1)


def count_examples(tables: Sequence[IndexTable], ids: np.ndarray) -> np.ndarray:
    """Returns [D] int64, the examples of each device's clients `ids` [D, C / D] by all tables; N for an empty slot."""

    def sizes(table: IndexTable) -> np.ndarray:
        return np.where(ids < len(table.size), np.asarray(table.size)[np.minimum(ids, len(table.size) - 1)], 0)

    return np.sum([sizes(table).sum(1, dtype=np.int64) for table in tables], axis=0)


def pack(reader: ExampleReader, tables: Sequence[IndexTable], ids: np.ndarray, capacity: int) -> tuple[PyTree, list[BufferTable]]:
    """Returns a shard, leaves [capacity, ...], with the examples of clients `ids` [C], and tables.

    Raises:
      ValueError: the capacity is too small.
      OSError: examples cannot be read; one line.
    """
    indices, buffer_tables, begin = [np.array([tables[0].filler], np.int32)], [], 1
    for table in tables:
        mask = ids < len(table.size)
        known = np.where(mask, ids, 0)
        size = np.where(mask, table.size[known], 0).astype(np.int32)
        indices.append(RaggedIndex(np.asarray(table.rows), np.asarray(table.start)[known], size).concatenate())
        ends = begin + np.cumsum(size)
        buffer_tables.append(BufferTable(ids, (ends - size).astype(np.int32), size, table.most))
        begin = int(ends[-1]) if len(ends) else begin
    return reader.read_padded(np.concatenate(indices), capacity), buffer_tables


def abstract_buffer(
    examples: PyTree, tables: Sequence[IndexTable], shape: tuple[int, int], capacity: int
) -> tuple[PyTree, list[BufferTable]]:
    """Returns the shapes of a buffer of `examples` and of its tables, for clients [D, C / D]."""
    shards, size = shape
    buffer = jax.tree.map(lambda x: jax.ShapeDtypeStruct((shards * capacity, *x.shape[1:]), x.dtype), examples)
    column: Any = jax.ShapeDtypeStruct((shards * size,), np.int32)
    return buffer, [BufferTable(column, column, column, table.most) for table in tables]


def shared_input_specs(shared: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns PartitionSpecs, a prefix, of what all clients of a program read, for `client_loop.map_clients`.

    Cohort buffers are sharded as clients are.
    """
    tables = {
        name
        for entry in shared
        if isinstance(entry, DeviceArrays)
        for name in SPLITS
        if isinstance(getattr(entry, name), BufferTable)
    }
    sharded = tables | {SPLITS[name] for name in tables}
    specs: list[Any] = [PartitionSpec(AXIS) if name in sharded else PartitionSpec() for name in DeviceArrays._fields]
    array_specs = DeviceArrays(*specs)
    return tuple(array_specs if isinstance(entry, DeviceArrays) else PartitionSpec() for entry in shared)


class SizeBound:
    """Bounds on the examples of a round's clients.

    >>> from fedjax_core.engine.client_sampling import FixedSampler
    >>> same_sizes = SizeBound(np.full(1000, 7), FixedSampler(10, 1000))
    >>> same_sizes.total(), same_sizes.largest(3)
    (70, 21)
    """

    def __init__(self, sizes: np.ndarray, sampler: ClientSampler):
        """Takes the examples [N] of each client."""
        self._sampler = sampler
        self._sizes, self._counts = np.unique(sizes, return_counts=True)
        step = max(1, -(-int(self._sizes[-1]) // _LEVELS))
        self._levels, inverse = np.unique(-(-self._sizes // step) * step, return_inverse=True)
        self._level_counts = np.bincount(inverse, self._counts)

    def total(self) -> int:
        """Returns a bound on the examples of all of them together."""
        return min(self._sum_of_largest(self._sampler.slots), self._bound_excess(0))

    def largest(self, number: int) -> int:
        """Returns a bound on the examples of any `number` of them.

        Of any k clients they are at most k c + sum max(size - c, 0), for every c.
        """
        indices = np.linspace(0, len(self._levels) - 1, _THRESHOLDS).astype(int)
        bounds = [number * int(c) + self._bound_excess(int(c)) for c in np.unique(self._levels[indices])]
        return min(self._sum_of_largest(min(number, self._sampler.slots)), *bounds, self.total())

    def _sum_of_largest(self, number: int) -> int:
        """Returns the examples of the `number` clients that have most."""
        counts = self._counts[::-1]
        before = np.cumsum(counts) - counts
        return int(self._sizes[::-1] @ np.clip(number - before, 0, counts))

    def _bound_excess(self, threshold: int) -> int:
        """Returns what sum max(size - threshold, 0) over a round's clients exceeds with probability below `OVERFLOW`."""
        excess = np.maximum(self._levels - threshold, 0).astype(np.float64)
        if not excess[-1]:
            return 0
        exponents = _EXPONENTS[:, None] / excess[-1]
        logs = self._sampler.log_moments(exponents, excess, self._level_counts)
        return int(np.ceil(((logs - np.log(OVERFLOW)) / exponents[:, 0]).min()))


def round_capacity(spec: SimulationSpec, sizes: np.ndarray, is_dealt: bool) -> int:
    """Returns the capacity of a device's shard of a round's buffer.

    Args:
      sizes: [N] each client's examples that rounds read.
      is_dealt: whether clients are dealt to devices by these sizes.
    """
    shards = spec.plan.client_shards
    if shards == 1:
        return 1 + SizeBound(sizes, spec.sampler).total()
    capacity = 1
    for g, group in enumerate(spec.groups):
        group_sizes = np.zeros_like(sizes)
        group_sizes[group.clients] = sizes[group.clients]
        bound, plan = SizeBound(group_sizes, spec.sampler), spec.plan_of(g)
        clients = -(-min(spec.sampler.slots, len(group.clients)) // (plan.chunk * shards)) * plan.chunk
        most = bound.largest(clients)
        if is_dealt:
            most = min(most, -(-bound.total() // shards) + bound.largest(plan.chunk))
        capacity += most
    return capacity


def blocks_capacity(tables: Sequence[IndexTable], blocks: Sequence[np.ndarray], shards: int) -> int:
    """Returns the capacity of a shard for each block of clients [C]; N for an empty slot."""
    return 1 + max(int(count_examples(tables, split_by_device([ids], shards)).max()) for ids in blocks)
