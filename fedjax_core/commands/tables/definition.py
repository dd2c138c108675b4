"""Reads, changes and validates the definition of a table (`configs/tables/base.py`), and selects its cells.

Selectors of cells, as in `--only` and `--set`:

  ROW           all cells of a row
  ROW/COLUMN    one
  /COLUMN       all cells of a column

A row and a column are named by their label or by its form in directories, in any case. "*" stands for any
characters: "/cifar-10-*" is CIFAR-10 with every alpha, "/cifar-10*" is CIFAR-100 too.
"""

import ast
import dataclasses
import importlib.util
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_core import registry
from fedjax_core.commands.tables import client_statistics, comparability, measures
from fedjax_core.commands.tables.definition_checks import check_structure
from fedjax_core.reporting import console, score_labels

OF_COLUMNS = ("data.source", "data.partition", "data.clients")  # what columns are named by
UNNOTED = ("data.dir", "plan.", "checkpoint.", "callbacks")  # fields without an effect on numbers
Pair = tuple[str, str]  # labels of a row and a column
Definition = Any  # a Table of configs/tables/base.py; what a method is made of does not import configs


def read_definition(file: str, variant: str) -> Definition:
    """Reads a definition from its file."""
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"there is no table definition {file!r}")
    spec = importlib.util.spec_from_file_location(f"table_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        table = module.get_table(variant)
        fields = {field.name for field in dataclasses.fields(table)}
    except Exception as error:  # whatever a file of code can raise
        raise ValueError(f"{file}: {console.one_line(error)}") from error
    if not {"rows", "columns", "measures", "seeds"} <= fields:
        raise ValueError(f"{file}: get_table gave a {type(table).__name__}, not a Table of configs/tables/base.py")
    return table


def apply_settings(table: Definition, settings: Iterable[str]) -> Definition:
    """Returns the table with "FIELD=VALUE" in all runs, or "SELECTORS:FIELD=VALUE" in some (`split_selectors`).

    A value is a Python literal or else a string. The later of two for one field counts. Rows that a
    selector names alone may differ from the others of their column in that kind of setting.

    The note of the table names the settings, but for `UNNOTED`.

    Raises:
      ValueError: a setting has another form, its selector matches nothing, a search chooses its field, or
        it would give columns of different data the same data.
    """
    pairs = [(row.label, column.label) for row in table.rows for column in table.columns]
    spaces = {row.label: row.space for row in table.rows}
    cell_changes, differ, noted = dict(table.cells), list(table.differ), []
    for setting in settings:
        place, field, text = _split_setting(setting, pairs)
        noted += [] if field.startswith(UNNOTED) else [setting]
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        try:
            selectors = split_selectors(place, pairs) or [place]
            changed_pairs = list({p: None for s in selectors for p in select_pairs(s, pairs)}) if place else pairs
            if field in OF_COLUMNS:
                _check_column_field(table, field, [column for _, column in changed_pairs])
        except ValueError as error:
            raise ValueError(f"--set={setting}: {error}") from None
        for row, column in changed_pairs:
            if field in spaces[row]:
                raise ValueError(f"--set={setting}: the search chooses it for row {row!r}; take it out of its space")
            cell_changes[row, column] = {**cell_changes.get((row, column), {}), field: value}
        kind, columns = comparability.kind_of(field), {column for _, column in changed_pairs}
        if kind is not None and len(changed_pairs) < len(columns) * len(table.rows):
            differ.append(kind)
    note = " ".join(filter(None, [table.note, f"Changed on the command line: {'; '.join(noted)}." if noted else ""]))
    return dataclasses.replace(table, cells=cell_changes, differ=tuple(dict.fromkeys(differ)), note=note)


def _split_setting(setting: str, pairs: Collection[Pair]) -> tuple[str, str, str]:
    """Returns (place, field, value) of a setting; labels and values may have ":" and "=": the longest known place counts."""
    found = re.finditer(r"(?:^|(?<=.):)([\w.-]+)=", setting, re.S)
    splits = [(setting[: match.start()], match[1], setting[match.end() :]) for match in found]
    if not splits:
        raise ValueError(f"--set={setting} is not of the form FIELD=VALUE or PLACE:FIELD=VALUE, such as data.dir=DIR")
    return next((split for split in reversed(splits) if _is_place(split[0], pairs)), splits[0])


def _is_place(text: str, pairs: Collection[Pair]) -> bool:
    """Returns whether a text is selectors that all match."""
    selectors = split_selectors(text, pairs)
    return bool(selectors) and all(any(_is_selected(selector, pair) for pair in pairs) for selector in selectors)


def _check_column_field(table: Definition, field: str, columns: Collection[str]) -> None:
    """Raises ValueError if columns that would get one value of a field have several: their labels would be wrong."""
    values: dict[Any, str] = {}
    for column in table.columns:
        if column.label in columns:
            values.setdefault(column.changes.get(field), column.label)
    if len(values) > 1:
        (first, first_label), (second, second_label), *_ = values.items()
        raise ValueError(
            f"the definition has {first!r} for column {first_label!r} and {second!r} for {second_label!r}; name the "
            f"columns that are meant, such as --set=/{slugify(first_label)}:{field}=..."
        )


def check_definition(table: Definition) -> None:
    """Validates a definition, without the configs of its rows."""
    check_structure(table)
    for kind in table.differ:
        registry.check_choice("kind in differ", kind, comparability.KINDS)
    for what, parts in (("row", table.rows), ("column", table.columns), ("measure", table.measures)):
        if not parts:
            raise ValueError(f"the table has no {what}s")
        labels: dict[str, str] = {}
        for part in parts:
            name = slugify(part.label)
            if not name:
                raise ValueError(f"{what} {part.label!r} has no letter or digit to name a directory by")
            if name in labels:
                raise ValueError(f"{what}s {labels[name]!r} and {part.label!r} have one name, {name!r}; give each its own")
            labels[name] = part.label
    rows, columns = [r.label for r in table.rows], [c.label for c in table.columns]
    for pair in table.cells:
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise ValueError(f"cells: {pair!r} must be (row, column)")
        registry.check_choice("row in cells", pair[0], rows)
        registry.check_choice("column in cells", pair[1], columns)
    if table.against is not None:
        registry.check_choice("row in against", table.against, rows)
    if table.figure and table.against is None:
        raise ValueError("figure shows differences to the row `against`, and the table names none")
    for label in table.figure:
        registry.check_choice("measure in figure", label, [measure.label for measure in table.measures])
    for measure in table.measures:
        measures.check_measure(measure)
        if (other_row := client_statistics.reference_row(measure)) is not None:
            registry.check_choice(f"row in clients of measure {measure.label!r}", other_row, rows)
    for target in [*table.targets, *(t for c in table.columns for t in c.targets or ())]:
        if not 0 < target <= 1:
            raise ValueError(f"target {target} is not an accuracy in (0, 1]")
    _check_paper(table, rows, columns)


def check_targets(table: Definition) -> None:
    """Raises ValueError for targets of a measure that has no accuracy of every evaluated round."""
    first = table.measures[0]
    if all_targets(table) and (first.clients is not None or not any(map(score_labels.is_accuracy, first.scores))):
        raise ValueError(f"targets are of the first measure, and {first.label!r} is no accuracy of every evaluated round")


def _check_paper(table: Definition, rows: list[str], columns: list[str]) -> None:
    for row, of_row in table.paper.items():
        registry.check_choice("row in paper", row, rows)
        for column in of_row or ():
            registry.check_choice("column in paper", column, columns)
    for row in rows if table.paper else ():
        if row not in table.paper:
            raise ValueError(f"paper: row {row!r} is missing; write None if the paper has no numbers for it")
        for column in columns if table.paper[row] is not None else ():
            if column not in table.paper[row]:
                raise ValueError(f"paper: the number of {row!r} / {column!r} is missing; write None if the paper has none")
            for measure in table.measures:
                paper_value(table, row, column, measure.label)


def paper_value(table: Definition, row: str, column: str, measure: str) -> tuple[float, float | None, str] | None:
    """Returns the paper's (value, standard deviation, source) of a cell; the value is infinite if a target was never reached."""
    entry = (table.paper.get(row) or {}).get(column)
    where = f"paper: {row!r} / {column!r}"
    if isinstance(entry, Mapping):
        labels = [other.label for other in table.measures]
        for label in entry:
            registry.check_choice(f"measure in {where}", label, labels)
        if measure not in entry:
            raise ValueError(f"{where}: the number of measure {measure!r} is missing; write None if the paper has none")
        entry = entry[measure]
    elif entry is not None and len(table.measures) > 1:
        raise ValueError(f"{where}: the table has several measures; write a number for each of them, by its label")
    if entry is None:
        return None
    value, std, source = getattr(entry, "value", entry), getattr(entry, "std", None), getattr(entry, "source", "") or table.source
    never = value == math.inf and any(
        other.label == measure and measures.rounds_target(other) is not None for other in table.measures
    )
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) or never):
        raise ValueError(f"{where}: {entry!r} is not a number; write a number, a Paper(value, std, source) or None")
    if not source:
        raise ValueError(f"{where}: say which table of which paper {value} is from, as the table's source")
    return float(value), std, source


def column_targets(table: Definition, column: str) -> Sequence[float]:
    """Returns the accuracies whose first round a column shows."""
    own = next(c for c in table.columns if c.label == column).targets
    return table.targets if own is None else own


def all_targets(table: Definition) -> list[float]:
    """Returns the targets of all columns."""
    return sorted({target for column in table.columns for target in column_targets(table, column.label)})


def slugify(label: str) -> str:
    """Returns a label as a part of a directory's name."""
    return re.sub(r"[^\w.]+", "-", label.lower()).strip("-.")


def select_pairs(selector: str, pairs: Iterable[Pair]) -> list[Pair]:
    """Returns the (row, column) pairs that a selector matches."""
    pairs = list(dict.fromkeys(pairs))
    matches = [pair for pair in pairs if _is_selected(selector, pair)]
    if not matches:
        row, slash, column = _split_selector(selector)
        rows, columns = (list(dict.fromkeys(slugify(pair[i]) for pair in pairs)) for i in range(2))
        unknown = not (any(_matches_label(row, pair[0]) for pair in pairs) or (slash and not row))
        what, name, known = ("row", row, rows) if unknown else ("column", column, columns)
        registry.check_choice(what, name, known)
    return matches


def split_selectors(text: str, pairs: Collection[Pair]) -> list[str]:
    """Splits "ROW,ROW/COLUMN,..." into selectors; a label may have commas: the longest known one counts."""
    parts, selectors = [part.strip() for part in text.split(",")], []
    while parts:
        joined = [sign.join(parts[:n]) for n in range(len(parts), 0, -1) for sign in (", ", ",")]
        selector = next((selector for selector in joined if any(_is_selected(selector, pair) for pair in pairs)), parts[0])
        parts = parts[selector.count(",") + 1 :]
        selectors += [selector] if selector else []
    return selectors


def _is_selected(selector: str, pair: Pair) -> bool:
    if selector.strip() in (pair[0], "/".join(pair)):  # labels may hold slashes
        return True
    row, slash, column = _split_selector(selector)
    if not slash:
        return _matches_label(row, pair[0])
    return (not row or _matches_label(row, pair[0])) and _matches_label(column, pair[1])


def _split_selector(selector: str) -> tuple[str, str, str]:
    row, slash, column = selector.partition("/")
    return row.strip(), slash, column.strip()


def _matches_label(text: str, label: str) -> bool:
    """Returns whether a text is a label or its form in directories, in any case, with "*" for any characters."""
    pattern = re.compile(".*".join(map(re.escape, text.lower().split("*"))))
    return any(pattern.fullmatch(name) is not None for name in (label.lower(), slugify(label)))
