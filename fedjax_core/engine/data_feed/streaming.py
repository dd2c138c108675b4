"""How programs get clients' examples: all data on the devices, or a cohort buffer for each program.

A program finds the examples of its clients in a buffer by a `BufferTable` in place of an `IndexTable`. Examples,
random draws and all numbers are the same. Cohorts follow from (seed, round) alone: the buffers of coming rounds are
packed, and put on the devices, in a thread while the devices train.
"""

import concurrent.futures
import copy
import functools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import jax
import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.data.row_readers import ExampleReader
from fedjax_core.engine.data_feed import cohort_buffer
from fedjax_core.engine.data_feed.cohort_buffer import SPLITS
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.sharding import mesh as meshes
from fedjax_core.engine.sharding.data_placement import make_shareable
from fedjax_core.engine.simulation_spec import SimulationSpec

T = TypeVar("T")
PREFETCH_DEPTH = 2  # results that are computed before they are needed
TEST_BYTES = 2**26  # of the test examples that are scored at once, on each device


class DataFeed:
    """The arrays of one simulation under one plan, put on its devices when they are first needed.

    Data are on the devices all the time, or are streamed from the host or the disk: then programs read cohort buffers.

    Attributes:
      streamed: the splits that are streamed: none, {"train"}, or {"train", "test"} unless the whole test set stays.
    """

    def __init__(self, spec: SimulationSpec, shardings: Any, draw: Any):
        """Puts nothing on a device.

        Args:
          draw: `rounds.draw_cohorts`, compiled.
        """
        needs_whole_test = spec.episodes is not None or "all" in spec.evaluation.scopes
        splits = ("train",) if needs_whole_test else ("train", "test")
        self.streamed = frozenset(splits if spec.readers else ())
        self._spec, self._shardings, self._draw = spec, shardings, draw
        self._on_device: DeviceArrays | None = None
        self._lender: DataFeed | None = None
        self._capacities: dict[tuple[str, ...], int] = {}  # of rounds, by the tables that they use
        self._run: tuple[DeviceArrays, np.ndarray, Any] | None = None  # device arrays, key data on the host, on the devices
        self._drawn: tuple[int, Any] | None = None  # a round and its draw, dispatched
        self._prefetcher = Prefetcher(self._make_round)

    def as_replica(self) -> "DataFeed":
        """Returns the feed of one of several runs, for resident data; the arrays are on the devices once."""
        replica = copy.copy(self)
        replica._on_device, replica._lender = None, self
        return replica

    @property
    def on_host(self) -> DeviceArrays:
        """What is on the devices all the time, on the host, with zeros in place of deferred arrays."""
        removed: dict[str, Any] = {name: () for name, split in SPLITS.items() if split in self.streamed}
        return self._spec.host_arrays._replace(**removed | dict.fromkeys(self.streamed, ()))

    @property
    def on_device(self) -> DeviceArrays:
        """What is on the plan's devices all the time: data, unless streamed, and frozen and public arrays."""
        if self._on_device is not None:
            return self._on_device
        if self._lender is not None:
            arrays = self._lender.on_device
        else:
            arrays = make_shareable(self.on_host._replace(tasks=self._spec.tasks), self._spec.mesh)
            arrays = meshes.put(arrays, self._spec.mesh, self._shardings)
        self._on_device = arrays
        return arrays

    @property
    def is_on_device(self) -> bool:
        """Whether the arrays have been put on the devices."""
        return self._on_device is not None

    def release(self) -> None:
        """Takes the arrays off the devices, until they are needed again."""
        self._on_device = None

    def for_round(self, key: PyTree, round_num: PyTree, scored: bool) -> DeviceArrays:
        """Returns what the round after `round_num` reads, and begins to pack for coming rounds."""
        arrays = self.on_device
        if not self.streamed:
            return arrays
        key, round_num = np.asarray(jax.device_get(key)), int(jax.device_get(round_num))
        if self._run is None or self._run[0] is not arrays or not np.array_equal(self._run[1], key):
            self._prefetcher.close()
            self._run, self._drawn = (arrays, key, self._put(key)), None
        cohort, round_arrays = self._prefetcher.get(round_num)
        if jax.process_count() > 1:  # the next draw, before this round: a device runs one program after another
            drawn = self._draw(arrays, self._run[2], self._put(np.int32(round_num + 1)))
            self._drawn = round_num + 1, drawn
        return self.for_cohort(round_arrays, cohort, ["test_index"]) if scored else round_arrays

    def _make_round(self, round_num: int) -> tuple[list[np.ndarray], DeviceArrays]:
        assert self._run is not None
        (arrays, _, key), begun = self._run, self._drawn
        drawn = begun[1] if begun and begun[0] == round_num else self._draw(arrays, key, self._put(np.int32(round_num)))
        population = len(self._spec.host_arrays.size)
        cohorts = [cohort for cohort, _ in jax.device_get(drawn)]
        ids = [np.where(cohort.examples > 0, cohort.ids, population).astype(np.int32) for cohort in cohorts]
        return ids, self.for_cohort(arrays, ids, ["index"])

    def for_cohort(self, arrays: DeviceArrays, cohort: Sequence[np.ndarray], tables: Sequence[str]) -> DeviceArrays:
        """Returns the arrays with what a round of these clients reads that uses these tables.

        `cohort`: ids [C] of each group, in the order of the plan; N for an empty slot.
        """
        for split, names in self._tables_by_split(tables):
            ids = cohort_buffer.split_by_device(cohort, self._spec.plan.client_shards)
            needed = 1 + int(cohort_buffer.count_examples(self._tables(names), ids).max())
            arrays = self._with_buffer(arrays, split, names, ids, max(self._round_capacity(names), needed))
        return arrays

    def for_client(self, client: int) -> DeviceArrays:
        """Returns what a program about one client's training examples reads: the same on all devices."""
        arrays = self.on_device
        for split, names in self._tables_by_split(["index"]):
            capacity = sum(table.most for table in self._tables(names)) + 1
            arrays = self._with_buffer(arrays, split, names, np.array([[client]], np.int32), capacity)
        return arrays

    def for_blocks(self, blocks: Sequence[np.ndarray], tables: Sequence[str]) -> Iterator[DeviceArrays]:
        """Yields what a program about clients of one group reads, for each block of them.

        Each is made while its predecessor is in use. `blocks`: ids [C]; N for an empty slot.
        """
        arrays, shards, by_split = self.on_device, self._spec.plan.client_shards, self._tables_by_split(tables)
        if not by_split:
            return (arrays for _ in blocks)
        capacities = [cohort_buffer.blocks_capacity(self._tables(names), blocks, shards) for _, names in by_split]

        def make_block(number: int) -> DeviceArrays:
            block_arrays, ids = arrays, cohort_buffer.split_by_device([blocks[number]], shards)
            for (split, names), capacity in zip(by_split, capacities, strict=True):
                block_arrays = self._with_buffer(block_arrays, split, names, ids, capacity)
            return block_arrays

        return prefetch(make_block, len(blocks))

    def _tables_by_split(self, names: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """Returns the tables about each split of the data that is streamed."""
        by_split = {split: tuple(name for name in names if SPLITS[name] == split) for split in sorted(self.streamed)}
        return [(split, names) for split, names in by_split.items() if names]

    def _tables(self, names: Sequence[str]) -> list[Any]:
        return [getattr(self._spec.host_arrays, name) for name in names]

    def _round_capacity(self, names: tuple[str, ...]) -> int:
        """Returns the capacity of a shard for rounds that use these tables."""
        if names not in self._capacities:
            sizes = np.sum([np.asarray(table.size, np.int64) for table in self._tables(names)], axis=0)
            self._capacities[names] = cohort_buffer.round_capacity(self._spec, sizes, is_dealt=names == ("index",))
        return self._capacities[names]

    def _with_buffer(self, arrays: DeviceArrays, split: str, names: Sequence[str], ids: np.ndarray, capacity: int) -> DeviceArrays:
        """Returns the arrays with the examples of clients `ids` [D, C / D] by these tables, on the devices.

        D is 1 for a buffer that all devices hold whole.
        """
        tables, reader = self._tables(names), self._spec.readers[split]
        if len(ids) == 1:
            buffer, buffer_tables = self._put(cohort_buffer.pack(reader, tables, ids[0], capacity))
        else:
            make_shard = functools.cache(lambda d: jax.tree.leaves(cohort_buffer.pack(reader, tables, ids[d], capacity)))
            shapes = cohort_buffer.abstract_buffer(reader.like, tables, ids.shape, capacity)
            buffer, buffer_tables = meshes.assemble_shards(shapes, self._spec.mesh, make_shard)
        return arrays._replace(**{split: buffer}, **dict(zip(names, buffer_tables, strict=True)))

    def _put(self, tree: PyTree) -> PyTree:
        return meshes.put(tree, self._spec.mesh)

    def prefetch_bytes(self, arrays: DeviceArrays) -> int:
        """Returns the bytes on each device that coming rounds take while one trains that reads `arrays`."""
        if not self.streamed:
            return 0
        coming = PREFETCH_DEPTH + 1  # those that are ready, and the next one, which has begun
        shard_bytes = lambda leaf: math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        return coming * sum(map(shard_bytes, jax.tree.leaves((arrays.train, arrays.index))))

    def abstract_buffers(self, tables: Sequence[str], blocks: Sequence[np.ndarray] | None = None) -> dict[str, PyTree]:
        """Returns the fields of `DeviceArrays` that `for_cohort`, or `for_blocks` of these blocks, replaces.

        They are shapes with their shardings: nothing is read or put on a device.
        """
        spec, fields = self._spec, {}
        shards = spec.plan.client_shards
        sharding = meshes.replicated(spec.mesh) if shards == 1 else meshes.client_sharded(spec.mesh)
        for split, names in self._tables_by_split(tables):
            if blocks is None:
                capacity, number = self._round_capacity(names), sum(map(spec.group_slots, range(len(spec.groups))))
            else:
                capacity = cohort_buffer.blocks_capacity(self._tables(names), blocks, shards)
                number = len(blocks[0])
            buffer, buffer_tables = cohort_buffer.abstract_buffer(
                spec.readers[split].like, self._tables(names), (shards, number // shards), capacity
            )
            with_sharding = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
            fields |= jax.tree.map(with_sharding, {split: buffer, **dict(zip(names, buffer_tables, strict=True))})
        return fields

    def server_batches(self, split: str, indices: np.ndarray | None, batch: int, devices: int) -> "ServerBatches":
        """Returns a split's examples, or those at `indices`, in batches for the server's model."""
        reader = self._spec.readers[split]
        if indices is None:
            indices = np.arange(len(jax.tree.leaves(reader.like)[0]), dtype=np.int32)
        return ServerBatches(reader, indices, batch, devices, self._put)

    def close(self) -> None:
        """Ends the thread, and drops what it has put on the devices for coming rounds."""
        self._prefetcher.close()
        self._run = self._drawn = None


class ServerBatches:
    """Examples in blocks of batches, for the server's model.

    Each device (with `plan.model`, those that hold one network together) has the batches that it has where all
    examples are resident, in the same order: the sums are equal bit for bit.

    Attributes:
      num_examples: in all.
      batch: examples at once.
      devices: over which each block's batches are spread.
      batches_per_device: in all blocks.
      batches_per_block: of a device.
    """

    def __init__(self, reader: ExampleReader, indices: np.ndarray, batch: int, devices: int, put: Callable[[PyTree], PyTree]):
        self._reader, self._indices, self._put, self.devices = reader, indices, put, devices
        self.num_examples, self.batch = len(indices), max(1, min(batch, len(indices)))
        self.batches_per_device = math.ceil(math.ceil(len(indices) / self.batch) / devices)
        most = max(1, TEST_BYTES // max(1, self.batch * reader.row_bytes * devices))
        blocks = max(1, math.ceil(self.batches_per_device / most))
        self.batches_per_block = max(1, math.ceil(self.batches_per_device / blocks))

    def __iter__(self) -> Iterator[tuple[PyTree, PyTree]]:
        """Yields (examples [n * B], index [n] of each batch's first example), on the devices."""
        return prefetch(self._make_block, -(-self.batches_per_device // self.batches_per_block))

    def _make_block(self, number: int) -> tuple[PyTree, PyTree]:
        batches = number * self.batches_per_block + np.arange(self.batches_per_block)
        in_order = np.arange(self.devices)[:, None] * self.batches_per_device
        in_order = in_order + np.minimum(batches, self.batches_per_device)
        first = np.where(batches < self.batches_per_device, in_order * self.batch, len(self._indices))
        first = first.reshape(-1).astype(np.int32)
        index = (first[:, None] + np.arange(self.batch)).reshape(-1)
        indices = np.where(index < len(self._indices), self._indices[np.minimum(index, len(self._indices) - 1)], 0)
        return self._put((self._reader.read_padded(indices, len(indices)), first))


class Prefetcher(Generic[T]):
    """Computes results for the numbers n, n + 1, ... in a thread, a few before they are needed.

    An error is raised where its number is needed. On several processes nothing is computed ahead:
    all processes must start programs in the same order.
    """

    def __init__(self, make: Callable[[int], T]):
        """Starts nothing. `make`: number -> result; called for the numbers that follow a `get`."""
        self._make = make
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._pending: deque[tuple[int, concurrent.futures.Future[T]]] = deque()

    def get(self, number: int) -> T:
        """Returns `make(number)`, and begins those that follow."""
        if jax.process_count() > 1:
            return self._make(number)
        if not self._pending or self._pending[0][0] != number:
            self.close()
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "examples of coming rounds")
        while len(self._pending) <= PREFETCH_DEPTH:
            following = number + len(self._pending)
            self._pending.append((following, self._thread.submit(self._make, following)))
        try:
            result = self._pending[0][1].result()
        except BaseException:
            self.close()
            raise
        self._pending.popleft()
        return result

    def close(self) -> None:
        """Ends the thread after its current result; `get` starts a new one."""
        self._pending.clear()
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None


def prefetch(make: Callable[[int], T], count: int) -> Iterator[T]:
    """Yields `make(0)` ... `make(count - 1)`, each computed while its predecessor is in use."""
    prefetcher = Prefetcher(lambda i: make(i) if i < count else None)
    try:
        for i in range(count):
            result = prefetcher.get(i)
            assert result is not None
            yield result
    finally:
        prefetcher.close()
