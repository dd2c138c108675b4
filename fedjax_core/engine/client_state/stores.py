"""A group's client states on the host, in memory or on the disk, and how states begin."""

import errno
import math
import mmap
import sys
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, Array, PyTree
from fedjax_core.atomic_files import read_at, write_at
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.simulation_spec import SimulationSpec
from fedjax_core.engine.streams import stream_key

IsLocal = Callable[[np.ndarray], np.ndarray]  # slots [C] -> [C] bool, whether this process stores them


def init_client_states(spec: SimulationSpec, g: int, arrays: DeviceArrays, server: PyTree, key_data: Array) -> PyTree:
    """Returns the states [n, ...] of all clients of group g before round 1."""
    init = spec.algorithm(g, arrays, 0).client_init
    ids = jnp.asarray(spec.groups[g].clients, jnp.int32)
    return jax.lax.map(lambda i: init(stream_key(key_data, "init", 0), server, i), ids)


def init_untouched(
    spec: SimulationSpec,
    g: int,
    arrays: DeviceArrays,
    server: PyTree,
    key_data: Array,
    ids: Array,
    states: PyTree,
    touched: Array,
) -> PyTree:
    """Returns states [C, ...], untouched ones initialised from the initial `server`."""
    algorithm = spec.algorithm(g, arrays, 0)
    return jax.lax.map(lambda entry: init_if_untouched(algorithm, server, key_data, *entry), (ids, states, touched))


def init_if_untouched(algorithm: Algorithm, server: PyTree, key_data: Array, i: Array, state: PyTree, touched: Array) -> PyTree:
    """Returns a client's state, initialised from the initial `server` if it was never touched."""
    init = lambda: algorithm.client_init(stream_key(key_data, "init", 0), server, i)
    return jax.lax.cond(touched, lambda: state, init)


def gather(store: PyTree, slots: Array) -> PyTree:
    """Reads states from leaves [n, ...]; slots beyond n read the last one."""
    return jax.tree.map(lambda x: jnp.take(x, slots, axis=0, mode="clip"), store)


def scatter(store: PyTree, slots: Array, states: PyTree) -> PyTree:
    """Writes states back into leaves [n, ...]; slots beyond n are dropped."""
    return jax.tree.map(lambda x, new: x.at[slots].set(new, mode="drop"), store, states)


class HostStore:
    """Client states in memory of the host. Untouched clients cost nothing.

    Attributes:
      states: leaves [n, ...], NumPy; a state counts only if it is touched.
      touched: [n] bool, in any process.
      changed: [n] bool, written since the last checkpoint, in any process.
      part_number: [n] int32, of the others, the number of the checkpoint's part that has them.
      is_local: slots [C] -> [C] bool, whether this process stores them; None: it stores all.
    """

    def __init__(self, n: int, like: PyTree, is_local: IsLocal | None = None):
        self.states = jax.tree.map(lambda s: _lazy_zeros((n, *s.shape), s.dtype), like)
        self._init_marks(n, is_local)

    def _init_marks(self, n: int, is_local: IsLocal | None) -> None:
        """Sets what is known of each state: none is touched."""
        self.touched, self.changed, self.part_number = np.zeros(n, bool), np.zeros(n, bool), np.zeros(n, np.int32)
        self.is_local = is_local

    def read(self, slots: np.ndarray) -> tuple[PyTree, np.ndarray]:
        """Returns (states, touched) at the given slots; those beyond n read the last one."""
        slots = np.minimum(slots, len(self.touched) - 1)
        return self._read(slots), self.touched[slots]

    def _read(self, slots: np.ndarray) -> PyTree:
        return jax.tree.map(lambda x: x[slots], self.states)

    def is_touched(self, slots: np.ndarray) -> np.ndarray:
        """Returns which of these slots were touched, in any process."""
        return self.touched[np.minimum(slots, len(self.touched) - 1)]

    def write(self, slots: np.ndarray, states: PyTree, mask: np.ndarray) -> None:
        """Writes the states [C, ...] where `mask` [C], as far as this process keeps them."""
        chosen = mask if self.is_local is None else mask & self.is_local(slots)
        self.put(slots[chosen], jax.tree.map(lambda new: np.asarray(new)[chosen], states))
        self.touch(slots[mask])

    def put(self, slots: np.ndarray, states: PyTree) -> None:
        """Writes states [n, ...]."""
        for x, new in zip(jax.tree.leaves(self.states), jax.tree.leaves(states), strict=True):
            x[slots] = new

    def touch(self, slots: np.ndarray) -> None:
        """Marks states as written, here or in the process that keeps them."""
        self.touched[slots] = self.changed[slots] = True

    @property
    def state_bytes(self) -> int:
        """Bytes of one client's state and its slot."""
        state = self.read(np.zeros(1, np.int32))[0]
        return np.dtype(np.int32).itemsize + sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def _lazy_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns zeros whose pages cost nothing until they are written, even beyond the memory."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if sys.platform != "linux" or not size:
        return np.zeros(shape, dtype)
    unreserved = getattr(mmap, "MAP_NORESERVE", 0x4000)  # or the kernel refuses at once what could never be filled
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | unreserved)
    return np.frombuffer(memory, dtype).reshape(shape)


class DiskStore(HostStore):
    """A `HostStore` in files without names, which end with the process; checkpoints outlive it."""

    def __init__(self, n: int, like: PyTree, is_local: IsLocal | None = None):
        """Creates the files."""
        self._init_marks(n, is_local)
        leaves, self._structure = jax.tree.flatten(like)
        self._columns = [_Column(n, leaf) for leaf in leaves]

    @property
    def states(self) -> PyTree:
        """All states, read from the files."""
        return self._read(np.arange(len(self.touched)))

    def put(self, slots: np.ndarray, states: PyTree) -> None:
        for column, new in zip(self._columns, jax.tree.leaves(states), strict=True):
            column.write(slots, new)

    def _read(self, slots: np.ndarray) -> PyTree:
        return self._structure.unflatten([column.read(slots) for column in self._columns])


class _Column:
    """One leaf of all clients, [n, ...], in a file."""

    def __init__(self, n: int, like: Any):
        self.shape, self.dtype = tuple(like.shape), np.dtype(like.dtype)
        self.bytes = math.prod(self.shape) * self.dtype.itemsize
        try:
            self._file = tempfile.TemporaryFile(prefix="fedjax-states-")  # noqa: SIM115 (open as long as this object)
            weakref.finalize(self, self._file.close)
            self._file.truncate(n * self.bytes)
        except OSError as error:
            raise _write_error(error) from error

    def read(self, slots: np.ndarray) -> np.ndarray:
        out = np.zeros((len(slots), *self.shape), self.dtype)
        if not self.bytes:
            return out
        target = out.reshape(-1).view(np.uint8).data
        for index, slot in enumerate(slots.tolist()):
            try:
                number = read_at(self._file.fileno(), target[index * self.bytes : (index + 1) * self.bytes], slot * self.bytes)
            except OSError as error:
                raise _read_error(error.errno, error.strerror) from error
            if number < self.bytes:
                raise _read_error(errno.EIO, "their file has become shorter")
        return out

    def write(self, slots: np.ndarray, states: np.ndarray) -> None:
        if not self.bytes:
            return
        source = np.ascontiguousarray(states, self.dtype).reshape(-1).view(np.uint8).data
        for index, slot in enumerate(slots.tolist()):
            try:
                write_at(self._file.fileno(), source[index * self.bytes : (index + 1) * self.bytes], slot * self.bytes)
            except OSError as error:
                raise _write_error(error) from error


def _read_error(number: int | None, reason: str | None) -> OSError:
    return OSError(number, f"cannot read client states that are kept in {tempfile.gettempdir()}: {reason}")


def _write_error(error: OSError) -> OSError:
    return OSError(error.errno, f"cannot keep client states in {tempfile.gettempdir()}: {error.strerror}")
