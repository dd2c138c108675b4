"""Records of TensorFlow (`tf.train.Example`), decoded without it.

A message of Protocol Buffers is fields one after another: a number, a type, a value. An Example holds Features (field 1), these a
map (1) from names (1) to lists (2) of bytes (1), 32-bit floats (2) or 64-bit integers (3), whose values (1) are packed into one
field or not.
"""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

_VARINT, _WIDE, _BYTES, _NARROW = 0, 1, 2, 5


def decode(blob: bytes, wanted: Collection[str] | None = None) -> dict[str, list[bytes] | np.ndarray]:
    """Feature by name: bytes in a list, numbers as an array; None: all, else those that are wanted.

    Raises:
      ValueError: it is no such record.
    """
    found: dict[str, list[bytes] | np.ndarray] = {}
    try:
        for _, features in _fields(memoryview(blob)):
            for _, entry in _fields(features):
                parts = dict(_fields(entry))
                name = bytes(parts[1]).decode()
                if wanted is not None and name not in wanted:
                    continue
                ((kind, values),) = _fields(parts[2]) if len(parts.get(2, b"")) else ((1, memoryview(b"")),)
                found[name] = _values(kind, values)
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"a record of {len(blob)} bytes is no tf.train.Example ({error})") from None
    return found


def _values(kind: int, of: memoryview) -> list[bytes] | np.ndarray:
    values = [value for _, value in _fields(of)]
    if kind == 1:
        return [bytes(value) for value in values]
    if kind == 2:
        return np.frombuffer(b"".join(bytes(value) for value in values), "<f4")
    whole: list[int] = []
    for value in values:
        whole += [value] if isinstance(value, int) else _varints(value)
    return np.array(whole, np.uint64).astype(np.int64)


def _fields(of: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field: an integer, or the bytes of what is longer."""
    at = 0
    while at < len(of):
        key, at = _varint(of, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(of, at)
            yield number, value
            continue
        length = {_WIDE: 8, _NARROW: 4}.get(kind)
        if kind == _BYTES:
            length, at = _varint(of, at)
        if length is None or at + length > len(of):
            raise ValueError(f"field {number} of type {kind} ends beyond it")
        yield number, of[at : at + length]
        at += length


def _varint(of: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = of[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value & (2**64 - 1), at
        if shift > 63:
            raise ValueError("an integer of more than 64 bits")


def _varints(of: memoryview) -> list[int]:
    found, at = [], 0
    while at < len(of):
        value, at = _varint(of, at)
        found.append(value)
    return found
