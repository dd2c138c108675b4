"""Columns of tables as arrays: inputs (numbers, categories, images), targets and labels.

A table is a Hugging Face dataset, a pandas frame, a mapping of columns or a sequence of rows. None
of those libraries is imported: what counts is how a table can be read. `Parts` are the cells by
part ("train", "test") and column.
"""

import decimal
import io
import logging
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_core import option_types
from fedjax_core.data.row_readers import check_fits
from fedjax_core.data.sources.dataset import is_code
from fedjax_core.data.sources.image_folder import decode_images

Column = list[Any]
Parts = Mapping[str, Mapping[str, Column]]
MISSING_TEXTS = frozenset(("", "na", "n/a", "nan", "null", "?"))  # of files; in any case of letters
_NOT_A_NUMBER = MISSING_TEXTS | {"none"}  # a column of texts may have "None" as a value
_TRUTHS = {"true": 1.0, "false": 0.0}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)
_PANDAS = ("NAType", "NaTType")  # types of pandas.NA and pandas.NaT
_GREY_MODES = ("L", "1", "I", "F")  # Pillow's; others of grey pixels begin with "I;"
_LABEL_TYPES = {str: "a text", int: "an integer", bool: "true or false"}
log = logging.getLogger("fedjax_core")


def is_missing(cell: Any) -> bool:
    """Returns whether a cell holds nothing: None, NaN, what pandas has for it, or a text without a character but spaces."""
    if cell is None or cell is np.ma.masked:
        return True
    if isinstance(cell, str):
        return not cell.strip()
    if isinstance(cell, float | np.floating | decimal.Decimal):
        return math.isnan(cell)
    return type(cell).__name__ in _PANDAS


def as_number(cell: Any) -> Any:
    """Returns a cell of a column of numbers, for `np.asarray`; None if a text is no number.

    Texts such as "31", " 2.5 " and "true" become numbers, decimals floats, and what is missing
    NaN, in lists as well. Any other cell stays as it is.

    >>> as_number("31"), as_number(""), as_number("north"), as_number([1, None])
    (31.0, nan, None, [1, nan])
    """
    if isinstance(cell, str):
        text = cell.strip()
        if _NUMBER.fullmatch(text):
            return float(text)
        text = text.casefold()
        return math.nan if text in _NOT_A_NUMBER else _TRUTHS.get(text)
    if isinstance(cell, list | tuple):
        return [math.nan if entry is None else entry for entry in cell] if any(entry is None for entry in cell) else cell
    if is_missing(cell):
        return math.nan
    return float(cell) if isinstance(cell, decimal.Decimal) else cell


def list_columns(columns: str | Sequence[str] | None) -> list[str]:
    """Returns the names of one column, several or none."""
    return [columns] if isinstance(columns, str) else [] if columns is None else list(columns)


def read_column(part: str, table: Any, name: str) -> Column:
    """Returns the cells of one column.

    Raises:
      ValueError: there is no such column.
      TypeError: the table is none of those that can be read.
    """
    columns: Any = getattr(table, "column_names", None)  # Hugging Face's
    columns = getattr(table, "columns", None) if columns is None else columns  # pandas'
    columns = table if columns is None and isinstance(table, Mapping) else columns
    if columns is None and isinstance(table, Sequence) and table and all(isinstance(row, Mapping) for row in table):
        if lacking := [i for i, row in enumerate(table) if name not in row]:
            has = ", ".join(map(str, table[lacking[0]]))
            raise ValueError(f"{part}: row {lacking[0]} has no column {name!r}; it has: {has}.")
        return [row[name] for row in table]
    if columns is None:
        wanted = "a Hugging Face dataset, a pandas frame, a mapping of columns or a sequence of mappings, at least one"
        raise TypeError(f"{part} is {type(table).__name__}: must be {wanted}.")
    if isinstance(columns, Mapping) and table is not columns:  # a DatasetDict has columns by split
        raise ValueError(f"{part} holds several tables, {', '.join(map(str, columns))}: give one of them.")
    if name not in list(columns):
        raise ValueError(f"{part} has no column {name!r}; it has: {', '.join(map(str, columns))}.")
    features = getattr(table, "features", None)  # Hugging Face's
    has_bytes = isinstance(features, Mapping) and _is_array_of_bytes(features.get(name))
    held: Any = table  # pyright narrows `table` to rows
    return [to_uint8(cell) for cell in held[name]] if has_bytes else list(held[name])


def to_uint8(cell: Any) -> Any:
    """Returns nested lists of numbers of 8 bits as one array of uint8; any other cell as it is."""
    try:
        return np.asarray(cell, np.uint8)
    except (TypeError, ValueError, OverflowError):
        return cell


def _is_array_of_bytes(feature: Any) -> bool:
    """Returns whether a feature of Hugging Face's is an array, or lists, of uint8."""
    inner = feature[0] if isinstance(feature, list) and len(feature) == 1 else getattr(feature, "feature", None)
    if inner is not None:  # of a list
        return getattr(inner, "dtype", None) == "uint8" or _is_array_of_bytes(inner)
    return hasattr(feature, "shape") and getattr(feature, "dtype", None) == "uint8"


def known_names(tables: Mapping[str, Any], column: str) -> tuple[str, ...] | None:
    """Returns the class names that a column of the first table itself has.

    Raises:
      ValueError: integers mean other classes in another table.
    """
    numbered: dict[str, tuple[str, ...]] = {}
    for part, table in tables.items():
        features = getattr(table, "features", None)  # Hugging Face's
        if isinstance(features, Mapping) and getattr(features.get(column), "names", None):
            numbered[part] = tuple(features[column].names)
    if len(set(numbered.values())) > 1:
        each = ", and in ".join(f"{part} {option_types.shorten(', '.join(names))}" for part, names in numbered.items())
        raise ValueError(f"column {column!r} numbers its classes differently: in {each}; cast both to one ClassLabel.")
    if numbered:
        return next(iter(numbered.values()))
    table = next(iter(tables.values()))
    cells = table[column] if hasattr(table, "columns") else None
    categories: Any = getattr(getattr(cells, "cat", None), "categories", None)  # pandas'
    if categories is None or not all(isinstance(name, str) for name in categories):
        return None
    return tuple(categories)


def encode_inputs(
    parts: Parts,
    columns: Sequence[str],
    categorical: Sequence[str] = (),
    fill: float = 0,
    size: int | None = None,
    *,
    alone: bool,
) -> dict[str, dict[str, np.ndarray]]:
    """Returns the arrays of the columns, by part and column.

    Args:
      parts: the cells.
      columns: the inputs.
      categorical: those of them that hold categories.
      fill: the value where a cell is missing.
      size: of images.
      alone: whether they are one column of any shape, not one or several of single numbers.
    """
    inputs: dict[str, dict[str, np.ndarray]] = {part: {} for part in parts}
    for column in columns:
        held = {part: cells[column] for part, cells in parts.items()}
        if column in categorical:
            arrays = _encode_one_hot(held, column, fill)
        elif alone and any(is_image(cell) for cells in held.values() for cell in cells):
            arrays = _decode_images(held, column, size)
        else:
            arrays = {part: _stack(part, column, cells, fill, scalars=not alone) for part, cells in held.items()}
        for part, array in arrays.items():
            inputs[part][column] = array if alone or array.ndim > 1 else array[:, None]
    return inputs


def join_columns(arrays: Mapping[str, np.ndarray], columns: Sequence[str]) -> np.ndarray:
    """Returns the features of all columns beside each other, or the array of the only one."""
    return arrays[columns[0]] if len(columns) == 1 else np.concatenate([arrays[column] for column in columns], 1)


def _encode_one_hot(held: Mapping[str, Column], column: str, fill: float) -> dict[str, np.ndarray]:
    """Returns [n, values] float32 of each part: 1 where a row has the value."""
    plain = {part: [None if is_missing(cell) else cell for cell in cells] for part, cells in held.items()}
    for part, cells in plain.items():
        for i, cell in enumerate(cells):
            if not isinstance(cell, str | int | float | np.generic | None):
                wanted = "must be a text or a number, to be one of the values of a categorical column"
                raise ValueError(f"{part}: row {i} of column {column!r} is {option_types.shorten(cell)}: {wanted}.")
    values: set[Any] = {cell for cells in plain.values() for cell in cells} - {None}
    if any(isinstance(cell, str) for cell in values):  # a file without an unusual value has numbers in place of texts
        plain = {part: [_as_text(cell) for cell in cells] for part, cells in plain.items()}
        values = {cell for cells in plain.values() for cell in cells} - {None}
    index = {cell: i for i, cell in enumerate(sorted(values))}
    one_hot = {}
    for part, cells in plain.items():
        check_fits(f"column {column!r} with {len(index)} values", (len(cells), len(index)), np.float32)
        one_hot[part] = np.zeros((len(cells), len(index)), np.float32)
        for row, cell in zip(one_hot[part], cells, strict=True):
            if cell is None:
                row[:] = fill
            else:
                row[index[cell]] = 1
    return one_hot


def _as_text(cell: Any) -> Any:
    return cell if cell is None else str(_as_label(cell))  # 2.0, which pandas has beside a missing cell, as "2"


def is_image(cell: Any) -> bool:
    """Returns whether a cell is an image: Pillow's, or encoded."""
    return hasattr(cell, "getbands") or isinstance(cell, bytes) or (isinstance(cell, Mapping) and "bytes" in cell)


def _decode_images(held: Mapping[str, Column], column: str, size: int | None) -> dict[str, np.ndarray]:
    """Returns [n, H, W, 1 or 3] uint8 of each part; a missing cell is like the first present one."""
    where = lambda part, i: f"{part}: row {i} of column {column!r}"
    images: dict[str, Column] = {}
    for part, cells in held.items():
        images[part] = [cell["bytes"] if isinstance(cell, Mapping) and "bytes" in cell else cell for cell in cells]
        for i, (cell, image) in enumerate(zip(cells, images[part], strict=True)):
            if image is None and cell is not None:
                path = option_types.shorten(cell.get("path"))
                hint = "write the files themselves into the table"
                raise ValueError(f"{where(part, i)} has the path {path} of an image and no bytes; {hint}.")
            if not is_missing(cell) and not is_image(cell):
                raise ValueError(f"{where(part, i)} is {type(cell).__name__}: must be an image, as others are.")
    present = [cell for cells in images.values() for cell in cells if not is_missing(cell)]
    channels = 1 if all(map(_is_grey, present)) else 3
    arrays = {}
    for part, cells in images.items():
        filled = [present[0] if is_missing(cell) else cell for cell in cells]
        arrays[part] = decode_images(lambda i, part=part: where(part, i), filled, len(filled), channels, size)
    return arrays


def _is_grey(image: Any) -> bool:
    from PIL import Image

    try:
        mode = Image.open(io.BytesIO(image)).mode if isinstance(image, bytes) else image.mode
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return False  # `decode_images` says what is wrong, and in which row
    return mode in _GREY_MODES or mode.startswith("I;")


def _stack(part: str, name: str, cells: Column, fill: float, *, scalars: bool) -> np.ndarray:
    """Stacks a column's cells: [n, ...], or [n] scalars; missing ones are `fill`."""
    arrays: list[np.ndarray | None] = []
    first: np.ndarray | None = None
    for i, cell in enumerate(cells):
        if is_missing(cell):
            arrays.append(None)
            continue
        try:
            array = np.asarray(as_number(cell))
        except ValueError:
            array = np.asarray(None)
        if array.dtype.kind not in "buif":
            value, hint = type(cell).__name__, ""
            if isinstance(cell, str):
                value = option_types.shorten(cell)
                hint = f"; a column of categories is named in categorical=({name!r},), one of texts takes words= and length="
            raise ValueError(f"{part}: row {i} of column {name!r} is {value}: must be numbers of one shape, or an image{hint}.")
        first = array if first is None else first
        if array.shape != first.shape or (scalars and array.ndim):
            wanted = "one number" if scalars else f"as the first, {list(first.shape)}; pad, cut or resize them first"
            raise ValueError(f"{part}: row {i} of column {name!r} has shape {list(array.shape)}: must be {wanted}.")
        arrays.append(array)
    if first is None:
        stacked = np.full(len(cells) if scalars else (len(cells), 1), fill, np.float64)
    else:
        empty = np.full(first.shape, fill) if fill else np.zeros(first.shape, first.dtype)
        stacked = np.stack([empty if array is None else array for array in arrays])
    return stacked[:, None] if stacked.ndim == 1 and not scalars else stacked


def encode_targets(
    parts: Parts, columns: Sequence[str], targets: str, names: Sequence[str] | None
) -> tuple[dict[str, Any], Sequence[str] | None]:
    """Returns (targets that are no classes, by part; names); lists of texts become truth values."""
    if not columns and targets == "tokens":
        return dict.fromkeys(parts), names
    if not columns:
        raise ValueError(f"y=None: targets={targets!r} are in a column, or in several.")
    present = [cell for held in parts.values() for cell in held[columns[0]] if not is_missing(cell)]
    is_lists = len(columns) == 1 and all(isinstance(cell, list | tuple | np.ndarray) for cell in present)
    if targets == "labels" and is_lists:
        labels = sorted({label for cell in present for label in cell if isinstance(label, str)})
        if labels:
            return _encode_label_lists(parts, columns[0], labels, names)
    if names is None and len(columns) > 1:
        names = columns
    arrays = encode_inputs(parts, columns, alone=len(columns) == 1)
    return {part: join_columns(held, columns) for part, held in arrays.items()}, names


def _encode_label_lists(
    parts: Parts, column: str, labels: list[str], names: Sequence[str] | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns (truth values [n, K] by part, names) of a column of lists of texts."""
    for part, held in parts.items():
        for i, cell in enumerate(held[column]):
            for label in () if is_missing(cell) else cell:
                if not isinstance(label, str):
                    wanted = "must be a text, as others are"
                    raise ValueError(f"{part}: row {i} of column {column!r} has the label {label!r}: {wanted}.")
    names = labels if names is None else [str(name) for name in names]
    if unknown := sorted({*labels} - {*names}):
        raise ValueError(f"column {column!r} has {unknown[0]!r}, which has no name among {', '.join(names)}.")
    encoded = {}
    for part, held in parts.items():
        has_label = [[not is_missing(cell) and name in list(cell) for name in names] for cell in held[column]]
        encoded[part] = np.array(has_label, bool).reshape(len(held[column]), len(names))
    return encoded, names


def encode_labels(
    parts: Parts, column: str, names: Sequence[str] | None, *, are_classes: bool = False
) -> tuple[dict[str, np.ndarray], Sequence[str] | None]:
    """Returns (integers by part, names): integers stay, texts become their index; -1 where missing.

    Without names, integers that are codes (years, -1 and 1) become their index in order, too.

    Args:
      parts: the cells.
      column: of the labels.
      names: of the integers from 0; None: of texts in alphabetical order.
      are_classes: whether a line warns of codes, one of which may mean that a label is missing.
    """
    labels = {part: [None if is_missing(cell) else _as_label(cell) for cell in held[column]] for part, held in parts.items()}
    kind = _check_label_type(parts, column, labels)
    if kind is bool:
        return _to_int64(labels), ("False", "True") if names is None else names
    values: set[Any] = {label for held in labels.values() for label in held if label is not None}
    if kind is int and (names is not None or not values or not (min(values) < 0 or is_code(max(values), len(values)))):
        for part, held in labels.items():
            for i, label in enumerate(held):
                if label is not None and not 0 <= label < 2**31:
                    raise ValueError(f"{part}: row {i} of column {column!r} is {label}: must be from 0 to {2**31 - 1}.")
        return _to_int64(labels), names
    if kind is int and are_classes:
        what = "column %r has %d integers from %d to %d that do not count from 0: each is a class; clear cells without a label"
        log.warning(what, column, len(values), min(values), max(values))
    order = sorted(values) if names is None else [str(name) for name in names]
    if unknown := sorted(values - {*order}):
        raise ValueError(f"column {column!r} has {unknown[0]!r}, which has no name among {', '.join(map(str, order))}.")
    _warn_of_similar_labels(column, order)
    index = {label: i for i, label in enumerate(order)}
    indices = {part: [None if label is None else index[label] for label in held] for part, held in labels.items()}
    return _to_int64(indices), [str(label) for label in order]


def _check_label_type(parts: Parts, column: str, labels: Mapping[str, Sequence[Any]]) -> type:
    """Returns the type of all labels that are not None; int if there are none."""
    first: tuple[int, type] | None = None
    for part, held in labels.items():
        for i, label in enumerate(held):
            if label is None:
                continue
            first = first or (i, type(label))
            if type(label) is not first[1] or type(label) not in _LABEL_TYPES:
                wanted = f"{_LABEL_TYPES[first[1]]}, as row {first[0]}" if first[1] in _LABEL_TYPES else "an integer or a text"
                value = option_types.shorten(parts[part][column][i])
                raise ValueError(f"{part}: row {i} of column {column!r} is {value}: must be {wanted}.")
    return int if first is None else first[1]


def _warn_of_similar_labels(column: str, labels: Sequence[Any]) -> None:
    """Warns of two labels that differ in capitals or in the encoding of accents alone."""
    fold = lambda label: unicodedata.normalize("NFC", str(label)).lower()
    folded = {fold(label): label for label in labels if len(str(label)) > 1}
    if alike := [label for label in labels if folded.get(fold(label), label) != label]:
        what = "column %r has both %r and %r, which differ in capitals or in the encoding of accents alone: each counts for itself"
        log.warning(what, column, alike[0], folded[fold(alike[0])])


def _as_label(cell: Any) -> Any:
    """Returns a text, an integer or a truth value as Python's; floats such as 2.0 as integers."""
    if isinstance(cell, bool | np.bool_):
        return bool(cell)
    if isinstance(cell, str):
        return str(cell)
    try:
        return int(cell) if int(cell) == cell else cell
    except (TypeError, ValueError, OverflowError):
        return cell


def _to_int64(labels: Mapping[str, Sequence[int | None]]) -> dict[str, np.ndarray]:
    return {part: np.array([-1 if label is None else label for label in held], np.int64) for part, held in labels.items()}
