"""JSON files: values as JSON has them, files that are replaced as a whole, and files that grow by a line.

JSON is strict: floats that are not finite are the strings "NaN", "Infinity" and "-Infinity", which `float` understands and
`read_json` and `read_jsonl` turn back.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_core.atomic_files import check_regular, explained, read_bytes, write_text
from fedjax_core.storage.forms import NOT_FINITE, check

_DEEPEST = 100  # levels of lists and objects that are read


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes a value as strict JSON for human eyes: keys sorted, one row of a table a line.

    Args:
      path: the file; its directory must exist.
      value: see `plain`.
    """
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """What `write_json` writes."""
    return _layout(plain(value), "") + "\n"


def read_json(path: str | os.PathLike, form: Any = None) -> Any:
    """Reads what `write_json` wrote.

    Args:
      path: the file.
      form: what the value must be, as `check` takes it; None: anything.

    Raises:
      OSError: if the file cannot be read.
      ValueError: if it is not JSON, or of another form; the message names the file and the field.
    """
    return _value(read_bytes(path), os.fspath(path), form, "restore it, or take another directory")


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads a file of JSON lines. A last line that was never finished (the writer was killed) is left out.

    Raises:
      OSError: if the file cannot be read.
      ValueError: if a line before the last is not JSON, or no object.
    """
    *lines, _ = read_bytes(path).split(b"\n")  # behind the last newline: nothing, or a torn line
    name = os.fspath(path)
    return [_value(line, f"line {number} of {name}", dict, "remove that line") for number, line in enumerate(lines, 1)]


def _value(data: bytes, what: str, form: Any, remedy: str) -> Any:
    """The value that JSON text stands for.

    Raises:
      ValueError: it is not JSON, or of another form: one line that says `what` it is, and the `remedy`.
    """
    try:
        value = json.loads(data)
        found = _finite_or_not(value)
    except RecursionError:
        raise ValueError(f"{what} is nested more than {_DEEPEST} levels deep, expected fewer; {remedy}") from None
    except ValueError as error:
        raise ValueError(f"{what} is not JSON ({error}); {remedy}") from None
    if form is not None:
        check(value, form, what, f"; {remedy}")
    return found


def json_lines(records: Iterable[Mapping[str, Any]]) -> str:
    """Records as JSON, a line each, every line ended."""
    return "".join(compact(plain(record)) + "\n" for record in records)


class JsonLines:
    """An append-only file of JSON lines: what `append` returned from is on the disk.

    A line that an earlier process left unfinished is cut when the file is opened, one that does not fit on the disk when
    the error is raised.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        """Opens the file, or makes it.

        Args:
          path: the file; its directory must exist.
        """
        self.path = Path(path)
        with explained("write", path):
            check_regular(path)
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (open until close)
            self._file.seek(0)
            data = self._file.read()
            self._file.truncate(data.rfind(b"\n") + 1)

    def append(self, *records: Mapping[str, Any]) -> None:
        """Adds a line per record and syncs once.

        Raises:
          OSError: one line that names the file; the lines before these are intact.
        """
        data = json_lines(records).encode()
        with explained("write", self.path):
            end = os.fstat(self._file.fileno()).st_size
            try:
                rest = memoryview(data)
                while rest:  # a nearly full disk takes a part and fails at the next write
                    rest = rest[self._file.write(rest) :]
                os.fsync(self._file.fileno())
            except BaseException:
                self._file.truncate(end)
                raise

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        self._file.close()


def plain(value: Any, where: str = "") -> Any:
    """A copy made of what JSON has: dicts with string keys, lists, strings, numbers, booleans, None.

    Tuples become lists, arrays nested lists, numpy and jax scalars Python numbers, paths strings; anything with a `to_dict`
    (a ConfigDict) the dict that it returns; floats that are not finite the strings "NaN", "Infinity", "-Infinity".

    Args:
      value: what to copy.
      where: its name, for the error.

    Raises:
      TypeError: if JSON has no place for a value; the message names its field.
    """
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}" if where else str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return plain(np.asarray(value).tolist(), where)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{where or 'the value'} is a {type(value).__name__}, which JSON cannot hold: {value!r:.80}")


def flatten(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested fields by dotted name, without those that are None.

    >>> flatten({"a": {"b": 1, "c": None}, "d": 2})
    {'a.b': 1, 'd': 2}
    """
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif value is not None:
            flat[f"{prefix}{name}"] = value
    return flat


def _finite_or_not(value: Any, levels: int = _DEEPEST) -> Any:
    """`plain` undone for the floats that are not finite.

    Raises:
      RecursionError: the value has more levels.
    """
    if levels < 0:
        raise RecursionError
    if isinstance(value, str):
        return NOT_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _finite_or_not(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite_or_not(item, levels - 1) for item in value]
    return value


def compact(value: Any) -> str:
    """JSON on one line."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _layout(value: Any, indent: str) -> str:
    """JSON with sorted keys, a field a line and a list of scalars on one line."""
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        lines = (f"{deeper}{compact(key)}: {_layout(value[key], deeper)}" for key in sorted(value))
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        return "[\n" + ",\n".join(deeper + _layout(item, deeper) for item in value) + f"\n{indent}]"
    return compact(value)
