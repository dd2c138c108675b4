"""Client states on the disk: one file per leaf, sparse, so that untouched clients cost nothing."""

import errno
import math
import os
import tempfile
import weakref
from typing import Any

import jax
import numpy as np

from fedjax_core.algorithm import PyTree
from fedjax_core.engine.client_state.host_store import HostStore, Keeps

AT_ONCE = 2**30  # bytes that the system is asked for; it gives no more than 2 GiB
_NO_READING = "cannot read client states that are kept in"


class DiskStore(HostStore):
    """As `HostStore`, in files that have no names and go with the process: a checkpoint is what outlives it."""

    def __init__(self, n: int, like: PyTree, keeps: Keeps | None = None):
        """Makes the files.

        Raises:
          OSError: they cannot be made; one line.
        """
        self._begin(n, keeps)
        leaves, self._structure = jax.tree.flatten(like)
        self._columns = [_Column(n, leaf) for leaf in leaves]

    @property
    def rows(self) -> PyTree:
        """All rows, read."""
        return self._read(np.arange(len(self.touched)))

    def read(self, places: np.ndarray) -> tuple[PyTree, np.ndarray]:
        places = np.minimum(places, len(self.touched) - 1)
        return self._read(places), self.touched[places]

    def put(self, places: np.ndarray, rows: PyTree) -> None:
        for column, new in zip(self._columns, jax.tree.leaves(rows), strict=True):
            column.write(places, new)

    def packed(self) -> PyTree:
        places = np.flatnonzero(self.touched).astype(np.int32)
        return {"places": places, "rows": self._read(places)}

    def _read(self, places: np.ndarray) -> PyTree:
        return self._structure.unflatten([column.read(places) for column in self._columns])


class _Column:
    """A leaf of all clients, [n, ...]."""

    def __init__(self, n: int, like: Any):
        self.shape, self.dtype = tuple(like.shape), np.dtype(like.dtype)
        self.bytes = math.prod(self.shape) * self.dtype.itemsize
        try:
            self._handle, name = tempfile.mkstemp(prefix="fedjax-states-")
            os.unlink(name)
        except OSError as error:
            raise OSError(error.errno, f"cannot keep client states in {tempfile.gettempdir()}: {error.strerror}") from error
        weakref.finalize(self, os.close, self._handle)
        os.ftruncate(self._handle, n * self.bytes)

    def read(self, places: np.ndarray) -> np.ndarray:
        out = np.zeros((len(places), *self.shape), self.dtype)
        if self.bytes:
            into = out.reshape(-1).view(np.uint8).data
            for at, place in enumerate(places.tolist()):
                left, where = into[at * self.bytes : (at + 1) * self.bytes], place * self.bytes
                while len(left):
                    try:
                        number = os.preadv(self._handle, [left[:AT_ONCE]], where)
                    except OSError as error:
                        raise OSError(error.errno, f"{_NO_READING} {tempfile.gettempdir()}: {error.strerror}") from error
                    if not number:
                        raise OSError(errno.EIO, f"{_NO_READING} {tempfile.gettempdir()}: their file has become shorter")
                    left, where = left[number:], where + number
        return out

    def write(self, places: np.ndarray, rows: np.ndarray) -> None:
        if not self.bytes:
            return
        source = np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8).data
        for at, place in enumerate(places.tolist()):
            left, where = source[at * self.bytes : (at + 1) * self.bytes], place * self.bytes
            while len(left):
                try:
                    number = os.pwrite(self._handle, left[:AT_ONCE], where)
                except OSError as error:
                    raise OSError(error.errno, f"cannot keep client states in {tempfile.gettempdir()}: {error.strerror}") from error
                left, where = left[number:], where + number
