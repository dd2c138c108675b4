"""Cells of tables: missing values and numbers."""

import decimal
import math
import re
from typing import Any

import numpy as np

MISSING_TEXTS = frozenset(("", "na", "n/a", "nan", "null", "?"))  # of files; in any case of letters
_NOT_A_NUMBER = MISSING_TEXTS | {"none"}  # a column of texts may have "None" as a value
_TRUTHS = {"true": 1.0, "false": 0.0}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)
_PANDAS = ("NAType", "NaTType")  # types of pandas.NA and pandas.NaT


def is_missing(cell: Any) -> bool:
    """Returns whether a cell holds nothing: None, NaN, or what pandas has for it."""
    if cell is None:
        return True
    if isinstance(cell, float | np.floating | decimal.Decimal):
        return math.isnan(cell)
    return type(cell).__name__ in _PANDAS


def as_number(cell: Any) -> Any:
    """Returns a cell of a column of numbers, for `np.asarray`.

    Texts such as "31", " 2.5 " and "true" become numbers, decimals floats, and what is missing
    NaN, in lists as well.

    Returns:
      None if a text is no number; any other cell as it is.

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
        if any(entry is None for entry in cell):
            return [math.nan if entry is None else entry for entry in cell]
        return cell
    if is_missing(cell):
        return math.nan
    return float(cell) if isinstance(cell, decimal.Decimal) else cell
