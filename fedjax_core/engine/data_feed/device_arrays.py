"""The arrays that every round reads, and clients' index lists in a form that programs read."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, ClientSettings, Examples, PyTree
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.training.few_shot import EpisodeSampler


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class IndexTable:
    """Clients' lists of examples (`RaggedIndex`) for programs: `table[i]` is client i's list [M], padded.

    Attributes:
      rows: [R + M] int32, all lists one after another, then M zeros.
      start, size: [N] int32.
      most: M, the length of the longest list, at least 1.
      filler: the index that lists are padded with.
    """

    rows: Array | np.ndarray
    start: Array | np.ndarray
    size: Array | np.ndarray
    most: int = dataclasses.field(metadata={"static": True})
    filler: int = dataclasses.field(default=0, metadata={"static": True})

    def __getitem__(self, i: Array | int) -> Array:
        indices = jax.lax.dynamic_slice(jnp.asarray(self.rows), (jnp.asarray(self.start)[i],), (self.most,))
        return jnp.where(jnp.arange(self.most) < jnp.asarray(self.size)[i], indices, self.filler)


def make_index_table(lists: RaggedIndex) -> IndexTable:
    """Returns the table of some lists, on the host; it shares their memory."""
    most = max(1, int(lists.size.max(initial=0)))
    return IndexTable(lists.append_zeros(most), lists.start, lists.size, most)


class Participation(NamedTuple):
    """Arrays of the clients' devices that a round's program reads; None for those that it does not need.

    Attributes:
      failure: [N] float32, probability to fail in a round.
      availability: `Availability.arrays`.
      is_late: [N] bool, whose rounds take longer than the deadline.
      rank: [N] int32, of the clients by the seconds of their rounds; by id where these are equal.
      seconds: [N] float32, of their rounds, for a sampler.
      awaited: [slots + 1] int32, how many clients the server waits for, by how many are sampled.
    """

    failure: Any = None
    availability: Any = None
    is_late: Any = None
    rank: Any = None
    seconds: Any = None
    awaited: Any = None


class DeviceArrays(NamedTuple):
    """Arrays that all rounds read and none changes: arguments of every program, never constants in it.

    Attributes:
      tasks: per group, what `Task.bind` takes.
      slots: per group, [N + 1], each client's slot in the group's store; the store's length for clients of other
        groups.
      train, test: the data sets.
      index, size: `index[i]` [M] is client i's examples of `train`, [N] how many it has; `test_index`, `test_size`:
        of `test`.
      tests: indices of the test episodes (`EpisodeSampler.draw_test_episodes`); `()` without episodes.
      validation_index, validation_size: each client's validation examples of `train`; validation_rows: [V] those of
        all clients; `()` without such.
      unseen_index, unseen_size, unseen_test_index, unseen_test_size: of the unseen clients; `()` without such.
      participation: of the clients' devices; None without such.
      arrivals: of the coming rounds (`asynchronous.py`); `()` where rounds are synchronous.
      settings: `ClientSettings` [N] of local training by client, `batch` [N + 1] with the method's own last, for unseen
        clients; None without such.
    """

    tasks: tuple[PyTree, ...]
    slots: tuple[Any, ...]
    train: Examples
    index: IndexTable
    size: Any
    test: Examples
    test_index: IndexTable
    test_size: Any
    tests: Any = ()
    validation_index: Any = ()
    validation_size: Any = ()
    validation_rows: Any = ()
    unseen_index: Any = ()
    unseen_size: Any = ()
    unseen_test_index: Any = ()
    unseen_test_size: Any = ()
    participation: Participation | None = None
    arrivals: Any = ()
    settings: ClientSettings | None = None


def make_host_arrays(
    clients: Sequence[np.ndarray], tasks: tuple[PyTree, ...], data: FederatedData, episodes: EpisodeSampler | None
) -> DeviceArrays:
    """Returns the arrays that all rounds read, on the host.

    Args:
      clients: per group, the ids [n] of its clients.
    """
    population = len(data.train_index)
    slots = tuple(np.full(population + 1, len(ids), np.int32) for ids in clients)
    for slots_of_group, ids in zip(slots, clients, strict=True):
        slots_of_group[ids] = np.arange(len(ids))
    tests = () if episodes is None else episodes.draw_test_episodes(np.asarray(data.test.y))
    train_table, test_table = _tabulate(data.train_index), _tabulate(data.test_index)
    arrays = DeviceArrays(tasks, slots, data.train, *train_table, data.test, *test_table, tests)
    if data.unseen is not None:
        index, size = _tabulate(data.unseen.train_index)
        test_index, test_size = _tabulate(data.unseen.test_index)
        arrays = arrays._replace(unseen_index=index, unseen_size=size, unseen_test_index=test_index, unseen_test_size=test_size)
    validation = RaggedIndex.from_lists(data.validation_index)
    if not validation.total:
        return arrays
    return arrays._replace(
        validation_index=make_index_table(validation),
        validation_size=validation.size,
        validation_rows=np.unique(validation.concatenate()),
    )


def _tabulate(lists: Any) -> tuple[IndexTable, np.ndarray]:
    """Returns the table of some lists, and their sizes."""
    lists = RaggedIndex.from_lists(lists)
    return make_index_table(lists), lists.size
