"""Validates the types of a definition's fields, before anything reads them."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fedjax_core import option_types
from fedjax_core.experiment.schema import or_none
from fedjax_core.option_types import Limit, Positive, Seed, one_of

Label = Annotated[str, Limit("of printable characters", str.isprintable)]
Digits = Annotated[int, Limit("in [0, 12]", lambda value: 0 <= value <= 12)]
LABEL_OF_LATEX = re.compile(r"[\w:./*+-]+")
Reference = Annotated[str, Limit("a label such as 'tab:first'", lambda value: LABEL_OF_LATEX.fullmatch(value) is not None)]
Fields = Mapping[str, Any]

ROW: Fields = {"label": Label, "config": Callable, "changes": Mapping, "space": Mapping}
COLUMN: Fields = {"label": Label, "changes": Mapping, "targets": Sequence[float] | None}
MEASURE: Fields = {
    "label": Label,
    "scores": Sequence[str],
    "statistic": str,
    "percent": bool | None,
    "unit": Positive,
    "digits": or_none(Digits),
    "better": str | None,
    "clients": str | None,
}
SEARCH: Fields = {"measure": str | Sequence[str], "sampler": str, "seed": Seed, "seeds": Sequence[Seed], "fewer": Sequence[str]}
LATEX: Fields = {
    "environment": or_none(Annotated[str, one_of("table", "table*")]),
    "caption": str | None,
    "label": or_none(Reference),
    "placement": str,
}
TABLE: Fields = {
    "title": Label,
    "seeds": Sequence[Seed],
    "changes": Mapping,
    "cells": Mapping,
    "new_partitions": bool,
    "targets": Sequence[float],
    "source": str,
    "note": str,
    "against": str | None,
    "figure": Sequence[str],
    "differ": Sequence[str],
}
PARTS = {  # of a table: the field, what one is called and made by, its fields
    "rows": ("row", "Row(...)", ROW),
    "columns": ("column", "Column(...)", COLUMN),
    "measures": ("measure", "Measure(...)", MEASURE),
}


def check_structure(table: Any) -> None:
    """Checks the types of a definition's fields, and of those of its parts."""
    for name, (what, maker, fields) in PARTS.items():
        parts = getattr(table, name)
        if not isinstance(parts, list | tuple):
            raise ValueError(f"{name}={option_types.shorten(parts)} must be a tuple, each {maker}")
        for number, part in enumerate(parts, 1):
            if not all(hasattr(part, field) for field in fields):
                raise ValueError(f"{what} {number} of {name} is {option_types.shorten(part)}, not {maker}")
            label = part.label if isinstance(part.label, str) else number
            _check_fields(f"{what} {label!r}: ", part, fields)
    _check_fields("", table, TABLE)
    for pair, changes in table.cells.items():
        _check_names(f"cells[{option_types.shorten(pair)}]", changes)
    _check_paper(table.paper)
    if table.search is not None:
        if not all(hasattr(table.search, field) for field in SEARCH):
            raise ValueError(f"search={option_types.shorten(table.search)} must be Search(...) or None")
        _check_fields("search: ", table.search, SEARCH)
    if table.latex is not None:
        if not all(hasattr(table.latex, field) for field in LATEX):
            raise ValueError(f"latex={option_types.shorten(table.latex)} must be Latex(...) or None")
        _check_fields("latex: ", table.latex, LATEX)


def _check_fields(where: str, part: Any, fields: Fields) -> None:
    for field, wanted in fields.items():
        value = option_types.check_value(f"{where}{field}", getattr(part, field), wanted)
        if field in ("changes", "space"):
            _check_names(f"{where}{field}", value)


def _check_paper(paper: Any) -> None:
    form = "{row: {column: number}}, with None for a row without numbers"
    if not isinstance(paper, Mapping):
        raise ValueError(f"paper={option_types.shorten(paper)} must be {form}")
    for row, numbers in paper.items():
        if numbers is not None and not isinstance(numbers, Mapping):
            numbers_of_row = f"{option_types.shorten(numbers)} for row {option_types.shorten(row)}"
            raise ValueError(f"paper must be {form}; found {numbers_of_row}")


def _check_names(where: str, changes: Any) -> None:
    """Checks that changes are by field of a config, such as {"optimizer.lr": 0.1}."""
    option_types.check_value(where, changes, Mapping)
    for field in changes:
        if not isinstance(field, str):
            raise ValueError(f"{where}: {option_types.shorten(field)} is no field such as 'optimizer.lr'")
