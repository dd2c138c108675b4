"""Arrays in safetensors files, without that package. Files are mapped, not loaded.

The format: https://github.com/huggingface/safetensors, eight bytes with the header's length, the header in JSON ({name: {"dtype",
"shape", "data_offsets"}, "__metadata__": {string: string}}), and the arrays' bytes, little-endian, one after another without gaps.

Files that are written here have a digest of every array and of every entry of the metadata, in the entry "digests" (JSON), and are
checked against it when they are read. Files of others have none.
"""

import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from fedjax_core.algorithm import Array
from fedjax_core.atomic_files import digest_array, digest_bytes, explained, write_bytes
from fedjax_core.storage.json_files import check

_DTYPES = {
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{"BOOL": "bool", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
}
_DIGESTS = "digests"  # of the metadata
_LARGEST_HEADER = 100_000_000  # bytes; the format's own limit


def write_tensors(path: str | os.PathLike, arrays: Mapping[str, np.ndarray | Array], metadata: Mapping[str, str]) -> None:
    """Writes arrays as a safetensors file, atomically.

    Raises:
      TypeError: a dtype that the format has not.
      OSError: the file cannot be written.
    """
    codes = {dtype: code for code, dtype in _DTYPES.items()}
    header: dict[str, Any] = {}
    parts, end, found = [], 0, {}
    hosts = {name: np.asarray(array) for name, array in arrays.items()}
    for name, host in sorted(hosts.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):  # so that all lie aligned
        if host.dtype.name not in codes:
            raise TypeError(f"{name} is of {host.dtype}, which safetensors has not; it has {', '.join(codes)}")
        start, end = end, end + host.nbytes
        header[name] = {"dtype": codes[host.dtype.name], "shape": list(host.shape), "data_offsets": [start, end]}
        host = host if host.dtype.byteorder != ">" else host.astype(host.dtype.newbyteorder("<"))
        found[name] = digest_array(host)
        parts.append(host.tobytes())
    stamped = {**metadata, _DIGESTS: json.dumps({"tensors": found, "metadata": _of_text(metadata)}, ensure_ascii=False)}
    text = json.dumps({"__metadata__": stamped, **header}, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    write_bytes(path, b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def read_tensors(
    path: str | os.PathLike, *, checked: bool | Callable[[Mapping[str, np.ndarray]], Collection[str]] = True
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays and metadata of a safetensors file. The arrays are views of the file, which is mapped.

    Args:
      path: the file.
      checked: whether arrays are compared with their digests, where the file has them, which reads it once, or of the arrays the
        names of those that are; the metadata always are.

    Raises:
      ValueError: it is not one, or is damaged: every byte must be accounted for, and every array have its digest.
      OSError: it cannot be read.
    """
    with explained("read", path):
        data = np.memmap(path, np.uint8, "r") if os.path.getsize(path) else np.empty(0, np.uint8)
    size = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or size > min(_LARGEST_HEADER, len(data) - 8):
        raise ValueError(f"{path} is no safetensors file, or is cut off")
    try:
        header = json.loads(data[8 : 8 + size].tobytes())
        check(header, {str: dict, "__metadata__?": {str: str}}, "its header")
        metadata = header.pop("__metadata__", {})
        arrays = _arrays(header, data[8 + size :])
        if _DIGESTS in metadata:
            _verify(arrays, checked(arrays) if callable(checked) else arrays if checked else (), metadata, checked is True)
    except _Altered as error:
        raise ValueError(f"{path} is damaged: {error}; write it again, or take another copy of it") from None
    except RecursionError:
        raise ValueError(f"{path} is no safetensors file, or is damaged: its header is nested too deeply") from None
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path} is no safetensors file, or is damaged: {error}") from None
    return arrays, {name: text for name, text in metadata.items() if name != _DIGESTS}


def _arrays(header: dict[str, Any], data: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors that a header describes, as views of the bytes behind it.

    Raises:
      ValueError: an entry is of another form, or does not account for its bytes; OverflowError: no array has such a shape.
    """
    check(header, {str: {"dtype": str, "shape": [int], "data_offsets": [int]}}, "its header")
    arrays, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        shape, offsets = tuple(entry["shape"]), entry["data_offsets"]
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{name} is of {entry['dtype']}, expected one of {', '.join(_DTYPES)}")
        dtype = np.dtype(_DTYPES[entry["dtype"]])
        wanted = [end, end + math.prod(shape) * dtype.itemsize]
        if min(shape, default=0) < 0 or offsets != wanted or wanted[1] > len(data):
            raise ValueError(
                f"{name} of {entry['dtype']}{list(shape)} is said to lie at bytes {offsets}, expected {wanted} of {len(data)}"
            )
        arrays[name] = data[end : wanted[1]].view(np.ndarray).view(dtype).reshape(shape)
        end = wanted[1]
    if end != len(data):
        raise ValueError(f"its tensors have {end} bytes, expected {len(data)}, as the file has")
    return arrays


class _Altered(ValueError):
    """Something is not what was written."""


def _of_text(metadata: Mapping[str, str]) -> dict[str, str]:
    return {name: digest_bytes(text.encode()) for name, text in metadata.items() if name != _DIGESTS}


def _verify(arrays: Mapping[str, np.ndarray], names: Collection[str], metadata: Mapping[str, str], whole: bool) -> None:
    """Raises `_Altered` for the first of these arrays, or entry of the metadata, that has not the digest which was written with it.
    `whole`: no array may be missing."""
    try:
        written = json.loads(metadata[_DIGESTS])
        check(written, {"tensors": {str: str}, "metadata": {str: str}}, f"its entry {_DIGESTS}")
    except (ValueError, RecursionError) as error:
        raise _Altered(error) from None
    found = {"metadata": _of_text(metadata), "tensors": {name: digest_array(arrays[name]) for name in names}}
    for part, digests_found in found.items():
        for name in [*digests_found, *(written[part] if whole or part == "metadata" else ())]:
            if digests_found.get(name) != written[part].get(name):
                raise _Altered(f"{name} is not what was written (its digest differs)")
