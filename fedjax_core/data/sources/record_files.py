"""Tables in files: delimited texts, JSON lines, Parquet or array_record, with a column that names
the client.
"""

import functools
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from fedjax_core import option_types
from fedjax_core.algorithm import TARGETS
from fedjax_core.data.sources import tf_example
from fedjax_core.data.sources.cell_values import is_missing
from fedjax_core.data.sources.csv_reader import read_delimited
from fedjax_core.data.sources.dataset import Dataset
from fedjax_core.data.sources.file_checks import Encoding, TestFraction, find_file, read_text
from fedjax_core.data.sources.table_columns import to_uint8
from fedjax_core.data.sources.tabular import MISSING, from_table, select_test_rows
from fedjax_core.data.sources.vocabulary import index_texts
from fedjax_core.option_types import AtLeastOne, Limit, Width, one_of

Missing = Annotated[str, one_of(*MISSING)]
Delimiter = Annotated[str, Limit("one sign, no quote and no line's end", lambda v: len(v) == 1 and v not in '"\r\n')]


def csv(
    data_dir: Path,
    path: str,
    x: str | Sequence[str],
    y: str | Sequence[str] | None = None,
    clients: str | None = None,
    domains: str | None = None,
    test: str | None = None,
    test_fraction: TestFraction | None = None,
    targets: Annotated[str, one_of(*TARGETS)] = "classes",
    categorical: str | Sequence[str] = (),
    missing: Missing = "error",
    delimiter: Delimiter | None = None,
    decimal: Literal[".", ","] = ".",
    encoding: Encoding = "utf-8",
    words: AtLeastOne | None = None,
    length: Width | None = None,
) -> Dataset:
    """Reads a delimited text, such as CSV, whose first line names the columns, each further one a
    row.

      hospital,age,ward,ill
      hospital_00,61,north,yes

    A column of nothing but numbers is one of numbers, unless one begins with 0 as postcodes do;
    others are texts. A cell is missing that is empty, NA, N/A, NaN, null or ?, or None in a column
    of numbers.

    Args:
      data_dir, path, x, y, clients, domains, test, test_fraction, targets, words, length: as those
        of `jsonl`.
      categorical: columns of x that hold categories: a feature for each value, 1 in the rows that
        have it (`from_table`).
      missing: cells: "error"; "drop" leaves their rows out; "mean" puts the training examples' mean
        in their place (`from_table`).
      delimiter: between cells; None: of comma, semicolon, tab and | the one that the first line has
        most of.
      decimal: the decimal sign.
      encoding: of the file, such as "latin-1"; a file with a byte-order mark says its own.

    Raises:
      FileNotFoundError, ValueError: as `jsonl`.
    """
    read = functools.partial(read_delimited, delimiter=delimiter, encoding=encoding, decimal=decimal)
    columns = dict(x=x, y=y, clients=clients, domains=domains, targets=targets, categorical=categorical, missing=missing)
    return _rows(read, data_dir, path, test, test_fraction, words, length, **columns)


def jsonl(
    data_dir: Path,
    path: str,
    x: str | Sequence[str],
    y: str | Sequence[str] | None = None,
    clients: str | None = None,
    domains: str | None = None,
    test: str | None = None,
    test_fraction: TestFraction | None = None,
    targets: Annotated[str, one_of(*TARGETS)] = "classes",
    categorical: str | Sequence[str] = (),
    missing: Missing = "error",
    encoding: Encoding = "utf-8",
    words: AtLeastOne | None = None,
    length: Width | None = None,
) -> Dataset:
    """Reads a file of JSON objects, one per line, each a row with a column that names its client.

      {"user": "ann", "text": "the cat sat", "mood": "calm"}

    Args:
      data_dir: where relative paths start.
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
      encoding: of the file, such as "latin-1"; a file with a byte-order mark says its own.
      words: of x that are texts: so many of the most frequent words of the training examples are
        distinguished (`vocabulary.py`). The networks `lstm` and `causal` predict next words alone
        (targets="tokens"); to classify texts take a language task with an encoder, or a network of
        your own that reads token ids.
      length: of such texts: words of a row; longer ones are cut. Needed with `words`.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line is no JSON object, or lacks a column, or what `from_table` refuses; the
        message has file and line.
    """
    read = functools.partial(_json, encoding=encoding)
    columns = dict(x=x, y=y, clients=clients, domains=domains, targets=targets, categorical=categorical, missing=missing)
    return _rows(read, data_dir, path, test, test_fraction, words, length, **columns)


def parquet(
    data_dir: Path,
    path: str,
    x: str | Sequence[str],
    y: str | Sequence[str] | None = None,
    clients: str | None = None,
    domains: str | None = None,
    test: str | None = None,
    test_fraction: TestFraction | None = None,
    targets: Annotated[str, one_of(*TARGETS)] = "classes",
    categorical: str | Sequence[str] = (),
    missing: Missing = "error",
    size: AtLeastOne | None = None,
    words: AtLeastOne | None = None,
    length: Width | None = None,
) -> Dataset:
    """Reads a Parquet table with a column that names the client; reading it needs pyarrow. Images
    are bytes of files, or such with their path as the Hugging Face hub has them. Other arguments as
    those of `jsonl`.

    Args:
      size: images are resized to size x size pixels; needed where they differ.

    Raises:
      FileNotFoundError, ValueError: as `jsonl`.
      ImportError: pyarrow is not there.
    """
    columns = dict(x=x, y=y, clients=clients, domains=domains, targets=targets, categorical=categorical, missing=missing)
    return _rows(_parquet, data_dir, path, test, test_fraction, words, length, size=size, **columns)


def array_record(
    data_dir: Path,
    path: str,
    x: str | Sequence[str],
    y: str | Sequence[str] | None = None,
    clients: str | None = None,
    domains: str | None = None,
    test: str | None = None,
    test_fraction: TestFraction | None = None,
    targets: Annotated[str, one_of(*TARGETS)] = "classes",
    categorical: str | Sequence[str] = (),
    missing: Missing = "error",
    size: AtLeastOne | None = None,
    words: AtLeastOne | None = None,
    length: Width | None = None,
) -> Dataset:
    """Reads an array_record file, whose records are TensorFlow's (`tf.train.Example`), with a
    feature that names the client. Features with one value are that value, but those of `y` with
    targets="labels" stay lists; bytes are texts, or the files of PNG and JPEG images. Other
    arguments as those of `jsonl`.

    Args:
      size: images are resized to size x size pixels; needed where they differ.

    Raises:
      FileNotFoundError, ValueError: as `jsonl`.
      ImportError: array_record is not there.
    """
    wanted = [y] if isinstance(y, str) else list(y or ())
    lists = wanted if targets == "labels" and len(wanted) == 1 else ()
    columns = dict(x=x, y=y, clients=clients, domains=domains, targets=targets, categorical=categorical, missing=missing)
    read = functools.partial(_records, lists=lists)
    return _rows(read, data_dir, path, test, test_fraction, words, length, size=size, **columns)


def _rows(
    read: Callable[[Path], Any],
    data_dir: Path,
    path: str,
    test: str | None,
    test_fraction: float | None,
    words: int | None,
    length: int | None,
    **columns: Any,
) -> Dataset:
    """Builds a data set from the rows of files, as `jsonl` describes it; `columns` are arguments of
    `from_table`.
    """
    tables = {"train": _read(read, data_dir, path)} | ({} if test is None else {"test": _read(read, data_dir, test)})
    if (words is None) != (length is None):
        raise ValueError(f"words={words}, length={length}: texts need both, other inputs neither.")
    names, texts, x, targets = None, {}, columns["x"], columns["targets"]
    try:
        if words is not None and length is not None:
            if not isinstance(x, str):
                raise ValueError(f"x={x!r} must be the one column of texts, with words={words}.")
            tables = {part: _as_rows(table) for part, table in tables.items()}
            texts = {part: [_text(part, i, row, x) for i, row in enumerate(rows)] for part, rows in tables.items()}
        if texts and test is None and test_fraction is not None:  # words are counted in the training examples alone
            y, domains, clients = (columns[key] for key in ("y", "domains", "clients"))
            is_test = select_test_rows(tables["train"], targets, y, domains, clients, test_fraction)
            tables, texts = (_split(parts["train"], is_test) for parts in (tables, texts))
            test_fraction = None
        if texts and words is not None and length is not None:
            names, ids = index_texts(texts, words, length, behind=targets == "tokens" and columns["y"] is None)
            tables = {
                part: [row | {x: None if is_missing(row[x]) else token_ids} for row, token_ids in zip(rows, ids[part], strict=True)]
                for part, rows in tables.items()
            }
            names = names if targets == "tokens" else None
        given = columns | {"class_names": names, "test_fraction": test_fraction, "name": Path(path).name}
        return from_table(tables["train"], tables.get("test"), **given)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _as_rows(table: Any) -> list[dict[str, Any]]:
    """Returns a table as a list of rows; one of columns is turned."""
    if not isinstance(table, dict):
        return table
    return [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]


def _split(rows: Sequence[Any], is_test: np.ndarray) -> dict[str, list[Any]]:
    return {part: [row for row, held in zip(rows, is_test, strict=True) if held == (part == "test")] for part in ("train", "test")}


def _text(part: str, i: int, row: dict[str, Any], column: str) -> list[str]:
    if column in row and is_missing(row[column]):
        return []
    if not isinstance(row.get(column), str):
        raise ValueError(f"{part}: row {i} of column {column!r} is {option_types.shorten(row.get(column))}: must be a text.")
    return row[column].split()


def _read(read: Callable[[Path], Any], data_dir: Path, path: str) -> Any:
    table = read(find_file(path, data_dir, [data_dir / Path(path).expanduser()], "put the file there, or give its full path"))
    if not table or (isinstance(table, dict) and not any(table.values())):
        raise ValueError(f"{path}: has no rows.")
    return table


def _json(file: Path, encoding: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(read_text(file, encoding).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except RecursionError:
            raise ValueError(f"{file}, line {number}: has lists or objects inside each other, deeper than can be read.") from None
        except ValueError as error:  # JSONDecodeError, or an integer of thousands of digits
            raise ValueError(f"{file}, line {number}: is not JSON ({error}).") from None
        if not isinstance(row, dict):
            raise ValueError(f"{file}, line {number}: is {type(row).__name__}, must be an object with a value for each column.")
        rows.append(row)
    return rows


def _parquet(file: Path) -> list[dict[str, Any]]:
    try:
        pq = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ImportError(f"{file.name} is read with pyarrow: pip install pyarrow") from None
    try:
        table = pq.read_table(file)
        return _with_bytes(table.to_pylist(), [field.name for field in table.schema if _is_list_of_bytes(field.type)])
    except (ValueError, OSError) as error:
        raise ValueError(f"{file}: is no Parquet table, or damaged ({error}).") from error


def _is_list_of_bytes(arrow_type: Any) -> bool:
    """Returns whether cells of a column are lists (of lists) of uint8, such as pixels."""
    is_list = hasattr(arrow_type, "value_type")
    storage = getattr(arrow_type, "storage_type", None)  # of an extension type, such as Array2D of Hugging Face
    if storage is not None:
        return _is_list_of_bytes(storage)
    return is_list and (str(arrow_type.value_type) == "uint8" or _is_list_of_bytes(arrow_type.value_type))


def _with_bytes(rows: list[dict[str, Any]], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the rows, with cells of some columns as arrays of uint8, which plain lists do not say
    that they are.
    """
    for row in rows:
        row |= {name: to_uint8(row[name]) for name in columns}
    return rows


def _records(file: Path, lists: Sequence[str]) -> list[dict[str, Any]]:
    try:
        module = importlib.import_module("array_record.python.array_record_module")
    except ImportError:
        raise ImportError(f"{file.name} is read with array_record: pip install array_record") from None
    try:
        reader = module.ArrayRecordReader(str(file))
        records = [tf_example.decode(blob) for blob in reader.read_all()]
    except (ValueError, RuntimeError, OSError, IndexError) as error:
        raise ValueError(f"{file}: is no array_record of tf.train.Example, or damaged ({error}).") from error
    return [{name: _plain(feature) if name in lists else _value(feature) for name, feature in row.items()} for row in records]


def _value(feature: Any) -> Any:
    """Returns a feature's single string, image or number, or the list of them."""
    plain = _plain(feature)
    return plain[0] if len(plain) == 1 else plain


def _plain(feature: Any) -> list[Any]:
    """Returns a feature's strings, images or numbers."""
    if not isinstance(feature, list):
        return feature.tolist()
    return [value if value.startswith(_IMAGES_BEGIN) else value.decode(errors="replace") for value in feature]


_IMAGES_BEGIN = (b"\x89PNG\r\n", b"\xff\xd8\xff")  # PNG, JPEG
