"""A digest of a data set's examples, to check that a resumed run has those that it began with.

A partition's hash says which examples clients have, not what the examples are. This digest does not
depend on where they are (in memory, in a file, on a device), and reads a sample of a large array.
"""

import hashlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_core.algorithm import Examples
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.data.row_readers import ExampleReader, locate_in_file

# Directories of runs keep digests: with other numbers here, or another order of what is hashed,
# PREFIX must be another one.
PREFIX = "sha256/1:"
WHOLE = 2**26  # bytes of an array that is read whole; of a larger one about as many are read
SPANS = 256  # runs of neighbouring examples that are read of a larger one
_BLOCK = 2**24  # bytes that are hashed at once


Named = tuple[str, Any, int]  # an array's name, the array [n, ...], and how many of its examples count


class ContentDigest(NamedTuple):
    """A data set's digest.

    Attributes:
      digest: of all arrays, with their names, dtypes and shapes.
      sampled: by array, such as "train/x", how many of its examples were read: "65536 of 1281167
        rows"; without those read whole.
    """

    digest: str
    sampled: dict[str, str]


def digest_data(data: FederatedData) -> ContentDigest:
    """Returns the digest of all inputs, targets and offsets, without poisoned examples."""
    train = len(data.train.y) - data.poisoned_rows
    offsets = (("x_offset", data.x_offset), ("y_offset", data.y_offset))
    taken_off = [(name, offset, len(offset)) for name, offset in offsets if offset is not None]
    return _digest([*_arrays("train", data.train, train), *_arrays("test", data.test, len(data.test.y)), *taken_off])


def digest_examples(name: str, examples: Examples) -> ContentDigest:
    """Returns the digest of one set of examples, which is called `name`."""
    return _digest(_arrays(name, examples, len(examples.y)))


def _arrays(part: str, examples: Examples, rows: int) -> list[Named]:
    """Returns the arrays of inputs and targets, by name."""
    x = [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in jax.tree.leaves_with_path(examples.x)]
    return [*((f"{part}/x/{name}".rstrip("/"), leaf, rows) for name, leaf in x), (f"{part}/y", examples.y, rows)]


def _digest(arrays: list[Named]) -> ContentDigest:
    digest, sampled = hashlib.sha256(), {}
    for name, array, number in arrays:
        array = jax.device_get(array) if isinstance(array, jax.Array) else array
        array = array if hasattr(array, "dtype") else np.asarray(array)
        dtype = np.dtype(array.dtype).newbyteorder("<")
        kind = "uint8" if dtype.kind == "b" else dtype.name  # as it was when truth values were bytes
        digest.update(f"{name} {kind} {[number, *array.shape[1:]]}\n".encode())
        row_bytes = dtype.itemsize * math.prod(array.shape[1:])
        spans = _sample(number, row_bytes)
        if (read := sum(stop - start for start, stop in spans)) < number:
            sampled[name] = f"{read} of {number} rows"
        for block in _read(array, spans, row_bytes):
            digest.update(np.ascontiguousarray(block, dtype).reshape(-1).view(np.uint8).data)
    return ContentDigest(PREFIX + digest.hexdigest(), sampled)


def _sample(number: int, row_bytes: int) -> list[tuple[int, int]]:
    """Returns (start, stop) of rows: of all if they are few bytes, else of evenly spread runs."""
    if number * row_bytes <= WHOLE:
        return [(0, number)]
    spans = max(2, min(SPANS, WHOLE // row_bytes))
    length = max(1, WHOLE // spans // row_bytes)
    starts = [span * (number - length) // (spans - 1) for span in range(spans)]
    return [(start, start + length) for start in starts]


def _read(array: Any, spans: list[tuple[int, int]], row_bytes: int) -> Iterator[np.ndarray]:
    """Yields the examples in blocks.

    A memory-mapped file is read by its file: one that was cut is an error and no crash. One that is
    deleted, as that of `plan.data=disk` is at once, is read through the mapping.
    """
    place = locate_in_file(array)
    reader = ExampleReader(array) if place is not None and place[0].exists() else None
    length = max(1, _BLOCK // max(1, row_bytes))
    for first, last in spans:
        for start in range(first, last, length):
            stop = min(start + length, last)
            yield np.asarray(array[start:stop]) if reader is None else reader.read_padded(np.arange(start, stop), stop - start)
