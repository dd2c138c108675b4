"""Tables of clients' rows as a program reads them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array
from fedjax_core.data.ragged_index import RowLists


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowTable:
    """`RowLists` for programs: `table[i]` is client i's list [M], filled up.

    Attributes:
      rows: [R + M] int32, all lists one after another, and M zeros.
      start, size: [N] int32.
      most: M, rows of the longest list, at least 1.
      filler: the row that lists are filled up with.
    """

    rows: Array | np.ndarray
    start: Array | np.ndarray
    size: Array | np.ndarray
    most: int = dataclasses.field(metadata={"static": True})
    filler: int = dataclasses.field(default=0, metadata={"static": True})

    def __getitem__(self, i: Array | int) -> Array:
        mine = jax.lax.dynamic_slice(jnp.asarray(self.rows), (jnp.asarray(self.start)[i],), (self.most,))
        return jnp.where(jnp.arange(self.most) < jnp.asarray(self.size)[i], mine, self.filler)


def table(lists: RowLists) -> RowTable:
    """On the host; the lists' rows lie in the table's."""
    most = max(1, int(lists.size.max(initial=0)))
    return RowTable(lists.followed(most), lists.start, lists.size, most)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SlabTable:
    """`RowTable` of few clients, whose rows lie one client after another in a slab. Its row 0 is what lists are filled up with.

    Attributes:
      ids: [C] int32 the clients; N for an empty place.
      start, size: [C] int32.
      most: M.
    """

    ids: Array | np.ndarray
    start: Array | np.ndarray
    size: Array | np.ndarray
    most: int = dataclasses.field(metadata={"static": True})

    def __getitem__(self, i: Array | int) -> Array:
        at, places = jnp.argmax(jnp.asarray(self.ids) == i), jnp.arange(self.most)
        return jnp.where(places < jnp.asarray(self.size)[at], jnp.asarray(self.start)[at] + places, 0)
