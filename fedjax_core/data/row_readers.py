"""Readers of single examples from arrays in memory or in files, and a check of memory."""

import math
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_core.atomic_files import read_at

_BLOCK = 2**26  # bytes that are written at once
_ALIGNED = 64  # bytes; a CPU's devices copy arrays that begin elsewhere, each of them


class ExampleReader:
    """Examples of a pytree of arrays [n, ...]; several threads may read.

    A memory-mapped array is read by its file: what was read does not stay in memory, and a file
    that was cut is an error and no crash.

    Attributes:
      like: the arrays.
      row_bytes: of one example, all leaves together.
    """

    def __init__(self, arrays: Any):
        self.like = arrays
        leaves, self._structure = jax.tree.flatten(arrays)
        self._leaves = [leaf if (place := locate_in_file(leaf)) is None else _File(leaf, *place) for leaf in leaves]
        self.row_bytes = sum(leaf.dtype.itemsize * math.prod(leaf.shape[1:]) for leaf in leaves)

    def read_padded(self, rows: np.ndarray, capacity: int) -> Any:
        """Returns the examples [R] padded with zeros: leaves [capacity, ...].

        Raises:
          OSError: a file cannot be read, or is shorter than it was; one line.
        """
        if len(rows) > capacity:
            raise ValueError(f"{len(rows)} examples: must be at most capacity={capacity}")
        padded = []
        for leaf in self._leaves:
            out = allocate_aligned((capacity, *leaf.shape[1:]), np.dtype(leaf.dtype))
            out[len(rows) :] = 0
            if isinstance(leaf, _File):
                leaf.read(rows, out)
            else:
                np.take(leaf, rows, axis=0, out=out[: len(rows)], mode="clip")
            padded.append(out)
        return self._structure.unflatten(padded)


def allocate_aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns an array that CPU devices use without a copy."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNED, np.uint8)
    begin = -memory.ctypes.data % _ALIGNED
    return memory[begin : begin + size].view(dtype).reshape(shape)


class _File:
    """An array [n, ...] in a file."""

    def __init__(self, leaf: np.ndarray, path: Path, offset: int):
        self.path, self.offset, self.shape, self.dtype = path, offset, leaf.shape, leaf.dtype
        self.row_bytes = leaf.dtype.itemsize * math.prod(leaf.shape[1:])
        self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._handle)

    def read(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Reads examples into `out`, neighbouring ones at once."""
        if not len(rows) or not self.row_bytes:
            return
        into = out.reshape(-1).view(np.uint8).data
        starts = np.concatenate([[0], np.flatnonzero(np.diff(rows.astype(np.int64)) != 1) + 1, [len(rows)]])
        for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            target = into[begin * self.row_bytes : end * self.row_bytes]
            try:
                number = read_at(self._handle, target, self.offset + int(rows[begin]) * self.row_bytes)
            except OSError as error:
                raise OSError(error.errno, f"cannot read examples of {self.path}: {error.strerror}") from error
            if number < len(target):
                raise OSError(f"cannot read row {int(rows[begin])} of {self.path}: the file has become shorter than its array")


def locate_in_file(array: np.ndarray) -> tuple[Path, int] | None:
    """Returns (file, offset in bytes) of a memory-mapped array or whole rows of one, or None."""
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        return None
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None or root.mode == "c":  # its changes are not in the file
        return None
    within = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return Path(root.filename), int(root.offset) + within


def open_in_memory(arrays: Any) -> ExampleReader:
    """Opens a reader of arrays in memory; those in files are read."""
    return ExampleReader(jax.tree.map(lambda leaf: np.asarray(leaf) if locate_in_file(leaf) is None else np.array(leaf), arrays))


def open_on_disk(arrays: Any) -> ExampleReader:
    """Opens a reader of arrays in files; those in memory are written to temporary files.

    The files go with the process, or with the last that reads them.

    Raises:
      OSError: they cannot be written; one line.
    """
    with tempfile.TemporaryDirectory(prefix="fedjax-rows-", ignore_cleanup_errors=True) as folder:
        leaves, structure = jax.tree.flatten(arrays)
        kept = [
            _write_and_map(leaf, Path(folder) / str(at)) if locate_in_file(leaf) is None else leaf for at, leaf in enumerate(leaves)
        ]
        return ExampleReader(structure.unflatten(kept))  # which has the files open, so their names may go


def _write_and_map(array: np.ndarray, path: Path) -> np.ndarray:
    array = np.asarray(array)
    if not array.nbytes:
        return array
    rows_per_block = max(1, _BLOCK * len(array) // array.nbytes)
    try:
        with open(path, "wb") as file:
            for begin in range(0, len(array), rows_per_block):
                file.write(np.ascontiguousarray(array[begin : begin + rows_per_block]).data)
    except OSError as error:
        what = f"cannot write {array.nbytes / 2**30:.1f} GiB of examples to {path.parent} for plan.data='disk'"
        raise OSError(error.errno, f"{what}: {error.strerror}; TMPDIR names the folder that such files go to") from error
    return np.asarray(np.memmap(path, array.dtype, "r", shape=array.shape))


def check_fits(what: str, shape: Sequence[int], dtype: Any) -> None:
    """Raises ValueError for an array that is larger than this machine's memory; `what` begins it."""
    needed = math.prod(int(n) for n in shape) * np.dtype(dtype).itemsize
    if needed > (available := machine_memory()):
        array = f"an array {list(shape)} of {np.dtype(dtype)} takes {format_bytes(needed)}"
        raise ValueError(f"{what}: {array}, this machine has {format_bytes(available)}.")


def machine_memory() -> float:
    """Returns the bytes of memory of this machine; infinity where it is unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.inf


def machine_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS, Windows


def format_bytes(number: float) -> str:
    """Returns a number of bytes as a string with a unit."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number / 2**20:,.1f} MiB" if number >= 2**20 else f"{number:,} bytes"
