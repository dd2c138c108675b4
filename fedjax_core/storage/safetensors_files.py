"""Reads and writes safetensors files without that package. Files are memory-mapped.

The format (https://github.com/huggingface/safetensors) is eight bytes with the header's length, the
header in JSON ({name: {"dtype", "shape", "data_offsets"}, "__metadata__": {string: string}}), and
the arrays' bytes, little-endian, one after another without gaps.

Files written here have a digest of every array and metadata entry in the metadata entry "digests"
(JSON), which is checked when they are read. Files of other programs have none.
"""

import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from fedjax_core.algorithm import Array
from fedjax_core.atomic_files import digest_array, digest_bytes, reword_os_errors, write_bytes
from fedjax_core.storage.json_files import check_schema

_DTYPES = {
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{"BOOL": "bool", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
}
_DIGESTS = "digests"  # metadata entry
_MAX_HEADER = 100_000_000  # bytes; the limit of the format


def write_tensors(path: str | os.PathLike, arrays: Mapping[str, np.ndarray | Array], metadata: Mapping[str, str]) -> None:
    """Writes arrays as a safetensors file, atomically; raises TypeError for a dtype that it lacks."""
    codes = {dtype: code for code, dtype in _DTYPES.items()}
    header: dict[str, Any] = {}
    parts, end, digests = [], 0, {}
    hosts = {name: np.asarray(array) for name, array in arrays.items()}
    largest_first = sorted(hosts.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))  # so that all are aligned
    for name, host in largest_first:
        if host.dtype.name not in codes:
            raise TypeError(f"{name} is of {host.dtype}, which safetensors does not support; it supports {', '.join(codes)}")
        start, end = end, end + host.nbytes
        header[name] = {"dtype": codes[host.dtype.name], "shape": list(host.shape), "data_offsets": [start, end]}
        host = host if host.dtype.byteorder != ">" else host.astype(host.dtype.newbyteorder("<"))
        digests[name] = digest_array(host)
        parts.append(host.tobytes())
    entry = json.dumps({"tensors": digests, "metadata": _digest_metadata(metadata)}, ensure_ascii=False)
    text = json.dumps({"__metadata__": {**metadata, _DIGESTS: entry}, **header}, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    write_bytes(path, b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def read_tensors(
    path: str | os.PathLike, *, checked: bool | Callable[[Mapping[str, np.ndarray]], Collection[str]] = True
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads a safetensors file: (arrays, metadata). The arrays are views of the mapped file.

    Args:
      path: the file.
      checked: whether to compare arrays with their digests, if the file has them, which reads the
        whole file; or a function that returns the names of the arrays to compare. Metadata are
        always compared.

    Raises:
      ValueError: the file is malformed or damaged: every byte must belong to an array, and every
        digest must match.
    """
    with reword_os_errors("read", path):
        data = np.memmap(path, np.uint8, "r") if os.path.getsize(path) else np.empty(0, np.uint8)
    size = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or size > min(_MAX_HEADER, len(data) - 8):
        raise ValueError(f"{path} is not a safetensors file, or is truncated")
    try:
        header = json.loads(data[8 : 8 + size].tobytes())
        check_schema(header, {str: dict, "__metadata__?": {str: str}}, "its header")
        metadata = header.pop("__metadata__", {})
        arrays = _view_arrays(header, data[8 + size :])
        if _DIGESTS in metadata:
            _verify(arrays, checked(arrays) if callable(checked) else arrays if checked else (), metadata, checked is True)
    except _DigestMismatch as error:
        raise ValueError(f"{path} is damaged: {error}; write it again, or take another copy of it") from None
    except RecursionError:
        raise ValueError(f"{path} is not a safetensors file, or is damaged: its header is nested too deeply") from None
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path} is not a safetensors file, or is damaged: {error}") from None
    return arrays, {name: text for name, text in metadata.items() if name != _DIGESTS}


def _view_arrays(header: dict[str, Any], data: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the tensors of a header as views of the data; refuses a malformed entry."""
    check_schema(header, {str: {"dtype": str, "shape": [int], "data_offsets": [int]}}, "its header")
    arrays, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        shape, offsets = tuple(entry["shape"]), entry["data_offsets"]
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{name} is of {entry['dtype']}, expected one of {', '.join(_DTYPES)}")
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        expected = [end, end + math.prod(shape) * dtype.itemsize]
        if min(shape, default=0) < 0 or offsets != expected or expected[1] > len(data):
            raise ValueError(
                f"{name} of {entry['dtype']}{list(shape)} has offsets {offsets}, expected {expected} of {len(data)} bytes"
            )
        arrays[name] = data[end : expected[1]].view(np.ndarray).view(dtype).reshape(shape)
        end = expected[1]
    if end != len(data):
        raise ValueError(f"its tensors have {end} bytes, expected {len(data)}, as the file has")
    return arrays


class _DigestMismatch(ValueError):
    """A digest differs."""


def _digest_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    return {name: digest_bytes(text.encode()) for name, text in metadata.items() if name != _DIGESTS}


def _verify(arrays: Mapping[str, np.ndarray], names: Collection[str], metadata: Mapping[str, str], whole: bool) -> None:
    """Compares the digests of some arrays and of all metadata; `whole`: no array may be missing."""
    try:
        expected = json.loads(metadata[_DIGESTS])
        check_schema(expected, {"tensors": {str: str}, "metadata": {str: str}}, f"its entry {_DIGESTS}")
    except (ValueError, RecursionError) as error:
        raise _DigestMismatch(error) from None
    actual = {"metadata": _digest_metadata(metadata), "tensors": {name: digest_array(arrays[name]) for name in names}}
    for part, digests in actual.items():
        for name in [*digests, *(expected[part] if whole or part == "metadata" else ())]:
            if digests.get(name) != expected[part].get(name):
                raise _DigestMismatch(f"{name} is not what was written (its digest differs)")
