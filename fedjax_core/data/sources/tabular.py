"""Data sets from tables: Hugging Face `datasets`, pandas frames, dicts of columns and lists of rows.

None of those libraries is needed or imported: what counts is how a table can be read.
"""

import io
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_core import option_types, registry
from fedjax_core.algorithm import TARGETS
from fedjax_core.data.row_readers import check_fits
from fedjax_core.data.sources import image_folder
from fedjax_core.data.sources.cell_values import as_number, is_missing
from fedjax_core.data.sources.dataset import Dataset, from_arrays, add_channel_axis
from fedjax_core.data.sources.file_checks import stratified_fraction_mask

MISSING = ("error", "mean", "drop")  # what may be done about missing cells
Column = list[Any]
_GREY_MODES = ("L", "1", "I", "F")  # Pillow's; others of grey pixels begin with "I;"
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
      x: the column of the inputs. Its cells are numbers, lists or arrays of one shape, or images, which become grey [H, W, 1] if
        all are, else colours [H, W, 3]: Pillow's, the bytes of a file, or {"bytes": ..., "path": ...} as the Hugging Face hub has
        them. Or several columns of numbers, which become features [rows, D] in this order. Texts such as "31" are numbers.
      y: the column of the labels: integers from 0, truth values, or texts. Of other targets: of "labels" a column whose cells are
        lists of texts, or of 0 and 1, or several columns of those; of "numbers" a column, or several; of "tokens" a column of
        lists, or None where each place of x is to tell the next.
      targets: as `from_arrays` has them.
      class_names: in the order of their labels. None: those that the column itself has (Hugging Face's ClassLabel, pandas'
        categories), else the texts in alphabetical order, else the numbers.
      domains: a column of integers from 0, or of texts: where rows come from several domains.
      clients: a column of integers or texts: the natural client of each row, which tables of results call by it.
      categorical: those of the columns x that hold categories. Each becomes one feature for each of its values in the order of the
        alphabet (numbers by size), 1 where a row has it and else 0.
      missing: what is done about cells that hold nothing (None, NaN, pandas' NA, and in a column of numbers "" and "NA").
        "error": the first is named. "drop": rows with one in a column that is used are left out. "mean": of x, they become the mean
        of the training rows, of categories the values' shares; elsewhere they are an error.
      size: images become size x size; needed where they differ.
      test_fraction: part of each class (and domain) that becomes the test set, where there is no other; of other targets of each
        client's (and domain's) rows; fixed seed.
      name: what tables of results call it.

    Raises:
      ValueError: no such column, cells of different shapes or missing ones, a label that has no name, or what `from_arrays`
        refuses; of a cell the message has column and row, from 0.
      TypeError: `train` or `test` is none of these.
    """
    if (test is None) == (test_fraction is None):
        raise ValueError(f"test_fraction={test_fraction} with {'no' if test is None else 'a'} test table: give one of them.")
    if not x:
        raise ValueError(f"x={x!r}: must be a column, or several columns of numbers.")
    tables = {"train": train} if test is None else {"train": train, "test": test}
    registry.choose("targets", targets, TARGETS)
    several = [[column] if isinstance(column, str) else list(column or ()) for column in (x, y)]
    if targets == "classes" and len(several[1]) != 1:
        raise ValueError(f"y={y!r}: classes are in one column; of several columns targets are 'labels' or 'numbers'.")
    columns = list(dict.fromkeys([*several[0], *several[1], *filter(None, (domains, clients))]))
    read = {part: {column: _column(part, table, column) for column in columns} for part, table in tables.items()}
    for part, held in read.items():
        if len({len(cells) for cells in held.values()}) != 1:
            raise ValueError(f"{part}: columns have {', '.join(f'{len(c)} ({name})' for name, c in held.items())} rows.")
    registry.choose("missing", missing, MISSING)
    one_hot = (categorical,) if isinstance(categorical, str) else tuple(categorical)
    if other := [column for column in one_hot if column not in several[0]]:
        raise ValueError(f"categorical={categorical!r}: {other[0]!r} must be one of the columns x, {', '.join(several[0])}.")
    fill = math.nan if missing == "mean" else 0
    blocks = _inputs(read, several[0], one_hot, fill, size, alone=isinstance(x, str))
    coded = {}
    if targets != "classes":
        coded["y"] = _targets(read, several[1], targets, class_names)
    for what, column in (*((("y", several[1][0]),) if targets == "classes" else ()), ("domains", domains), ("clients", clients)):
        known = class_names or _known_names(train, several[1][0]) if what == "y" else None
        coded[what] = (None, None) if column is None else _coded(read, column, known, renumber=what == "clients")
    parts = {
        part: {
            "x": _joined(blocks[part], several[0]),
            **{what: None if codes is None else codes[part] for what, (codes, _) in coded.items()},
        }
        for part in tables
    }
    for part, held in read.items():
        holes = {column: _holes(cells, blocks[part].get(column)) for column, cells in held.items()}
        if (kept := _kept(part, held, holes, missing, several[0])) is not None:
            parts[part] = {what: None if column is None else column[kept] for what, column in parts[part].items()}
    if test_fraction is not None:
        whole = parts["train"]
        columns = {"y": whole["y"], "domains": whole["domains"], "clients": whole["clients"]}
        is_test = _held_out(columns, len(whole["x"]), targets, test_fraction)
        for part, chosen in (("train", ~is_test), ("test", is_test)):
            parts[part] = {what: None if values is None else values[chosen] for what, values in whole.items()}
    if missing == "mean":
        of_feature = [column for column in several[0] for _ in range(blocks["train"][column].shape[1])]
        _fill_with_means(parts, of_feature)
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
        client_names=coded["clients"][1] or (),
    )


def select_test_rows(
    table: Any, targets: str, y: str | Sequence[str] | None, domains: str | None, clients: str | None, test_fraction: float
) -> np.ndarray:
    """[rows] bool: the rows that `from_table` takes for the test set, with the same arguments, before anything is made of x.

    Raises:
      ValueError: as `from_table`.
    """
    names = {"y": y if isinstance(y, str) else (*(y or ()), None)[0], "domains": domains, "clients": clients}
    needed = {what: name for what in _TOLD_BY[targets == "classes"] if (name := names[what]) is not None}
    read = {column: _column("train", table, column) for column in needed.values()}
    columns = {
        what: _coded({"train": read}, column, None, renumber=what == "clients")[0]["train"] for what, column in needed.items()
    }
    return _held_out(columns, len(table), targets, test_fraction)


_TOLD_BY = {True: ("y", "domains"), False: ("domains", "clients")}  # of classes; of other targets


def _held_out(columns: Mapping[str, Any], rows: int, targets: str, test_fraction: float) -> np.ndarray:
    """[rows] bool: a fraction of the rows, by class, domain and client as `from_table` has it."""
    strata = [columns[what] for what in _TOLD_BY[targets == "classes"] if columns.get(what) is not None]
    return stratified_fraction_mask(strata or [np.zeros(rows, np.int32)], test_fraction)


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
    return [to_uint8(cell) for cell in cells] if has_bytes else cells


def to_uint8(cell: Any) -> Any:
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


def _inputs(
    read: Mapping[str, Mapping[str, Column]],
    columns: Sequence[str],
    one_hot: Sequence[str] = (),
    fill: float = 0,
    size: int | None = None,
    *,
    alone: bool,
) -> dict[str, dict[str, np.ndarray]]:
    """Returns the arrays of the columns of each part; what is missing is `fill`.

    Args:
      read: cells by part and column.
      columns: the inputs.
      one_hot: those of them that hold categories.
      fill: stands where a cell is missing.
      size: of images.
      alone: whether they are one column of any shape, not one or several of single numbers.
    """
    found: dict[str, dict[str, np.ndarray]] = {part: {} for part in read}
    for column in columns:
        held = {part: cells[column] for part, cells in read.items()}
        if column in one_hot:
            arrays = _one_hot(held, column, fill)
        elif alone and any(_is_image(cell) for cells in held.values() for cell in cells):
            arrays = _pictures(held, column, size)
        else:
            arrays = {part: _stacked(part, column, cells, None if alone else 0, fill) for part, cells in held.items()}
        for part, array in arrays.items():
            found[part][column] = array if alone or array.ndim > 1 else array[:, None]
    return found


def _joined(blocks: Mapping[str, np.ndarray], columns: Sequence[str]) -> np.ndarray:
    """Returns the features of all columns beside each other, or the array of the only one."""
    return blocks[columns[0]] if len(columns) == 1 else np.concatenate([blocks[column] for column in columns], 1)


def _one_hot(held: Mapping[str, Column], column: str, fill: float) -> dict[str, np.ndarray]:
    """Returns [rows, values] float32 of each part: 1 where a row has the value."""
    plain = {part: [None if is_missing(cell) else cell for cell in cells] for part, cells in held.items()}
    for part, cells in plain.items():
        for i, cell in enumerate(cells):
            if not isinstance(cell, str | int | float | np.generic | None):
                wanted = "must be a text or a number, to be one of the values of a categorical column"
                raise ValueError(f"{part}: row {i} of column {column!r} is {option_types.short(cell)}: {wanted}.")
    different = {cell for cells in plain.values() for cell in cells} - {None}
    in_order = sorted(different, key=lambda cell: (isinstance(cell, str), cell))
    place = {cell: i for i, cell in enumerate(in_order)}
    found = {}
    for part, cells in plain.items():
        check_fits(f"column {column!r} with {len(place)} values", (len(cells), len(place)), np.float32)
        array = np.zeros((len(cells), len(place)), np.float32)
        for row, cell in zip(array, cells, strict=True):
            row[:] = fill if cell is None else 0
            if cell is not None:
                row[place[cell]] = 1
        found[part] = array
    return found


def _is_image(cell: Any) -> bool:
    """Returns whether a cell is an image: Pillow's, or encoded."""
    return hasattr(cell, "getbands") or isinstance(cell, bytes) or (isinstance(cell, Mapping) and "bytes" in cell)


def _pictures(held: Mapping[str, Column], column: str, size: int | None) -> dict[str, np.ndarray]:
    """Returns [rows, H, W, 1 or 3] uint8 of each part; a missing cell is like the first that is not."""
    from PIL import Image

    shown: dict[str, Column] = {}
    for part, cells in held.items():
        shown[part] = [cell["bytes"] if isinstance(cell, Mapping) and "bytes" in cell else cell for cell in cells]
        for i, (cell, shows) in enumerate(zip(cells, shown[part], strict=True)):
            if shows is None and cell is not None:
                what = f"row {i} of column {column!r} has the path {option_types.short(cell.get('path'))} of an image and no bytes"
                raise ValueError(f"{part}: {what}; write the files themselves into the table.")
            if not is_missing(cell) and not _is_image(cell):
                what = f"row {i} of column {column!r} is {type(cell).__name__}"
                raise ValueError(f"{part}: {what}: must be an image, as others are.")
    every = [cell for cells in shown.values() for cell in cells if not is_missing(cell)]

    def mode(cell: Any) -> str:
        if not isinstance(cell, bytes):
            return cell.mode
        try:
            return Image.open(io.BytesIO(cell)).mode
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            return "RGB"  # `decode` says what is wrong, and in which row

    grey_alone = all(m in _GREY_MODES or m.startswith("I;") for m in map(mode, every))
    shown = {part: [every[0] if is_missing(cell) else cell for cell in cells] for part, cells in shown.items()}
    if all(isinstance(cell, bytes) for cell in every):
        return {
            part: image_folder.decode_images(
                lambda i, part=part: f"{part}: row {i} of column {column!r}", cells, len(cells), 1 if grey_alone else 3, size
            )
            for part, cells in shown.items()
        }

    channels = 1 if grey_alone else 3
    arrays, brightest = {}, []
    for part, cells in shown.items():
        pixels = []
        for i, cell in enumerate(cells):
            image = Image.open(io.BytesIO(cell)) if isinstance(cell, bytes) else cell
            told = f"{part}: row {i} of column {column!r}"
            eight_bits = image_folder.to_bytes(image, told)
            if image_folder.is_deep(image):
                brightest.append(eight_bits.getextrema()[1])
            image = image_folder.convert(eight_bits, channels, told)
            pixels.append(np.asarray(image if size is None else image.resize((size, size), Image.Resampling.BILINEAR)))
        arrays[part] = add_channel_axis(_stacked(part, column, pixels))
    image_folder.warn_if_dark(max(brightest, default=None), f"row 0 of column {column!r}")
    return arrays


def _stacked(part: str, name: str, cells: Column, axes: int | None = None, fill: float = 0) -> np.ndarray:
    """One array of a column's cells [rows, ...]; a number per row becomes [rows, 1], unless its `axes` are said to be 0. What is
    missing is `fill`."""
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
            hint = ""
            if isinstance(cell, str):
                hint = f"; a column of categories is named in categorical=({name!r},), one of texts takes words= and length="
            raise ValueError(
                f"{part}: row {i} of column {name!r} is {_short(cell)}: must be numbers of one shape, or an image{hint}."
            )
        if first is None:
            first = array
        if array.shape != first.shape or (axes is not None and array.ndim != axes):
            wanted = "one number" if axes == 0 else f"as the first, {list(first.shape)}; pad, cut or resize them first"
            raise ValueError(f"{part}: row {i} of column {name!r} has shape {list(array.shape)}: must be {wanted}.")
        arrays.append(array)
    if first is None:
        stacked = np.full(len(cells) if axes == 0 else (len(cells), 1), fill, np.float64)
    else:
        empty = np.full(first.shape, fill) if fill else np.zeros(first.shape, first.dtype)
        stacked = np.stack([empty if array is None else array for array in arrays])
    return stacked[:, None] if stacked.ndim == 1 and axes is None else stacked


def _short(cell: Any) -> str:
    return option_types.short(cell) if isinstance(cell, str) else type(cell).__name__


def _holes(cells: Column, block: np.ndarray | None) -> np.ndarray:
    """Returns [rows] bool: where a column's cell is missing, or of inputs has a number that is."""
    holes = np.array([is_missing(cell) for cell in cells], bool)
    if block is not None and np.issubdtype(block.dtype, np.floating):
        holes |= np.isnan(block).any(tuple(range(1, block.ndim)))
    return holes


def _kept(
    part: str, held: Mapping[str, Column], holes: Mapping[str, np.ndarray], missing: str, inputs: Sequence[str]
) -> np.ndarray | None:
    """Returns the rows [rows] bool that stay, or None for all.

    Raises:
      ValueError: a cell is missing and must not be; or no row is left.
    """
    for column, rows in holes.items():
        if not rows.any() or missing == "drop":
            continue
        i = int(rows.argmax())
        fillable = column in inputs and not _is_image(next((cell for cell in held[column] if not is_missing(cell)), None))
        if missing == "mean" and fillable:
            log.warning("%s: %d of %d cells of column %r are missing and become its mean", part, rows.sum(), len(rows), column)
            continue
        also = ", missing='mean' puts the training rows' mean in its place" if fillable else ""
        what = f"row {i} of column {column!r} is missing ({option_types.short(held[column][i])})"
        raise ValueError(f"{part}: {what}; missing='drop' leaves such rows out{also}.")
    lost = np.any([*holes.values()], 0)
    if missing != "drop" or not lost.any():
        return None
    if lost.all():
        raise ValueError(f"{part}: every row has a missing cell, in {', '.join(c for c, rows in holes.items() if rows.any())}.")
    where = ", ".join(f"{column} ({rows.sum()})" for column, rows in holes.items() if rows.any())
    log.warning("%s: %d of %d rows are left out, since cells are missing: %s", part, lost.sum(), len(lost), where)
    return ~lost


def _fill_with_means(parts: dict[str, dict[str, Any]], of_feature: Sequence[str]) -> None:
    """Puts the training rows' means where inputs [rows, D, ...] are NaN.

    Args:
      parts: by name, with the inputs "x", which are replaced.
      of_feature: the column of each of the D.

    Raises:
      ValueError: no training row has a value.
    """
    train = parts["train"]["x"]
    if not any(np.issubdtype(held["x"].dtype, np.floating) and np.isnan(held["x"]).any() for held in parts.values()):
        return
    there = ~np.isnan(train)
    number = there.sum(0)
    if not number.all():
        column = of_feature[int(np.argwhere(number == 0)[0][0])]
        raise ValueError(f"train: column {column!r} has no value of which missing='mean' could be the mean.")
    means = np.where(there, train, 0).sum(0, dtype=np.float64) / number
    for held in parts.values():
        held["x"] = np.where(np.isnan(held["x"]), means, held["x"])


def _targets(
    read: Mapping[str, Mapping[str, Column]], columns: Sequence[str], targets: str, names: Sequence[str] | None
) -> tuple[dict[str, Any], Sequence[str] | None]:
    """(targets that are no classes, of each part; names): lists of texts become truth values."""
    if not columns and targets == "tokens":
        return dict.fromkeys(read), names
    if not columns:
        raise ValueError(f"y={None}: targets={targets!r} are in a column, or in several.")
    texts = [cell for held in read.values() for cell in held[columns[0]] if not is_missing(cell)]
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
                part: np.array(
                    [[not is_missing(cell) and name in list(cell) for name in names] for cell in held[columns[0]]], bool
                ).reshape(len(held[columns[0]]), len(names))
                for part, held in read.items()
            }, names
    if names is None and len(columns) > 1:
        names = columns
    arrays = _inputs(read, columns, alone=len(columns) == 1)
    return {part: _joined(held, columns) for part, held in arrays.items()}, names


def _labels(read: Mapping[str, Mapping[str, Column]], column: str) -> Iterator[tuple[str, int, Any]]:
    """(part, row, label) of every entry of a column of lists."""
    for part, held in read.items():
        for i, cell in enumerate(held[column]):
            yield from ((part, i, label) for label in (() if is_missing(cell) else cell))


def _known_names(table: Any, column: str) -> tuple[str, ...] | None:
    """The class names that a column itself has."""
    features = getattr(table, "features", None)  # Hugging Face's
    if isinstance(features, Mapping) and getattr(features.get(column), "names", None):
        return tuple(features[column].names)
    categories = getattr(getattr(table[column] if hasattr(table, "columns") else None, "cat", None), "categories", None)  # pandas'
    return tuple(categories) if categories is not None and all(isinstance(name, str) for name in categories) else None


def _coded(
    read: Mapping[str, Mapping[str, Column]], column: str, names: Sequence[str] | None, *, renumber: bool = False
) -> tuple[dict[str, np.ndarray], Sequence[str] | None]:
    """(integers of each part, names): integers stay, texts become their places among the names; -1 where a cell is missing.

    Args:
      read: cells by part and column.
      column: the one that is meant.
      names: of the integers from 0; None: of texts in alphabetical order.
      renumber: whether integers that are below 0 or need more than 31 bits become their places in order, and have names.
    """
    labels = {part: [None if is_missing(cell) else _label(cell) for cell in held[column]] for part, held in read.items()}
    first: tuple[int, type] | None = None
    for part, held in labels.items():
        for i, label in enumerate(held):
            if label is None:
                continue
            kind = type(label)
            first = first or (i, kind)
            if kind is not first[1] or kind not in _LABELS:
                wanted = _LABELS[first[1]] + f", as row {first[0]}" if first[1] in _LABELS else "an integer or a text"
                raise ValueError(
                    f"{part}: row {i} of column {column!r} is {option_types.short(read[part][column][i])}: must be {wanted}."
                )
    kind = int if first is None else first[1]
    if kind is bool:
        names = ("False", "True") if names is None else names
    elif kind is int:
        large = [(part, i) for part, held in labels.items() for i, n in enumerate(held) if n is not None and not 0 <= n < 2**31]
        if large and not renumber:
            part, i = large[0]
            raise ValueError(f"{part}: row {i} of column {column!r} is {labels[part][i]}: must be from 0 to {2**31 - 1}.")
        if not large:
            return {part: _integers(held) for part, held in labels.items()}, names
    if kind is not bool:
        different: set[Any] = {label for held in labels.values() for label in held if label is not None}
        order = sorted(different) if names is None or kind is int else [str(name) for name in names]
        if unknown := sorted(different - {*order}):
            raise ValueError(f"column {column!r} has {unknown[0]!r}, which has no name among {', '.join(map(str, order))}.")
        place = {label: i for i, label in enumerate(order)}
        labels = {part: [None if label is None else place[label] for label in held] for part, held in labels.items()}
        names = [str(label) for label in order]
    return {part: _integers(held) for part, held in labels.items()}, names


_LABELS = {str: "a text", int: "an integer", bool: "true or false"}


def _label(cell: Any) -> Any:
    """Returns a text, an integer or a truth value as Python's; numbers without decimals are integers; others as they are."""
    if isinstance(cell, bool | np.bool_):
        return bool(cell)
    if isinstance(cell, str):
        return str(cell)
    try:
        return int(cell) if int(cell) == cell else cell
    except (TypeError, ValueError, OverflowError):
        return cell


def _integers(labels: Sequence[int | None]) -> np.ndarray:
    return np.array([-1 if label is None else label for label in labels], np.int64)
