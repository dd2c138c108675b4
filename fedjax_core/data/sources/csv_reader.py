"""Delimited texts, such as CSV, as columns of integers, floats or strings, by Python's csv module."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedjax_core.data.sources.cell_values import MISSING_TEXTS, as_number
from fedjax_core.data.sources.file_checks import read_text

DELIMITERS = (",", ";", "\t", "|")  # that are looked for in the header
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)", re.ASCII)
_CODE = re.compile(r"[+-]?0[0-9]+", re.ASCII)  # such as the postcode 01067


def read_delimited(file: Path, delimiter: str | None, encoding: str, decimal: str) -> dict[str, list[Any]]:
    """Reads a file whose first line names the columns.

    A column in which every cell that is not missing is a number becomes integers, or floats; one
    with a leading zero, such as 01067, stays texts. Missing cells become None.

    Args:
      file: the file; packed if it ends in .gz.
      delimiter: between cells; None: the one of `DELIMITERS` that the header has most of.
      encoding: of the file, unless it begins with a byte-order mark.
      decimal: the sign before a number's decimals, "." or ",".

    Returns:
      Cells by column, all columns equally long.

    Raises:
      ValueError: no header, a duplicate name, a line with more or fewer cells than the
        header, or quotes that do not close; the message has the file and the line.
    """
    text = read_text(file, encoding)
    delimiter = delimiter or _find_delimiter(text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    names: list[str] = []
    rows: list[list[str]] = []
    try:
        for cells in reader:
            if not any(map(str.strip, cells)) and len(cells) <= 1:  # an empty line
                continue
            if not names:
                names = _check_header(file, cells)
            elif len(cells) != len(names):
                raise ValueError(
                    f"{file}, line {reader.line_num}: has {len(cells)} cells, the header "
                    f"{len(names)}, with delimiter={delimiter!r}."
                )
            else:
                rows.append(cells)
    except csv.Error as error:
        what = f"cannot be read with delimiter={delimiter!r}"
        raise ValueError(f"{file}, line {reader.line_num}: {what} ({error}).") from None
    if not names:
        raise ValueError(f"{file}: has no header line that names the columns.")
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return {name: _typed(cells, decimal) for name, cells in zip(names, columns, strict=True)}


def _find_delimiter(text: str) -> str:
    header = next((line for line in text.splitlines() if line.strip()), "")
    unquoted = re.sub(r'"[^"]*"', "", header)
    return max(DELIMITERS, key=unquoted.count)


def _check_header(file: Path, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
        raise ValueError(f"{file}: the header has the column {twice!r} twice.")
    unnamed = names.count("")
    return names if unnamed <= 1 else [name or f"column {i}" for i, name in enumerate(names)]


def _typed(cells: Sequence[str], decimal: str) -> list[Any]:
    """Returns the cells of one column as numbers if all are, else as strings; None where missing."""
    cells = [cell.strip() for cell in cells]
    plain = cells if decimal == "." else [_with_point(cell) for cell in cells]
    numbers = [as_number(cell) for cell in plain]
    present = [cell for cell, number in zip(plain, numbers, strict=True) if number == number]
    if all(number is not None for number in numbers) and not any(map(_CODE.fullmatch, present)):
        whole = all(map(_INTEGER.fullmatch, present))
        return [None if number != number else int(cell) if whole else number for cell, number in zip(plain, numbers, strict=True)]
    return [None if cell.casefold() in MISSING_TEXTS else cell for cell in cells]


def _with_point(cell: str) -> str:
    """Replaces a decimal comma by a point; a cell with a point is then no number."""
    return cell.replace(".", ":").replace(",", ".")
