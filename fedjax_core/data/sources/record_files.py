"""Tables in files: delimited texts, JSON lines, Parquet or array_record."""

import csv as csv_module
import functools
import importlib
import io
import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fedjax_core import option_types
from fedjax_core.algorithm import TARGETS
from fedjax_core.data.sources.dataset import Dataset
from fedjax_core.data.sources.file_checks import Encoding, TestFraction, find_file, read_json_lines, read_text
from fedjax_core.data.sources.table_columns import MISSING_TEXTS, as_number, is_missing, list_columns, to_uint8
from fedjax_core.data.sources.tabular import MISSING, from_table, select_test_rows
from fedjax_core.data.sources.tfds_sets import decode_example
from fedjax_core.data.sources.vocabulary import index_texts
from fedjax_core.option_types import AtLeastOne, Limit, Width, one_of

Targets = Annotated[str, one_of(*TARGETS)]
Missing = Annotated[str, one_of(*MISSING)]
Delimiter = Annotated[str, Limit("one character, no quote and no line's end", lambda v: len(v) == 1 and v not in '"\r\n')]
Columns = str | Sequence[str]
DELIMITERS = (",", ";", "\t", "|")  # candidates if none is given
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)", re.ASCII)
_LABEL = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.0*)?", re.ASCII)  # an integer, also such as 5.0
_CODE = re.compile(r"[+-]?0[0-9]+", re.ASCII)  # such as the postcode 01067
_IMAGES_BEGIN = (b"\x89PNG\r\n", b"\xff\xd8\xff")  # PNG, JPEG


def csv(
    data_dir: Path,
    path: str,
    x: Columns,
    y: Columns | None = None,
    clients: str | None = None,
    domains: str | None = None,
    test: str | None = None,
    test_fraction: TestFraction | None = None,
    targets: Targets = "classes",
    categorical: Columns = (),
    missing: Missing = "error",
    delimiter: Delimiter | None = None,
    decimal: Literal[".", ","] = ".",
    encoding: Encoding = "utf-8",
    words: AtLeastOne | None = None,
    length: Width | None = None,
) -> Dataset:
    """Reads a delimited text, such as CSV, whose first line names the columns.

      hospital,age,ward,ill
      hospital_00,61,north,yes

    A column of nothing but numbers is one of numbers, unless one begins with 0 as postcodes do;
    others are texts. For categories, classes, clients and domains the cells of both files count; of the
    last three, numbers are integers alone (5, 5.0), and 1e3 or true are texts. A cell is missing that
    is empty, NA, N/A, NaN, null or ?, or None in a column of numbers. Other arguments as those of
    `jsonl`.

    Args:
      delimiter: between cells; None: of comma, semicolon, tab and | the one that the first line has
        most of.
      decimal: the decimal sign.
    """
    one_hot = list_columns(categorical)
    numeric = {*list_columns(x), *list_columns(y if targets == "numbers" else None)} - {*one_hot}
    labels = {*filter(None, (clients, domains)), *(list_columns(y) if targets == "classes" else ())}
    read = functools.partial(
        _read_delimited, delimiter=delimiter, encoding=encoding, decimal=decimal, numeric=numeric, unparsed={*one_hot, *labels}
    )
    parse = functools.partial(_parse_over_files, categories=one_hot, labels=labels, decimal=decimal)
    columns = dict(x=x, y=y, clients=clients, domains=domains, targets=targets, categorical=categorical, missing=missing)
    return _load_tables(read, data_dir, path, test, test_fraction, words, length, parse=parse, **columns)


def jsonl(
    data_dir: Path,
    path: str,
    x: Columns,
    y: Columns | None = None,
    clients: str | None = None,
    domains: str | None = None,
    test: str | None = None,
    test_fraction: TestFraction | None = None,
    targets: Targets = "classes",
    categorical: Columns = (),
    missing: Missing = "error",
    encoding: Encoding = "utf-8",
    words: AtLeastOne | None = None,
    length: Width | None = None,
) -> Dataset:
    """Reads a file of JSON objects, one per line, each a row with a column that names its client.

      {"user": "ann", "text": "the cat sat", "mood": "calm"}

    Args:
      path: the file; packed if it ends in .gz.
      x: the column of the inputs, or several of numbers (`from_table`); or one of texts, see
        `words`.
      y: the column of the targets, or several; None: each word of x predicts the next
        (targets="tokens").
      clients: the column that names the client, an integer or a text; for `partition="natural"`.
      domains: the column of the domain.
      test: the file of the test set; None: see `test_fraction`.
      test_fraction: part of the rows that becomes the test set, by class, or where there are none
        by client; fixed seed.
      targets: as `from_arrays` has them.
      categorical: columns of x that hold categories: a feature for each value, 1 in the rows that
        have it (`from_table`).
      missing: cells, such as null: "error"; "drop" leaves their rows out; "mean" puts the training
        examples' mean in their place (`from_table`).
      encoding: of a file without a byte-order mark, such as "latin-1".
      words: of x that are texts: so many of the most frequent words of the training examples are
        distinguished (`vocabulary.py`). The networks `lstm` and `causal` predict next words alone
        (targets="tokens"); to classify texts take a language task with an encoder, or a network of
        your own that reads token ids.
      length: of such texts: words of a row; longer ones are cut. Needed with `words`.

    Raises:
      ValueError: a line is no JSON object, or lacks a column, or what `from_table` refuses.
    """
    read = lambda file: [row for _, row in read_json_lines(file, encoding)]
    columns: Any = dict(x=x, y=y, clients=clients, domains=domains, targets=targets, categorical=categorical, missing=missing)
    return _load_tables(read, data_dir, path, test, test_fraction, words, length, **columns)


def parquet(
    data_dir: Path,
    path: str,
    x: Columns,
    y: Columns | None = None,
    clients: str | None = None,
    domains: str | None = None,
    test: str | None = None,
    test_fraction: TestFraction | None = None,
    targets: Targets = "classes",
    categorical: Columns = (),
    missing: Missing = "error",
    size: AtLeastOne | None = None,
    words: AtLeastOne | None = None,
    length: Width | None = None,
) -> Dataset:
    """Reads a Parquet table with a column that names the client; needs pyarrow.

    Images are bytes of files, or such with their path as the Hugging Face hub has them. Other
    arguments as those of `jsonl`.

    Args:
      size: images are resized to size x size pixels; needed where they differ.
    """
    columns: Any = dict(x=x, y=y, clients=clients, domains=domains, targets=targets, categorical=categorical, missing=missing)
    return _load_tables(_read_parquet, data_dir, path, test, test_fraction, words, length, size=size, **columns)


def array_record(
    data_dir: Path,
    path: str,
    x: Columns,
    y: Columns | None = None,
    clients: str | None = None,
    domains: str | None = None,
    test: str | None = None,
    test_fraction: TestFraction | None = None,
    targets: Targets = "classes",
    categorical: Columns = (),
    missing: Missing = "error",
    size: AtLeastOne | None = None,
    words: AtLeastOne | None = None,
    length: Width | None = None,
) -> Dataset:
    """Reads an array_record file of TensorFlow's records (`tf.train.Example`); needs array_record.

    A feature names the client. Features with one value are that value, but those of `y` with
    targets="labels" stay lists; bytes are texts, or the files of PNG and JPEG images. Other
    arguments as those of `jsonl`.

    Args:
      size: images are resized to size x size pixels; needed where they differ.
    """
    wanted = list_columns(y)
    read = functools.partial(_read_array_record, lists=wanted if targets == "labels" and len(wanted) == 1 else ())
    columns: Any = dict(x=x, y=y, clients=clients, domains=domains, targets=targets, categorical=categorical, missing=missing)
    return _load_tables(read, data_dir, path, test, test_fraction, words, length, size=size, **columns)


def _load_tables(
    read: Callable[[Path], Any],
    data_dir: Path,
    path: str,
    test: str | None,
    test_fraction: float | None,
    words: int | None,
    length: int | None,
    *,
    parse: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    **columns: Any,
) -> Dataset:
    """Builds a data set from files; `columns` are arguments of `from_table`.

    Args:
      parse: tables by part -> the same with cells that depend on all files; None: there are none.
    """
    tables = {part: _read(read, data_dir, file) for part, file in (("train", path), ("test", test)) if file is not None}
    tables = tables if parse is None else parse(tables)
    if (words is None) != (length is None):
        raise ValueError(f"words={words}, length={length}: texts need both, other inputs neither.")
    names = None
    try:
        if words is not None and length is not None:
            tables, names = _index_words(tables, words, length, test_fraction, columns)
            test_fraction = None if test is None else test_fraction
        given = columns | {"class_names": names, "test_fraction": test_fraction, "name": Path(path).name}
        return from_table(tables["train"], tables.get("test"), **given)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _index_words(
    tables: dict[str, Any], words: int, length: int, test_fraction: float | None, columns: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str] | None]:
    """Returns the tables with token ids in place of the texts of column x, and the tokens' names.

    Words are counted in the training examples alone, so a table of both is split first; not in rows
    that `from_table` leaves out.

    Raises:
      ValueError: x is not one column, or has a cell that is no text; or a missing one, which must not be.
    """
    if columns["missing"] == "mean":
        raise ValueError(
            f"missing='mean' with words={words}: a text has no mean; missing='drop' leaves out rows with missing cells."
        )
    x, y, targets = (columns[key] for key in ("x", "y", "targets"))
    if not isinstance(x, str):
        raise ValueError(f"x={x!r} must be the one column of texts, with words={words}.")
    rows = {part: _as_rows(table) for part, table in tables.items()}
    drops = columns["missing"] == "drop"
    used = [x, *list_columns(y), *filter(None, (columns["domains"], columns["clients"]))] if drops else []
    texts = {part: [_split_words(part, i, row, x, used) for i, row in enumerate(held)] for part, held in rows.items()}
    if "test" not in rows and test_fraction is not None:
        is_test = select_test_rows(rows["train"], targets, y, columns["domains"], columns["clients"], test_fraction)
        masks = {"train": ~is_test, "test": is_test}
        rows = {part: [*itertools.compress(rows["train"], mask)] for part, mask in masks.items()}
        texts = {part: [*itertools.compress(texts["train"], mask)] for part, mask in masks.items()}
    names, ids = index_texts(texts, words, length, behind=targets == "tokens" and y is None)
    for part, held in rows.items():
        rows[part] = [row | {x: None if is_missing(row[x]) else tokens} for row, tokens in zip(held, ids[part], strict=True)]
    return rows, names if targets == "tokens" else None


def _as_rows(table: Any) -> list[dict[str, Any]]:
    if not isinstance(table, dict):
        return table
    return [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]


def _split_words(part: str, i: int, row: dict[str, Any], column: str, used: Sequence[str]) -> list[str]:
    """Returns the words of a row's text; none if a cell of the columns `used` is missing."""
    if any(name in row and is_missing(row[name]) for name in used):
        return []
    if column in row and is_missing(row[column]):
        what = f"row {i} of column {column!r} is missing ({option_types.shorten(row[column])})"
        raise ValueError(f"{part}: {what}; missing='drop' leaves such rows out.")
    if not isinstance(row.get(column), str):
        raise ValueError(f"{part}: row {i} of column {column!r} is {option_types.shorten(row.get(column))}: must be a text.")
    return row[column].split()


def _read(read: Callable[[Path], Any], data_dir: Path, path: str) -> Any:
    table = read(find_file(path, data_dir, [data_dir / Path(path).expanduser()], "put the file there, or give its full path"))
    if not table or (isinstance(table, dict) and not any(table.values())):
        raise ValueError(f"{path}: has no rows.")
    return table


def _read_delimited(
    file: Path,
    delimiter: str | None,
    encoding: str,
    decimal: str,
    numeric: Collection[str] = (),
    unparsed: Collection[str] = (),
) -> dict[str, list[Any]]:
    """Reads the cells of a file by column; its first line names the columns.

    A column in which every cell that is not missing is a number becomes integers, or floats; one
    with a leading zero, such as 01067, stays texts. Missing cells become None.

    Args:
      numeric: columns that are read as numbers.
      unparsed: columns whose cells stay as they are written.

    Raises:
      ValueError: no header, a duplicate name, a line with more or fewer cells than the header,
        quotes that do not close, or with a decimal comma points in a numeric column; the message
        has the file and the line or the column.
    """
    text = read_text(file, encoding)
    delimiter = delimiter or _find_delimiter(text)
    reader = csv_module.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    names: list[str] = []
    rows: list[list[str]] = []
    try:
        for cells in reader:
            if not any(map(str.strip, cells)) and len(cells) <= 1:  # an empty line
                continue
            if not names:
                names = _check_header(file, cells)
            elif len(cells) != len(names):
                counts = f"has {len(cells)} cells, the header {len(names)}, with delimiter={delimiter!r}"
                raise ValueError(f"{file}, line {reader.line_num}: {counts}.")
            else:
                rows.append(cells)
    except csv_module.Error as error:
        raise ValueError(f"{file}, line {reader.line_num}: cannot be read with delimiter={delimiter!r} ({error}).") from None
    if not names:
        raise ValueError(f"{file}: has no header line that names the columns.")
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    parsed = {
        name: list(cells) if name in unparsed else _parse_column(cells, decimal) for name, cells in zip(names, columns, strict=True)
    }
    for name in parsed.keys() & numeric if decimal == "," else ():
        texts = (cell for cell in parsed[name] if isinstance(cell, str))
        if cell := next((text for text in texts if "." in text and as_number(text) is not None), None):
            raise ValueError(f"{file}: column {name!r} has {cell!r}, which is no number with decimal=','; write it without points.")
    return parsed


def _find_delimiter(text: str) -> str:
    header = next((line for line in text.splitlines() if line.strip()), "")
    unquoted = re.sub(r'"[^"]*"', "", header)
    return max(DELIMITERS, key=unquoted.count)


def _check_header(file: Path, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
        raise ValueError(f"{file}: the header has the column {twice!r} twice.")
    return names if names.count("") <= 1 else [name or f"column {i}" for i, name in enumerate(names)]


def _parse_column(cells: Sequence[str], decimal: str, are_labels: bool = False) -> list[Any]:
    """Returns a column's cells as numbers if all are, else as strings; None where missing.

    Labels are numbers only if all are integers: 1e3 and 1000 may be the names of two clients.
    """
    cells = [cell.strip() for cell in cells]
    # with a decimal comma a cell with a point is no number
    plain = cells if decimal == "." else [cell.replace(".", ":").replace(",", ".") for cell in cells]
    numbers = [as_number(cell) for cell in plain]
    present = [cell for cell, number in zip(plain, numbers, strict=True) if number == number]  # NaN, a missing cell, is not
    if are_labels and all(map(_LABEL.fullmatch, present)):
        return [None if number != number else int(cell.partition(".")[0]) for cell, number in zip(plain, numbers, strict=True)]
    if not are_labels and all(number is not None for number in numbers) and not any(map(_CODE.fullmatch, present)):
        is_integer = all(map(_INTEGER.fullmatch, present))
        return [
            None if number != number else int(cell) if is_integer else number for cell, number in zip(plain, numbers, strict=True)
        ]
    return [None if cell.casefold() in MISSING_TEXTS else cell for cell in cells]


def _parse_over_files(tables: dict[str, Any], categories: Collection[str], labels: Collection[str], decimal: str) -> dict[str, Any]:
    """Parses columns of categories and of labels over all files: one is written alike in each."""
    for column in {*categories, *labels}:
        held = {part: table[column] for part, table in tables.items() if column in table}
        parsed = iter(_parse_column([*itertools.chain(*held.values())], decimal, column in labels))
        for part, cells in held.items():
            tables[part][column] = [*itertools.islice(parsed, len(cells))]
    return tables


def _import(module: str, file: Path) -> Any:
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f"{file.name} is read with {package}: pip install {package}") from None


def _read_parquet(file: Path) -> list[dict[str, Any]]:
    pq = _import("pyarrow.parquet", file)
    try:
        table = pq.read_table(file)
        rows = table.to_pylist()
    except (ValueError, OSError) as error:
        raise ValueError(f"{file}: is no Parquet table, or damaged ({error}).") from error
    pixels = [field.name for field in table.schema if _is_list_of_bytes(field.type)]  # plain lists do not say that they are
    return [row | {name: to_uint8(row[name]) for name in pixels} for row in rows] if pixels else rows


def _is_list_of_bytes(arrow_type: Any) -> bool:
    """Returns whether cells of a column are lists (of lists) of uint8, such as pixels."""
    storage = getattr(arrow_type, "storage_type", None)  # of an extension type, such as Array2D of Hugging Face
    if storage is not None:
        return _is_list_of_bytes(storage)
    inner = getattr(arrow_type, "value_type", None)
    return inner is not None and (str(inner) == "uint8" or _is_list_of_bytes(inner))


def _read_array_record(file: Path, lists: Sequence[str]) -> list[dict[str, Any]]:
    module = _import("array_record.python.array_record_module", file)
    try:
        records = [decode_example(blob) for blob in module.ArrayRecordReader(str(file)).read_all()]
    except (ValueError, RuntimeError, OSError, IndexError) as error:
        raise ValueError(f"{file}: is no array_record of tf.train.Example, or damaged ({error}).") from error
    return [{name: _decode_feature(feature, name in lists) for name, feature in row.items()} for row in records]


def _decode_feature(feature: Any, as_list: bool) -> Any:
    """Returns a feature's strings, images or numbers; one alone as itself unless `as_list`."""
    if isinstance(feature, list):
        values = [value if value.startswith(_IMAGES_BEGIN) else value.decode(errors="replace") for value in feature]
    else:
        values = feature.tolist()
    return values if as_list or len(values) != 1 else values[0]
