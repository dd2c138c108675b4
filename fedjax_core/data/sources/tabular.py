"""Data sets from tables: Hugging Face `datasets`, pandas frames, mappings of columns, or rows."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_core import option_types, registry
from fedjax_core.algorithm import TARGETS
from fedjax_core.data.sources import table_columns
from fedjax_core.data.sources.dataset import Dataset, from_arrays
from fedjax_core.data.sources.file_checks import stratified_fraction_mask
from fedjax_core.data.sources.table_columns import Column, is_missing

MISSING = ("error", "mean", "drop")  # what may be done about missing cells
_STRATIFIED_BY = {True: ("y", "domains", "clients"), False: ("domains", "clients")}  # of classes; of other targets
log = logging.getLogger("fedjax_core")


def from_table(
    train: Any,
    test: Any = None,
    *,
    x: str | Sequence[str],
    y: str | Sequence[str] | None,
    targets: str = "classes",
    class_names: Sequence[str] | None = None,
    domains: str | None = None,
    clients: str | None = None,
    categorical: str | Sequence[str] = (),
    missing: str = "error",
    size: int | None = None,
    test_fraction: float | None = None,
    name: str = "table",
) -> Dataset:
    """Makes a data set from two tables, or splits one; checks it as `from_arrays` does.

    >>> train = {"text": [[5, 2, 0], [7, 1, 4], [5, 3, 0]], "mood": ["sad", "glad", "sad"], "user": ["u7", "u3", "u7"]}
    >>> test = {"text": [[7, 2, 4]], "mood": ["glad"], "user": ["u3"]}
    >>> data = from_table(train, test, x="text", y="mood", clients="user")
    >>> data.train.x.shape, data.class_names, data.train.y.tolist(), data.train_clients.tolist()
    ((3, 3), ('glad', 'sad'), [1, 0, 1], [1, 0, 1])

    With Hugging Face's library `from_table(data["train"], data["test"], x="img", y="label")`, with
    pandas `from_table(frame, x=["age", "height"], y="sport", test_fraction=0.2)`.

    Args:
      train: a Hugging Face dataset, a pandas frame, a mapping of columns, or a sequence of rows
        that are mappings.
      test: another one with the same columns; None: a part of `train`, see `test_fraction`.
      x: the column of the inputs. Its cells are numbers, lists or arrays of one shape, or images,
        which become grey [H, W, 1] if all are, else colours [H, W, 3]: Pillow's, the bytes of a
        file, or {"bytes": ..., "path": ...} as the Hugging Face hub has them. Or several columns of
        numbers, which become features [rows, D] in this order. Texts such as "31" are numbers.
      y: the column of the labels: integers from 0, truth values, or texts; where integers are
        negative or as large as years, they are classes with these names. Of other targets: of
        "labels" a column whose cells are lists of texts, or of 0 and 1, or several columns of
        those; of "numbers" a column, or several; of "tokens" a column of lists, or None where each
        position of x predicts the next.
      targets: as `from_arrays` has them.
      class_names: in the order of their labels. None: those that the column itself has (Hugging
        Face's ClassLabel, pandas' categories), else the texts in alphabetical order, else the
        numbers.
      domains: a column of integers or texts: where rows come from several domains.
      clients: a column of integers or texts: the natural client of each row.
      categorical: those of the columns x that hold categories. Each becomes one feature for each of
        its values in the order of the alphabet (numbers by size), 1 where a row has it and else 0.
      missing: what is done about cells that hold nothing (None, NaN, pandas' NA, an empty text, and
        in a column of numbers "NA"; among texts "NA" is a text). "error": the first is named.
        "drop": rows with one in a column that is used are left out. "mean": of x, they become the
        mean of the training rows, of categories the values' shares; elsewhere they are an error.
      size: images become size x size; needed where they differ.
      test_fraction: part of each class that becomes the test set, where there is no other, of each
        client's and domain's rows as far as it goes; of other targets of the latter alone; fixed seed.
      name: what tables of results call it.

    Raises:
      ValueError: no such column, classes or labels that are also inputs, cells of different shapes or
        missing ones, a label that has no name, or what `from_arrays` refuses; of a cell the message
        has column and row, from 0.
      TypeError: `train` or `test` is none of these.
    """
    if (test is None) == (test_fraction is None):
        has_test = "no" if test is None else "a"
        raise ValueError(f"test_fraction={test_fraction} with {has_test} test table: give one of them.")
    tables = {"train": train} if test is None else {"train": train, "test": test}
    registry.check_choice("targets", targets, TARGETS)
    registry.check_choice("missing", missing, MISSING)
    x_columns, y_columns, one_hot = _list_roles(x, y, categorical, targets)
    columns = list(dict.fromkeys([*x_columns, *y_columns, *filter(None, (domains, clients))]))
    cells = {part: _read_columns(part, table, columns) for part, table in tables.items()}
    fill = math.nan if missing == "mean" else 0
    inputs = table_columns.encode_inputs(cells, x_columns, one_hot, fill, size, alone=isinstance(x, str))
    encoded: dict[str, Any] = {}
    names: dict[str, Any] = {}
    if targets == "classes":
        known = class_names or table_columns.known_names(tables, y_columns[0])
        encoded["y"], names["class_names"] = table_columns.encode_labels(cells, y_columns[0], known, are_classes=True)
    else:
        encoded["y"], names["class_names"] = table_columns.encode_targets(cells, y_columns, targets, class_names)
    for field, column in (("domain", domains), ("client", clients)):
        if column is not None:
            labels, values = table_columns.encode_labels(cells, column, None)
            encoded[f"{field}s"], names[f"{field}_names"] = labels, values or ()
    parts = {}
    for part, held in cells.items():
        joined = table_columns.join_columns(inputs[part], x_columns)
        arrays = {"x": joined} | {field: codes[part] for field, codes in encoded.items()}
        numbers = _split_targets(encoded["y"][part], y_columns) | inputs[part]
        masks = {column: _missing_mask(column_cells, numbers.get(column)) for column, column_cells in held.items()}
        kept = _complete_rows(part, held, masks, missing, x_columns)
        for column, array in numbers.items():
            _check_no_infinity(part, column, held[column], array, kept)
        parts[part] = _select(arrays, kept)
    if test_fraction is not None:
        whole = parts["train"]
        is_test = _test_mask(whole, len(whole["x"]), targets, test_fraction)
        parts = {"train": _select(whole, ~is_test), "test": _select(whole, is_test)}
    if missing == "mean":
        feature_columns = [column for column in x_columns for _ in range(inputs["train"][column].shape[1])]
        _fill_with_means(parts, feature_columns)
    columns_of_parts: dict[str, Any] = {f"{part}_{field}": array for part, held in parts.items() for field, array in held.items()}
    return from_arrays(**columns_of_parts, **names, targets=targets, name=name)


def _list_roles(
    x: str | Sequence[str], y: str | Sequence[str] | None, categorical: str | Sequence[str], targets: str
) -> tuple[list[str], list[str], list[str]]:
    """Returns the columns of inputs, of targets and of categories; raises ValueError if they cannot be that together."""
    inputs, outputs, one_hot = map(table_columns.list_columns, (x, y, categorical))
    if not inputs:
        raise ValueError(f"x={x!r}: must be a column, or several columns of numbers.")
    for field, columns in (("x", inputs), ("y", outputs)):
        if repeated := [column for i, column in enumerate(columns) if column in columns[:i]]:
            raise ValueError(f"{field} has the column {repeated[0]!r} twice.")
    if targets == "classes" and len(outputs) != 1:
        raise ValueError(f"y={y!r}: classes are in one column; of several columns targets are 'labels' or 'numbers'.")
    if targets in ("classes", "labels") and (both := [column for column in outputs if column in inputs]):
        raise ValueError(
            f"x has the column {both[0]!r}, which is also y: a network would read what it is to predict; leave it out of x."
        )
    if other := [column for column in one_hot if column not in inputs]:
        raise ValueError(f"categorical={categorical!r}: {other[0]!r} must be one of the columns x, {', '.join(inputs)}.")
    return inputs, outputs, one_hot


def _read_columns(part: str, table: Any, columns: Sequence[str]) -> dict[str, Column]:
    """Returns the columns of a part by name; raises ValueError unless they have equally many rows."""
    held = {name: table_columns.read_column(part, table, name) for name in columns}
    if len({len(column) for column in held.values()}) != 1:
        raise ValueError(f"{part}: columns have {', '.join(f'{len(c)} ({name})' for name, c in held.items())} rows.")
    return held


def select_test_rows(
    table: Any, targets: str, y: str | Sequence[str] | None, domains: str | None, clients: str | None, test_fraction: float
) -> np.ndarray:
    """Returns the mask [n] of the rows that `from_table` takes as test set, before x is read.

    Raises:
      ValueError: as `from_table`.
    """
    names = {"y": next(iter(table_columns.list_columns(y)), None), "domains": domains, "clients": clients}
    encoded = {}
    for field in _STRATIFIED_BY[targets == "classes"]:
        if (column := names[field]) is not None:
            cells = {"train": {column: table_columns.read_column("train", table, column)}}
            encoded[field] = table_columns.encode_labels(cells, column, None)[0]["train"]
    return _test_mask(encoded, len(table), targets, test_fraction)


def _test_mask(columns: Mapping[str, Any], rows: int, targets: str, test_fraction: float) -> np.ndarray:
    """Returns the mask [n] of a fraction of the rows, stratified as `from_table` says."""
    strata = [columns[field] for field in _STRATIFIED_BY[targets == "classes"] if columns.get(field) is not None]
    return stratified_fraction_mask(strata or [np.zeros(rows, np.int32)], test_fraction)


def _select(arrays: Mapping[str, Any], mask: np.ndarray | None) -> dict[str, Any]:
    """Returns the rows of a mask (None: all) of the arrays that are not None."""
    return {field: array if array is None or mask is None else array[mask] for field, array in arrays.items()}


def _split_targets(y: np.ndarray | None, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the targets [n] or [n, D] by column."""
    return {column: y[:, i] if len(columns) > 1 else y for i, column in enumerate(columns)} if y is not None else {}


def _missing_mask(cells: Column, array: np.ndarray | None) -> np.ndarray:
    """Returns the mask [n] of rows whose cell is missing, or is encoded as a number that is."""
    mask = np.array([is_missing(cell) for cell in cells], bool)
    if array is not None and np.issubdtype(array.dtype, np.floating):
        mask |= np.isnan(array).any(tuple(range(1, array.ndim)))
    return mask


def _check_no_infinity(part: str, column: str, cells: Column, array: np.ndarray, kept: np.ndarray | None) -> None:
    """Raises ValueError of a cell that has a number that is infinite as float32, which would spoil its column's mean."""
    if not np.issubdtype(array.dtype, np.floating):
        return
    is_infinite = (np.abs(array) > np.finfo(np.float32).max).any(tuple(range(1, array.ndim)))
    if kept is not None:
        is_infinite &= kept
    if is_infinite.any():
        i = int(is_infinite.argmax())
        raise ValueError(
            f"{part}: row {i} of column {column!r} is {option_types.shorten(cells[i])}: must be finite, also as float32."
        )


def _complete_rows(
    part: str, held: Mapping[str, Column], masks: Mapping[str, np.ndarray], missing: str, inputs: Sequence[str]
) -> np.ndarray | None:
    """Returns the mask [n] of the rows that stay, or None for all, from the masks of missing cells.

    Raises:
      ValueError: a cell is missing and must not be; or no row is left.
    """
    for column, mask in masks.items():
        if not mask.any() or missing == "drop":
            continue
        i = int(mask.argmax())
        present = next((cell for cell in held[column] if not is_missing(cell)), None)
        can_fill = column in inputs and not table_columns.is_image(present)
        if missing == "mean" and can_fill:
            what = "%s: %d of %d cells of column %r are missing; they become the mean of the training rows"
            log.warning(what, part, mask.sum(), len(mask), column)
            continue
        also = ", missing='mean' puts the training rows' mean in its place" if can_fill else ""
        what = f"row {i} of column {column!r} is missing ({option_types.shorten(held[column][i])})"
        raise ValueError(f"{part}: {what}; missing='drop' leaves such rows out{also}.")
    dropped = np.any([*masks.values()], 0)
    if missing != "drop" or not dropped.any():
        return None
    columns = {column: mask.sum() for column, mask in masks.items() if mask.any()}
    if dropped.all():
        raise ValueError(f"{part}: every row has a missing cell, in {', '.join(columns)}.")
    where = ", ".join(f"{column} ({number})" for column, number in columns.items())
    log.warning("%s: %d of %d rows are left out, since cells are missing: %s", part, dropped.sum(), len(dropped), where)
    return ~dropped


def _fill_with_means(parts: dict[str, dict[str, Any]], feature_columns: Sequence[str]) -> None:
    """Puts the training rows' means where the parts' inputs "x" [n, D, ...] are NaN.

    Args:
      parts: by name; "x" is replaced.
      feature_columns: the column of each of the D.

    Raises:
      ValueError: no training row has a value.
    """
    train = parts["train"]["x"]
    if not any(np.issubdtype(held["x"].dtype, np.floating) and np.isnan(held["x"]).any() for held in parts.values()):
        return
    present = ~np.isnan(train)
    number = present.sum(0)
    if not number.all():
        column = feature_columns[int(np.argwhere(number == 0)[0][0])]
        raise ValueError(f"train: column {column!r} has no value of which missing='mean' could be the mean.")
    means = np.where(present, train, 0).sum(0, dtype=np.float64) / number
    for held in parts.values():
        held["x"] = np.where(np.isnan(held["x"]), means, held["x"])
