"""A group's client states on the disk: one sparse file per leaf, so that untouched clients cost nothing."""

import errno
import math
import os
import tempfile
import weakref
from typing import Any

import jax
import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.engine.client_state.host_store import HostStore, IsLocal

READ_BYTES = 2**30  # of one system call, which transfers at most 2 GiB


class DiskStore(HostStore):
    """A `HostStore` in files without names, which end with the process; checkpoints outlive it."""

    def __init__(self, n: int, like: PyTree, is_local: IsLocal | None = None):
        """Creates the files.

        Raises:
          OSError: they cannot be created; one line.
        """
        self._reset(n, is_local)
        leaves, self._structure = jax.tree.flatten(like)
        self._columns = [_Column(n, leaf) for leaf in leaves]

    @property
    def rows(self) -> PyTree:
        """All states, read from the files."""
        return self._read(np.arange(len(self.touched)))

    def read(self, slots: np.ndarray) -> tuple[PyTree, np.ndarray]:
        slots = np.minimum(slots, len(self.touched) - 1)
        return self._read(slots), self.touched[slots]

    def put(self, slots: np.ndarray, rows: PyTree) -> None:
        for column, new in zip(self._columns, jax.tree.leaves(rows), strict=True):
            column.write(slots, new)

    def _read(self, slots: np.ndarray) -> PyTree:
        return self._structure.unflatten([column.read(slots) for column in self._columns])


class _Column:
    """One leaf of all clients, [n, ...], in a file."""

    def __init__(self, n: int, like: Any):
        self.shape, self.dtype = tuple(like.shape), np.dtype(like.dtype)
        self.bytes = math.prod(self.shape) * self.dtype.itemsize
        try:
            self._handle, name = tempfile.mkstemp(prefix="fedjax-states-")
            os.unlink(name)
        except OSError as error:
            raise _write_error(error) from error
        weakref.finalize(self, os.close, self._handle)
        os.ftruncate(self._handle, n * self.bytes)

    def read(self, slots: np.ndarray) -> np.ndarray:
        out = np.zeros((len(slots), *self.shape), self.dtype)
        if not self.bytes:
            return out
        target = out.reshape(-1).view(np.uint8).data
        for index, slot in enumerate(slots.tolist()):
            rest, offset = target[index * self.bytes : (index + 1) * self.bytes], slot * self.bytes
            while len(rest):
                try:
                    number = os.preadv(self._handle, [rest[:READ_BYTES]], offset)
                except OSError as error:
                    raise _read_error(error.errno, error.strerror) from error
                if not number:
                    raise _read_error(errno.EIO, "their file has become shorter")
                rest, offset = rest[number:], offset + number
        return out

    def write(self, slots: np.ndarray, rows: np.ndarray) -> None:
        if not self.bytes:
            return
        source = np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8).data
        for index, slot in enumerate(slots.tolist()):
            rest, offset = source[index * self.bytes : (index + 1) * self.bytes], slot * self.bytes
            while len(rest):
                try:
                    number = os.pwrite(self._handle, rest[:READ_BYTES], offset)
                except OSError as error:
                    raise _write_error(error) from error
                rest, offset = rest[number:], offset + number


def _read_error(number: int | None, reason: str | None) -> OSError:
    return OSError(number, f"cannot read client states that are kept in {tempfile.gettempdir()}: {reason}")


def _write_error(error: OSError) -> OSError:
    return OSError(error.errno, f"cannot keep client states in {tempfile.gettempdir()}: {error.strerror}")
