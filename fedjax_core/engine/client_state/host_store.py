"""Client states: how they begin, and where they are kept, on the devices or on the host."""

import math
import mmap
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, Array, PyTree
from fedjax_core.engine.federation import Federation, Held, key
from fedjax_core.engine.shares import Shares

Keeps = Callable[[np.ndarray], np.ndarray]
PART = 2**28  # bytes of client states in one file of a checkpoint


class Piece(NamedTuple):
    """Client states that are written into one part of a checkpoint; of several processes each has a file of it, for its share.

    Attributes:
      group: whose.
      places: [n] int32, ascending, in the group's store.
    """

    group: int
    places: np.ndarray


def initial(fed: Federation, g: int, held: Held, server: PyTree, of_run: Array) -> PyTree:
    """States [n, ...] of all clients of group g before round 1."""
    init = fed.algorithm(g, held, 0).client_init
    ids = jnp.asarray(fed.groups[g].clients, jnp.int32)
    return jax.lax.map(lambda i: init(key(of_run, "init", 0), server, i), ids)


def begun(fed: Federation, g: int, held: Held, server: PyTree, of_run: Array, ids: Array, rows: PyTree, touched: Array) -> PyTree:
    """Client states [C, ...], made anew from the initial `server` where they were never touched."""
    algorithm = fed.algorithm(g, held, 0)
    return jax.lax.map(lambda entry: begun_one(algorithm, server, of_run, *entry), (ids, rows, touched))


def begun_one(algorithm: Algorithm, server: PyTree, of_run: Array, i: Array, row: PyTree, touched: Array) -> PyTree:
    """A client's state, made anew from the initial `server` if it was never touched."""
    return jax.lax.cond(touched, lambda: row, lambda: algorithm.client_init(key(of_run, "init", 0), server, i))


def gather(store: PyTree, places: Array) -> PyTree:
    """Rows of a store with leaves [n, ...]; places beyond n read the last row."""
    return jax.tree.map(lambda x: jnp.take(x, places, axis=0, mode="clip"), store)


def scatter(store: PyTree, places: Array, rows: PyTree) -> PyTree:
    """Writes rows back; places beyond n are dropped."""
    return jax.tree.map(lambda x, r: x.at[places].set(r, mode="drop"), store, rows)


class HostStore:
    """Client states on the host, for populations that do not fit the device. Untouched clients cost nothing.

    Attributes:
      rows: leaves [n, ...], NumPy; a row counts only if it is touched.
      touched: [n] bool.
      changed: [n] bool, which were written since they were last saved.
      part: [n] int32, of those that were not, the number of the checkpoint's part that has them.
      keeps: places [C] -> [C] bool, whether the rows are kept here; None: all are. All processes know of all clients what was
        touched and has changed.
    """

    def __init__(self, n: int, like: PyTree, keeps: Keeps | None = None):
        self.rows = jax.tree.map(lambda s: _zeros((n, *s.shape), s.dtype), like)
        self._begin(n, keeps)

    def _begin(self, n: int, keeps: Keeps | None) -> None:
        """Nothing is touched yet."""
        self.touched, self.changed, self.part, self.keeps = np.zeros(n, bool), np.zeros(n, bool), np.zeros(n, np.int32), keeps

    def read(self, places: np.ndarray) -> tuple[PyTree, np.ndarray]:
        """(rows, touched) at the given places; those beyond n read the last row."""
        places = np.minimum(places, len(self.touched) - 1)
        return jax.tree.map(lambda x: x[places], self.rows), self.touched[places]

    def known(self, places: np.ndarray) -> np.ndarray:
        """Which of these places were touched, in any process."""
        return self.touched[np.minimum(places, len(self.touched) - 1)]

    def write(self, places: np.ndarray, rows: PyTree, there: np.ndarray) -> None:
        """Writes the rows [C, ...] of the clients that were there [C], as far as they are kept here."""
        mine = there if self.keeps is None else there & self.keeps(places)
        self.put(places[mine], jax.tree.map(lambda new: np.asarray(new)[mine], rows))
        self.touch(places[there])

    def put(self, places: np.ndarray, rows: PyTree) -> None:
        """Writes rows [n, ...]."""
        for x, new in zip(jax.tree.leaves(self.rows), jax.tree.leaves(rows), strict=True):
            x[places] = new

    def touch(self, places: np.ndarray) -> None:
        """These have been written, here or in the process that keeps them."""
        self.touched[places] = self.changed[places] = True

    def packed(self) -> PyTree:
        """What a checkpoint keeps: the touched rows and their places."""
        places = np.flatnonzero(self.touched).astype(np.int32)
        return {"places": places, "rows": jax.tree.map(lambda x: x[places], self.rows)}

    def unpack(self, packed: PyTree) -> None:
        """The inverse of `packed`."""
        self.touched[:] = False
        there = np.ones(len(packed["places"]), bool)
        self.write(np.asarray(packed["places"]), jax.tree.map(np.asarray, packed["rows"]), there)


class OnHost:
    """All client states of a simulation, on the host or on the disk; of several processes each keeps its share.

    Attributes:
      initial: the server's state before round 1, from which untouched clients begin.
      stores: per group.
      shares: per group, who keeps whose; None on one process.
    """

    def __init__(self, initial: PyTree, stores: Sequence[HostStore], shares: Sequence[Shares] | None = None):
        self.initial, self.stores, self.shares = initial, list(stores), shares

    def touched(self) -> list[int]:
        """Per group, how many clients were touched."""
        return [int(store.touched.sum()) for store in self.stores]

    def packed(self) -> PyTree:
        """What a checkpoint keeps.

        Raises:
          ValueError: several processes keep them: `parts` gives the share of each.
        """
        if self.shares is not None:
            raise ValueError("client states of several processes are in no one's snapshot; their checkpoints have all of them")
        return {"initial": jax.device_get(self.initial), "stores": [store.packed() for store in self.stores]}

    def unpack(self, packed: PyTree) -> None:
        """The inverse of `packed`, but for `initial`."""
        for store, each in zip(self.stores, packed["stores"], strict=True):
            store.unpack(each)

    @property
    def most(self) -> int:
        """Bytes of a piece, or one row."""
        return PART * (1 if self.shares is None else jax.process_count())

    def changed(self) -> int:
        """Bytes of the states that changed since they were last saved, in all processes."""
        return sum(int(store.changed.sum()) * _row_bytes(store) for store in self.stores)

    def live(self) -> dict[int, int]:
        """By the number of a part of the last checkpoint, bytes of the states that are still as they stand there, in all
        processes. A part that has none is not there."""
        found: Counter[int] = Counter()
        for store in self.stores:
            rows = np.bincount(store.part[store.touched & ~store.changed])
            found.update({int(number): int(rows[number]) * _row_bytes(store) for number in np.flatnonzero(rows)})
        return dict(found)

    def pieces(self, again: Collection[int] | None) -> list[Piece]:
        """The states that changed, and those that stand in the parts `again` of the last checkpoint; None: all that were touched.
        Each piece has at most `most` bytes. All processes find the same."""
        found: list[Piece] = []
        for g, store in enumerate(self.stores):
            chosen = store.touched if again is None else store.changed
            chosen = chosen | (store.touched & np.isin(store.part, list(again))) if again else chosen
            places, each = np.flatnonzero(chosen).astype(np.int32), max(1, self.most // _row_bytes(store))
            found += [Piece(g, places[begin : begin + each]) for begin in range(0, len(places), each)]
        return found

    def parts(self, pieces: Sequence[Piece]) -> Iterator[dict[str, np.ndarray]]:
        """The states of each piece as named arrays: what `take` takes. Of several processes each gives its share."""
        for g, places in pieces:
            mine = places if self.shares is None else places[self.shares[g].writes(places)]
            leaves = jax.tree.leaves(self.stores[g].read(mine)[0])
            yield {f"{g}/places": mine} | {f"{g}/{at:05d}": leaf for at, leaf in enumerate(leaves)}

    def wanted(self, part: Mapping[str, np.ndarray]) -> list[str]:
        """Names of what `take` looks at of a part: of rows that are not kept here, whose they are."""
        (name,) = [name for name in part if name.endswith("/places")]
        keeps = self.stores[int(name.partition("/")[0])].keeps
        return list(part) if keeps is None or keeps(part[name]).any() else [name]

    def take(self, of: int, part: Mapping[str, np.ndarray]) -> None:
        """The inverse of one of `parts`, in their order; `of`: its number in the checkpoint.

        Raises:
          ValueError: it is of other states.
        """
        (name,) = [name for name in part if name.endswith("/places")]
        store = self.stores[int(name.partition("/")[0])]
        number = len(part[name])
        leaves, structure = jax.tree.flatten(store.read(part[name][:0])[0])
        found = [part.get(f"{name.partition('/')[0]}/{at:05d}") for at in range(len(leaves))]
        for mine, theirs in zip(leaves, found, strict=True):
            wanted = (number, *mine.shape[1:]), mine.dtype
            if theirs is None or wanted != (theirs.shape, theirs.dtype) or len(part) != len(leaves) + 1:
                raise ValueError("a checkpoint's client states are of another method or model than this run's")
        store.write(np.asarray(part[name]), structure.unflatten(found), np.ones(number, bool))
        store.part[part[name]] = of

    def saved(self, pieces: Sequence[Piece] = (), first: int = 0) -> None:
        """Nothing has changed since this moment. `pieces`: what was written for it, into parts with the numbers from `first`."""
        for number, (g, places) in enumerate(pieces, first):
            self.stores[g].part[places] = number
        for store in self.stores:
            store.changed[:] = False


def like_packed(server: PyTree, clients: Sequence[PyTree], touched: Sequence[int]) -> PyTree:
    """Shapes of `OnHost.packed`, from those of the server's state and of one client's of each group."""
    stores = [
        {
            "places": jax.ShapeDtypeStruct((n,), jnp.int32),
            "rows": jax.tree.map(lambda s, n=n: jax.ShapeDtypeStruct((n, *s.shape), s.dtype), client),
        }
        for n, client in zip(touched, clients, strict=True)
    ]
    return {"initial": server, "stores": stores}


def _row_bytes(store: HostStore) -> int:
    """Of one client's state, and its place."""
    return np.dtype(np.int32).itemsize + sum(leaf.nbytes for leaf in jax.tree.leaves(store.read(np.zeros(1, np.int32))[0]))


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros whose pages cost nothing until they are written, even if there are more of them than memory."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if sys.platform != "linux" or not size:
        return np.zeros(shape, dtype)
    unreserved = getattr(mmap, "MAP_NORESERVE", 0x4000)  # or the kernel refuses at once what could never be filled
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | unreserved)
    return np.frombuffer(memory, dtype).reshape(shape)
