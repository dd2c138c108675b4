"""Data sets from tables: Hugging Face `datasets`, pandas frames, dicts of columns and lists of rows.

None of those libraries is needed or imported: what counts is how a table can be read.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_core import by_name
from fedjax_core.algorithm import TARGETS
from fedjax_core.data.sources import images
from fedjax_core.data.sources.dataset import Dataset, from_arrays, grey
from fedjax_core.data.sources.splits import stratified_fraction

Column = list[Any]


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
    test_fraction: float | None = None,
    name: str = "table",
) -> Dataset:
    """A data set from two tables, or from one that is split here; checks it as `from_arrays` does.

    >>> train = {"text": [[5, 2, 0], [7, 1, 4], [5, 3, 0]], "mood": ["sad", "glad", "sad"], "user": ["u7", "u3", "u7"]}
    >>> test = {"text": [[7, 2, 4]], "mood": ["glad"], "user": ["u3"]}
    >>> mine = from_table(train, test, x="text", y="mood", clients="user")
    >>> mine.train.x.shape, mine.class_names, mine.train.y.tolist(), mine.train_clients.tolist()
    ((3, 3), ('glad', 'sad'), [1, 0, 1], [1, 0, 1])

    With Hugging Face's library `from_table(data["train"], data["test"], x="img", y="label")`, with pandas
    `from_table(frame, x=["age", "height"], y="sport", test_fraction=0.2)`.

    Args:
      train: a Hugging Face dataset, a pandas frame, a mapping of columns, or a sequence of rows that are mappings.
      test: another one with the same columns; None: a part of `train`, see `test_fraction`.
      x: the column of the inputs. Its cells are numbers, lists or arrays of one shape, or images (Pillow's), which become grey
        [H, W, 1] if all are, else colours [H, W, 3]. Or several columns of numbers, which become features [rows, D] in this order.
      y: the column of the labels: integers from 0, or texts. Of other targets: of "labels" a column whose cells are lists of texts,
        or of 0 and 1, or several columns of those; of "numbers" a column, or several; of "tokens" a column of lists, or None where
        each place of x is to tell the next.
      targets: as `from_arrays` has them.
      class_names: in the order of their labels. None: those that the column itself has (Hugging Face's ClassLabel, pandas'
        categories), else the texts in alphabetical order, else the numbers.
      domains: a column of integers from 0, or of texts: where rows come from several domains.
      clients: a column of integers or texts: the natural client of each row.
      test_fraction: part of each class (and domain) that becomes the test set, where there is no other; of other targets of each
        client's (and domain's) rows; fixed seed.
      name: what tables of results call it.

    Raises:
      ValueError: no such column, cells of different shapes, a label that is missing or has no name, or what `from_arrays` refuses.
      TypeError: `train` or `test` is none of these.
    """
    if (test is None) == (test_fraction is None):
        raise ValueError(f"test_fraction={test_fraction} with {'no' if test is None else 'a'} test table: give one of them.")
    if not x:
        raise ValueError(f"x={x!r}: must be a column, or several columns of numbers.")
    tables = {"train": train} if test is None else {"train": train, "test": test}
    by_name.choose("targets", targets, TARGETS)
    several = [[column] if isinstance(column, str) else list(column or ()) for column in (x, y)]
    if targets == "classes" and len(several[1]) != 1:
        raise ValueError(f"y={y!r}: classes are in one column; of several columns targets are 'labels' or 'numbers'.")
    columns = list(dict.fromkeys([*several[0], *several[1], *filter(None, (domains, clients))]))
    read = {part: {column: _column(part, table, column) for column in columns} for part, table in tables.items()}
    for part, held in read.items():
        if len({len(cells) for cells in held.values()}) != 1:
            raise ValueError(f"{part}: columns have {', '.join(f'{len(c)} ({name})' for name, c in held.items())} rows.")
    inputs = _inputs(read, x)
    coded = {}
    if targets != "classes":
        coded["y"] = _targets(read, several[1], targets, class_names)
    for what, column in (*((("y", several[1][0]),) if targets == "classes" else ()), ("domains", domains), ("clients", clients)):
        known = class_names or _known_names(train, several[1][0]) if what == "y" else None
        coded[what] = (None, None) if column is None else _coded(read, column, known)
    parts = {
        part: {"x": inputs[part], **{what: None if codes is None else codes[part] for what, (codes, _) in coded.items()}}
        for part in tables
    }
    if test_fraction is not None:
        whole = parts["train"]
        columns = {"y": whole["y"], "domains": whole["domains"], "clients": whole["clients"]}
        is_test = _held_out(columns, len(whole["x"]), targets, test_fraction)
        for part, chosen in (("train", ~is_test), ("test", is_test)):
            parts[part] = {what: None if values is None else values[chosen] for what, values in whole.items()}
    return from_arrays(
        parts["train"]["x"],
        parts["train"]["y"],
        parts["test"]["x"],
        parts["test"]["y"],
        coded["y"][1],
        targets=targets,
        name=name,
        train_domains=parts["train"]["domains"],
        test_domains=parts["test"]["domains"],
        domain_names=coded["domains"][1] or (),
        train_clients=parts["train"]["clients"],
        test_clients=parts["test"]["clients"],
    )


def test_rows(
    table: Any, targets: str, y: str | Sequence[str] | None, domains: str | None, clients: str | None, test_fraction: float
) -> np.ndarray:
    """[rows] bool: the rows that `from_table` takes for the test set, with the same arguments, before anything is made of x.

    Raises:
      ValueError: as `from_table`.
    """
    names = {"y": y if isinstance(y, str) else (*(y or ()), None)[0], "domains": domains, "clients": clients}
    needed = {what: name for what in _TOLD_BY[targets == "classes"] if (name := names[what]) is not None}
    read = {column: _column("train", table, column) for column in needed.values()}
    columns = {what: _coded({"train": read}, column, None)[0]["train"] for what, column in needed.items()}
    return _held_out(columns, len(table), targets, test_fraction)


_TOLD_BY = {True: ("y", "domains"), False: ("domains", "clients")}  # of classes; of other targets


def _held_out(columns: Mapping[str, Any], rows: int, targets: str, test_fraction: float) -> np.ndarray:
    """[rows] bool: a fraction of the rows, by class, domain and client as `from_table` has it."""
    strata = [columns[what] for what in _TOLD_BY[targets == "classes"] if columns.get(what) is not None]
    return stratified_fraction(strata or [np.zeros(rows, np.int32)], test_fraction)


def _column(part: str, table: Any, name: str) -> Column:
    """The cells of one column."""
    named: Any = table
    there = getattr(table, "column_names", None)  # Hugging Face's
    there = getattr(table, "columns", None) if there is None else there  # pandas'
    if there is None and isinstance(table, Mapping):
        there = table
    if there is None and isinstance(table, Sequence) and table and all(isinstance(row, Mapping) for row in table):
        if lacking := [i for i, row in enumerate(table) if name not in row]:
            raise ValueError(f"{part}: row {lacking[0]} has no column {name!r}; it has: {', '.join(map(str, table[lacking[0]]))}.")
        return [row[name] for row in table]
    if there is None:
        wanted = "a Hugging Face dataset, a pandas frame, a mapping of columns or a sequence of mappings, at least one"
        raise TypeError(f"{part} is {type(table).__name__}: must be {wanted}.")
    if isinstance(there, Mapping) and table is not there:  # a DatasetDict has columns by split
        raise ValueError(f"{part} holds several tables, {', '.join(map(str, there))}: give one of them.")
    if name not in list(there):
        raise ValueError(f"{part} has no column {name!r}; it has: {', '.join(map(str, there))}.")
    cells = list(named[name])
    features = getattr(table, "features", None)  # Hugging Face's
    has_bytes = isinstance(features, Mapping) and _is_array_of_bytes(features.get(name))
    return [as_bytes(cell) for cell in cells] if has_bytes else cells


def as_bytes(cell: Any) -> Any:
    """Returns nested lists of numbers of 8 bits as one array of uint8; the cell itself where it is no such."""
    try:
        return np.asarray(cell, np.uint8)
    except (TypeError, ValueError, OverflowError):
        return cell


def _is_array_of_bytes(feature: Any) -> bool:
    """Returns whether a feature of Hugging Face's is an array, or lists, of uint8."""
    if isinstance(feature, list):
        return len(feature) == 1 and _is_of_bytes(feature[0])
    inner = getattr(feature, "feature", None)  # of a list; an array has a shape
    return _is_of_bytes(inner) if inner is not None else hasattr(feature, "shape") and feature.dtype == "uint8"


def _is_of_bytes(feature: Any) -> bool:
    return getattr(feature, "dtype", None) == "uint8" or _is_array_of_bytes(feature)


def _inputs(read: Mapping[str, Mapping[str, Column]], x: str | Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays [rows, ...] of each part."""
    if not isinstance(x, str):
        return {part: np.stack([_stacked(part, name, held[name], 0) for name in x], 1) for part, held in read.items()}
    cells = [cell for held in read.values() for cell in held[x]]
    if cells and all(hasattr(cell, "getbands") for cell in cells):  # Pillow's images
        return _images(read, x)
    return {part: _stacked(part, x, held[x]) for part, held in read.items()}


def _images(read: Mapping[str, Mapping[str, Column]], x: str) -> dict[str, np.ndarray]:
    """Returns Pillow's images of each part, [rows, H, W, 1 or 3] uint8."""
    decoded, brightest = {}, []
    for part, held in read.items():
        told = f"{part}: row {{}} of column {x!r}"
        decoded[part] = [images.to_bytes(cell, told.format(i)) for i, cell in enumerate(held[x])]
        deep = (new for cell, new in zip(held[x], decoded[part], strict=True) if images.is_deep(cell))
        brightest += [image.getextrema()[1] for image in deep]
    images.warn_if_dark(max(brightest, default=None), f"row 0 of column {x!r}")
    mode = "L" if all(image.mode in ("L", "1") for part in decoded.values() for image in part) else "RGB"
    arrays = {part: [np.asarray(image.convert(mode)) for image in part_images] for part, part_images in decoded.items()}
    return {part: grey(_stacked(part, x, array)) for part, array in arrays.items()}


def _stacked(part: str, name: str, cells: Column, axes: int | None = None) -> np.ndarray:
    """One array of a column's cells [rows, ...]; a number per row becomes [rows, 1], unless its `axes` are said to be 0."""
    arrays = []
    for i, cell in enumerate(cells):
        try:
            array = np.asarray(cell)
        except ValueError:
            array = np.asarray(None)
        if array.dtype.kind not in "buif":
            raise ValueError(
                f"{part}: row {i} of column {name!r} is {type(cell).__name__}: must be numbers of one shape, or an image."
            )
        if array.shape != (arrays[0].shape if arrays else array.shape) or (axes is not None and array.ndim != axes):
            wanted = "one number" if axes == 0 else f"as the first, {list(arrays[0].shape)}; pad, cut or resize them first"
            raise ValueError(f"{part}: row {i} of column {name!r} has shape {list(array.shape)}: must be {wanted}.")
        arrays.append(array)
    stacked = np.stack(arrays) if arrays else np.zeros((0, 1))
    return stacked[:, None] if stacked.ndim == 1 and axes is None else stacked


def _targets(
    read: Mapping[str, Mapping[str, Column]], columns: Sequence[str], targets: str, names: Sequence[str] | None
) -> tuple[dict[str, Any], Sequence[str] | None]:
    """(targets that are no classes, of each part; names): lists of texts become truth values."""
    if not columns and targets == "tokens":
        return dict.fromkeys(read), names
    if not columns:
        raise ValueError(f"y={None}: targets={targets!r} are in a column, or in several.")
    texts = [cell for held in read.values() for cell in held[columns[0]]]
    if targets == "labels" and len(columns) == 1 and all(isinstance(cell, list | tuple | np.ndarray) for cell in texts):
        found = sorted({label for cell in texts for label in cell if isinstance(label, str)})
        if found:
            if other := next((one for one in _labels(read, columns[0]) if not isinstance(one[2], str)), None):
                part, i, label = other
                raise ValueError(
                    f"{part}: row {i} of column {columns[0]!r} has the label {label!r}: must be a text, as others are."
                )
            names = found if names is None else [str(name) for name in names]
            if unknown := sorted({*found} - {*names}):
                raise ValueError(f"column {columns[0]!r} has {unknown[0]!r}, which has no name among {', '.join(names)}.")
            return {
                part: np.array([[name in list(cell) for name in names] for cell in held[columns[0]]]) for part, held in read.items()
            }, names
    if names is None and len(columns) > 1:
        names = columns
    return _inputs(read, columns[0] if len(columns) == 1 else columns), names


def _labels(read: Mapping[str, Mapping[str, Column]], column: str) -> Iterator[tuple[str, int, Any]]:
    """(part, row, label) of every entry of a column of lists."""
    for part, held in read.items():
        for i, cell in enumerate(held[column]):
            yield from ((part, i, label) for label in cell)


def _known_names(table: Any, column: str) -> tuple[str, ...] | None:
    """The class names that a column itself has."""
    features = getattr(table, "features", None)  # Hugging Face's
    if isinstance(features, Mapping) and getattr(features.get(column), "names", None):
        return tuple(features[column].names)
    categories = getattr(getattr(table[column] if hasattr(table, "columns") else None, "cat", None), "categories", None)  # pandas'
    return tuple(categories) if categories is not None and all(isinstance(name, str) for name in categories) else None


def _coded(
    read: Mapping[str, Mapping[str, Column]], column: str, names: Sequence[str] | None
) -> tuple[dict[str, np.ndarray], Sequence[str] | None]:
    """(integers of each part, names): integers stay, texts become their places among the names."""
    cells = [cell for held in read.values() for cell in held[column]]
    whole = [isinstance(cell, int | np.integer) and not isinstance(cell, bool) for cell in cells]
    if all(whole):
        return {part: np.array(held[column], np.int64) for part, held in read.items()}, names
    for part, held in read.items():
        for i, cell in enumerate(held[column]):
            if not isinstance(cell, str):
                raise ValueError(f"{part}: row {i} of column {column!r} is {cell!r}: must be a text, or all of them integers.")
    names = sorted({*cells}) if names is None else [str(name) for name in names]
    if unknown := sorted({*cells} - {*names}):
        raise ValueError(f"column {column!r} has {unknown[0]!r}, which has no name among {', '.join(names)}.")
    place = {name: i for i, name in enumerate(names)}
    return {part: np.array([place[cell] for cell in held[column]], np.int64) for part, held in read.items()}, names
