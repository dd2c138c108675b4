"""Arrays in safetensors files, without that package. Files are mapped, not loaded.

The format: https://github.com/huggingface/safetensors, eight bytes with the header's length, the header in JSON ({name: {"dtype",
"shape", "data_offsets"}, "__metadata__": {string: string}}), and the arrays' bytes, little-endian, one after another without gaps.
"""

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_core.algorithm import Array
from fedjax_core.storage.files import explained, write_bytes

_DTYPES = {
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{"BOOL": "bool", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
}
_LARGEST_HEADER = 100_000_000  # bytes; the format's own limit


def write_tensors(path: str | os.PathLike, arrays: Mapping[str, np.ndarray | Array], metadata: Mapping[str, str]) -> None:
    """Writes arrays as a safetensors file, atomically.

    Raises:
      TypeError: a dtype that the format has not.
      OSError: the file cannot be written.
    """
    codes = {dtype: code for code, dtype in _DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    parts, end = [], 0
    hosts = {name: np.asarray(array) for name, array in arrays.items()}
    for name, host in sorted(hosts.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):  # so that all lie aligned
        if host.dtype.name not in codes:
            raise TypeError(f"{name} is of {host.dtype}, which safetensors has not; it has {', '.join(codes)}")
        start, end = end, end + host.nbytes
        header[name] = {"dtype": codes[host.dtype.name], "shape": list(host.shape), "data_offsets": [start, end]}
        parts.append((host if host.dtype.byteorder != ">" else host.astype(host.dtype.newbyteorder("<"))).tobytes())
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    write_bytes(path, b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def read_tensors(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Arrays and metadata of a safetensors file. The arrays are views of the file, which is mapped and read as they are.

    Raises:
      ValueError: it is not one, or is damaged: every byte must be accounted for.
      OSError: it cannot be read.
    """
    with explained("read", path):
        data = np.memmap(path, np.uint8, "r") if os.path.getsize(path) else np.empty(0, np.uint8)
    size = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or size > min(_LARGEST_HEADER, len(data) - 8):
        raise ValueError(f"{path} is no safetensors file, or is cut off")
    try:
        header = json.loads(data[8 : 8 + size].tobytes())
        metadata = header.pop("__metadata__", {})
        entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        arrays, end = {}, 0
        for name, entry in entries:
            dtype, shape, (start, stop) = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"]), entry["data_offsets"]
            if start != end or stop - start != math.prod(shape) * dtype.itemsize or any(n < 0 for n in shape):
                raise ValueError
            arrays[name] = data[8 + size + start : 8 + size + stop].view(np.ndarray).view(dtype).reshape(shape)
            end = stop
        if end != len(data) - 8 - size:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{path} is no safetensors file, or is damaged") from None
    return arrays, metadata
