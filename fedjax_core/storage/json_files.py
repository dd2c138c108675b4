"""JSON files: values, schemas, files that are replaced as a whole, and files that grow by lines.

JSON is strict. Floats that are not finite are stored as the strings "NaN", "Infinity" and
"-Infinity", which `read_json` and `read_jsonl` turn back into floats.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_core.atomic_files import check_regular, read_bytes, reword_os_errors, write_text

_MAX_DEPTH = 100  # nested lists and objects
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class PositiveInt:
    """The schema of an int of at least 1."""


_TYPE_NAMES: dict[Any, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "an int",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    PositiveInt: "an int of at least 1",
}


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes a value as strict, readable JSON: keys sorted, one table row per line."""
    write_text(path, format_json(value))


def format_json(value: Any) -> str:
    """Returns the text that `write_json` writes."""
    return _layout(to_json_values(value), "") + "\n"


def read_json(path: str | os.PathLike, schema: Any = None) -> Any:
    """Reads a file of `write_json`; a schema as `check_schema` takes it.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is not JSON or does not match the schema; the message names the file and the
        field.
    """
    return _parse(read_bytes(path), os.fspath(path), schema, "restore it, or take another directory")


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads a file of JSON lines, without an unfinished last line (its writer was killed).

    Raises:
      ValueError: a line is not a JSON object.
    """
    *lines, _ = read_bytes(path).split(b"\n")  # after the last newline: nothing, or a torn line
    name = os.fspath(path)
    return [_parse(line, f"line {number} of {name}", dict, "remove that line") for number, line in enumerate(lines, 1)]


def _parse(data: bytes, name: str, schema: Any, remedy: str) -> Any:
    """Parses JSON and checks its schema; the errors have the value's `name` and the `remedy`."""
    try:
        raw = json.loads(data)
        value = _restore_floats(raw)
    except RecursionError:
        raise ValueError(f"{name} is nested more than {_MAX_DEPTH} levels deep, expected fewer; {remedy}") from None
    except ValueError as error:
        raise ValueError(f"{name} is not JSON ({error}); {remedy}") from None
    if schema is not None:
        check_schema(raw, schema, name, f"; {remedy}")
    return value


def check_schema(value: Any, schema: Any, name: str, end: str = "", field: str = "") -> None:
    """Checks a JSON value against a schema.

    Args:
      value: from `json.loads`.
      schema: `dict`, `list`, `str`, `int`, `PositiveInt`, `float` (finite or not), `bool` or
        `type(None)`; `[schema]` for lists; `{str: schema}` for objects with any keys; `{"field":
        schema, "optional?": schema}` for objects with at least the fields without a "?"; `(schema,
        schema)` for either.
      name: of the value, such as its file; begins the message.
      end: ends the message.
      field: path of the value within the file.

    Raises:
      ValueError: it does not match; one line with the field, the value and the expected type.
    """
    if isinstance(schema, tuple):
        if not any(_is_instance(value, _type_of(option)) for option in schema):
            raise ValueError(_mismatch(value, " or ".join(_TYPE_NAMES[_type_of(option)] for option in schema), name, end, field))
        schema = next(option for option in schema if _is_instance(value, _type_of(option)))
    if not _is_instance(value, _type_of(schema)):
        raise ValueError(_mismatch(value, _TYPE_NAMES[_type_of(schema)], name, end, field))
    if isinstance(schema, list):
        for index, item in enumerate(value):
            check_schema(item, schema[0], name, end, f"{field}[{index}]")
    if isinstance(schema, dict):
        for key, inner in schema.items():
            is_any = key is str
            required = not is_any and not key.endswith("?")
            keys = value if is_any else [str(key).removesuffix("?")]
            for child in keys:
                if child in value:
                    check_schema(value[child], inner, name, end, f"{field}.{child}" if field else child)
                elif required:
                    parent = f"{field} of {name}" if field else name
                    raise ValueError(f"{parent} has no {child}, expected {_TYPE_NAMES[_type_of(inner)]}{end}")


def _type_of(schema: Any) -> type:
    """Returns the type of a schema's values; of alternatives, the first one's."""
    if isinstance(schema, tuple):
        return _type_of(schema[0])
    return type(schema) if isinstance(schema, (dict, list)) else schema


def _is_instance(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, (int, float)) or (isinstance(value, str) and value in _NOT_FINITE)
    if kind is PositiveInt:
        return isinstance(value, int) and value >= 1
    return isinstance(value, kind)


def _mismatch(value: Any, expected: str, name: str, end: str, field: str) -> str:
    actual = _TYPE_NAMES.get(type(value), type(value).__name__)
    if isinstance(value, (str, int, float)):
        text = repr(value)
        actual += f" ({text if len(text) <= 40 else text[:40] + '...'})"
    return f"{field} of {name} is {actual}, expected {expected}{end}" if field else f"{name} is {actual}, expected {expected}{end}"


def format_json_lines(records: Iterable[Mapping[str, Any]]) -> str:
    """Returns records as JSON, one per line, each line terminated."""
    return "".join(dump_compact(to_json_values(record)) + "\n" for record in records)


class JsonLinesFile:
    """An append-only file of JSON lines, which are on the disk when `append` returns.

    Opening the file cuts a line that an earlier process left unfinished. An append that fails, such
    as on a full disk, leaves the earlier lines alone.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        """Opens or creates the file; its directory must exist."""
        self.path = Path(path)
        with reword_os_errors("write", path):
            check_regular(path)
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (open until close)
            self._file.seek(0)
            data = self._file.read()
            self._file.truncate(data.rfind(b"\n") + 1)

    def append(self, *records: Mapping[str, Any]) -> None:
        """Adds one line per record, and syncs once."""
        data = format_json_lines(records).encode()
        with reword_os_errors("write", self.path):
            end = os.fstat(self._file.fileno()).st_size
            try:
                rest = memoryview(data)
                while rest:  # a nearly full disk accepts a part, then fails at the next write
                    rest = rest[self._file.write(rest) :]
                os.fsync(self._file.fileno())
            except BaseException:
                self._file.truncate(end)
                raise

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        self._file.close()


def to_json_values(value: Any, name: str = "") -> Any:
    """Returns a copy of a value made of JSON types.

    Tuples become lists, arrays nested lists, numpy and jax scalars Python numbers, paths strings,
    and objects with a `to_dict` (a ConfigDict) dicts. Floats that are not finite become strings.

    Args:
      value: the value.
      name: of the value, for the error.

    Raises:
      TypeError: JSON cannot represent a value; the message names its field.
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
        return {str(key): to_json_values(item, f"{name}.{key}" if name else str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_values(item, f"{name}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return to_json_values(np.asarray(value).tolist(), name)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{name or 'the value'} is a {type(value).__name__}, which JSON cannot hold: {value!r:.80}")


def lists_to_tuples(value: Any) -> Any:
    """Turns the lists of JSON into the tuples of configs."""
    if isinstance(value, dict):
        return {key: lists_to_tuples(item) for key, item in value.items()}
    return tuple(lists_to_tuples(item) for item in value) if isinstance(value, list) else value


def flatten(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of nested mappings by dotted name; an empty mapping is a leaf.

    >>> flatten({"a": {"b": 1, "c": {}}, "d": 2})
    {'a.b': 1, 'a.c': {}, 'd': 2}
    """
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        is_branch = isinstance(value, Mapping) and value
        flat |= flatten(value, f"{prefix}{name}.") if is_branch else {f"{prefix}{name}": value}
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested dicts of leaves that are given by dotted name.

    >>> unflatten({"a.b": 1, "a.c": {}, "d": 2})
    {'a': {'b': 1, 'c': {}}, 'd': 2}
    """
    fields: dict[str, Any] = {}
    for name, value in flat.items():
        *above, last = name.split(".")
        group = fields
        for part in above:
            group = group.setdefault(part, {})
        group[last] = value
    return fields


def _restore_floats(value: Any, levels: int = _MAX_DEPTH) -> Any:
    """Returns a parsed value with the strings of `_NOT_FINITE` as floats."""
    if levels < 0:
        raise RecursionError
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _restore_floats(item, levels - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore_floats(item, levels - 1) for item in value]
    return value


def dump_compact(value: Any) -> str:
    """Returns JSON on one line."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _layout(value: Any, indent: str) -> str:
    """Returns JSON with sorted keys, one field per line, and lists of scalars on one line."""
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        lines = (f"{deeper}{dump_compact(key)}: {_layout(value[key], deeper)}" for key in sorted(value))
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        return "[\n" + ",\n".join(deeper + _layout(item, deeper) for item in value) + f"\n{indent}]"
    return dump_compact(value)
