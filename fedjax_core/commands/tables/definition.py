"""What a definition of a table says, read from its file and checked; definitions are those of `configs/tables/base.py`."""

import ast
import dataclasses
import importlib.util
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_core import registry
from fedjax_core.commands.tables import client_statistics, comparability, measures, places
from fedjax_core.commands.tables.definition_checks import check_structure
from fedjax_core.reporting import reporter

Definition = Any  # a Table of configs/tables/base.py; what a method is made of does not import configs


def read(file: str, variant: str) -> Definition:
    """A definition from its file.

    Raises:
      ValueError: there is no such file, or it does not define a table; one line.
    """
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
        raise ValueError(f"{file}: {reporter.one_line(error)}") from error
    if not {"rows", "columns", "measures", "seeds"} <= fields:
        raise ValueError(f"{file}: get_table gave a {type(table).__name__}, not a Table of configs/tables/base.py")
    return table


def changed(table: Definition, settings: Iterable[str]) -> Definition:
    """The table with "FIELD=VALUE" in all of its runs, or "PLACE:FIELD=VALUE" in some (`places`), whatever the definition says.

    A value is a Python literal or else text. Of two for one field the later counts. Where a place means some rows of a column
    alone, they may differ from the others in that kind of setting.

    Args:
      table: the definition.
      settings: texts of that form.

    Raises:
      ValueError: a setting has another form, its place is none of the table's, a search chooses its field, or it would give columns
        of different data the same data.
    """
    pairs = [(row.label, column.label) for row in table.rows for column in table.columns]
    spaces = {row.label: row.space for row in table.rows}
    of_cells, differ = dict(table.cells), list(table.differ)
    for setting in settings:
        name, equals, text = setting.partition("=")
        place, colon, field = name.rpartition(":")
        if not (field and equals) or (colon and not place):
            raise ValueError(f"--set={setting} is not of the form FIELD=VALUE or PLACE:FIELD=VALUE, such as data.dir=DIR")
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        try:
            meant = places.chosen(place, pairs) if place else pairs
            if field == "data.source":
                _check_source(table, [column for _, column in meant])
        except ValueError as error:
            raise ValueError(f"--set={setting}: {error}") from None
        for row, column in meant:
            if field in spaces[row]:
                raise ValueError(f"--set={setting}: the search chooses it for row {row!r}; take it out of its space")
            of_cells[row, column] = {**of_cells.get((row, column), {}), field: value}
        kind, columns = comparability.kind_of(field), {column for _, column in meant}
        if kind is not None and len(meant) < len(columns) * len(table.rows):
            differ.append(kind)
    return dataclasses.replace(table, cells=of_cells, differ=tuple(dict.fromkeys(differ)))


def _check_source(table: Definition, columns: Collection[str]) -> None:
    """Raises ValueError if columns that are to have one source have several in the definition: they would keep their names."""
    sources: dict[Any, str] = {}
    for column in table.columns:
        if column.label in columns:
            sources.setdefault(column.changes.get("data.source"), column.label)
    if len(sources) > 1:
        (first, one), (second, other), *_ = sources.items()
        raise ValueError(
            f"the definition has {first!r} for column {one!r} and {second!r} for {other!r}; name the columns that are meant, "
            f"such as --set=/{places.slug(one)}:data.source=..."
        )


def check(table: Definition) -> None:
    """Whether a definition holds together, whatever the configs of its rows say.

    Raises:
      ValueError: it does not; one line that names what is wrong.
    """
    check_structure(table)
    for kind in table.differ:
        registry.choose("kind in differ", kind, comparability.KINDS)
    for what, found in (("row", table.rows), ("column", table.columns), ("measure", table.measures)):
        if not found:
            raise ValueError(f"the table has no {what}s")
        seen: dict[str, str] = {}
        for one in found:
            name = places.slug(one.label)
            if not name:
                raise ValueError(f"{what} {one.label!r} has no letter or digit to name a directory by")
            if name in seen:
                raise ValueError(f"{what}s {seen[name]!r} and {one.label!r} have one name, {name!r}; give each its own")
            seen[name] = one.label
    rows, columns = [r.label for r in table.rows], [c.label for c in table.columns]
    for pair in table.cells:
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise ValueError(f"cells: {pair!r} must be (row, column)")
        registry.choose("row in cells", pair[0], rows)
        registry.choose("column in cells", pair[1], columns)
    if table.against is not None:
        registry.choose("row in against", table.against, rows)
    if table.figure and table.against is None:
        raise ValueError("figure shows differences to the row `against`, and the table names none")
    for label in table.figure:
        registry.choose("measure in figure", label, [measure.label for measure in table.measures])
    for measure in table.measures:
        measures.check(measure)
        if (named := client_statistics.row_of(measure)) is not None:
            registry.choose(f"row in clients of measure {measure.label!r}", named, rows)
    for target in [*table.targets, *(t for c in table.columns for t in c.targets or ())]:
        if not 0 < target <= 1:
            raise ValueError(f"target {target} is not an accuracy in (0, 1]")
    _check_paper(table, rows, columns)


def _check_paper(table: Definition, rows: list[str], columns: list[str]) -> None:
    for row, of_row in table.paper.items():
        registry.choose("row in paper", row, rows)
        for column in of_row or ():
            registry.choose("column in paper", column, columns)
    for row in rows if table.paper else ():
        if row not in table.paper:
            raise ValueError(f"paper: row {row!r} is missing; write None if the paper has no numbers for it")
        for column in columns if table.paper[row] is not None else ():
            if column not in table.paper[row]:
                raise ValueError(f"paper: the number of {row!r} / {column!r} is missing; write None if the paper has none")
            for measure in table.measures:
                paper_of(table, row, column, measure.label)


def paper_of(table: Definition, row: str, column: str, measure: str) -> tuple[float, float | None, str] | None:
    """The paper's (value, standard deviation, source) for a cell; the value is infinite where it never reached a target."""
    entry = (table.paper.get(row) or {}).get(column)
    where = f"paper: {row!r} / {column!r}"
    if isinstance(entry, Mapping):
        labels = [m.label for m in table.measures]
        for label in entry:
            registry.choose(f"measure in {where}", label, labels)
        if measure not in entry:
            raise ValueError(f"{where}: the number of measure {measure!r} is missing; write None if the paper has none")
        entry = entry[measure]
    elif entry is not None and len(table.measures) > 1:
        raise ValueError(f"{where}: the table has several measures; write a number for each of them, by its label")
    if entry is None:
        return None
    value, std, source = getattr(entry, "value", entry), getattr(entry, "std", None), getattr(entry, "source", "") or table.source
    never = value == math.inf and any(m.label == measure and measures.target(m) is not None for m in table.measures)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) or never):
        raise ValueError(f"{where}: {entry!r} is not a number; write a number, a Paper(value, std, source) or None")
    if not source:
        raise ValueError(f"{where}: say which table of which paper {value} is from, as the table's source")
    return float(value), std, source


def targets_of(table: Definition, column: str) -> Sequence[float]:
    """The accuracies whose first round a column gives."""
    own = next(c for c in table.columns if c.label == column).targets
    return table.targets if own is None else own


def all_targets(table: Definition) -> list[float]:
    """Those of all columns."""
    return sorted({target for column in table.columns for target in targets_of(table, column.label)})
