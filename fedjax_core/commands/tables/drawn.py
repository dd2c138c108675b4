"""A table as a figure: each row's difference to the row `against`, with its interval."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_core.commands.tables import formatting, measures
from fedjax_core.commands.tables.bootstrap_comparison import Known
from fedjax_core.commands.tables.results import Contents
from fedjax_core.reporting import plots
from fedjax_core.reporting.plots import Difference, Panel

KINDS = ("personal", "global", "nearest")  # models that scores are of


def draw(contents: Contents, folder: Path, known: Known | None = None) -> list[Path]:
    """Draws differences.png and .pdf, with their numbers in differences.csv; nothing where nothing was compared.

    A row of panels per column of the table, one beside the other the measures that the definition names in `figure` (or the first
    one that has differences). In a column the methods stand in the order of its first panel, the best one first. `known`: see
    `compare`.

    Raises:
      OSError: they cannot be written.
    """
    against = contents.table.against
    if against is None:
        return []
    grids = formatting.grids(contents, known)
    shown = [m for m in contents.table.measures if any(one.differences for one in grids[m.label].compared.values())]
    named = contents.table.figure
    shown = [measure for measure in shown if measure.label in named] if named else shown[:1]
    panels = [panel for column in contents.table.columns for panel in _beside(contents, column.label, shown, grids)]
    if not panels:
        return []
    files = [folder / "differences.png", folder / "differences.pdf"]
    unit = "points" if all(measures.is_percent(measure) for measure in shown) else "difference"
    figure = plots.differences(panels, files[0], against, unit)
    plots.write(figure, files[1])
    return [*files, folder / "differences.csv"]


def _beside(contents: Contents, column: str, shown: list[Any], grids: Mapping[str, formatting.Grid]) -> list[Panel]:
    """The panels of a column, with its methods in one order."""
    panels, order = [], []
    for measure in shown:
        found = {row.label: one for row in contents.table.rows if (one := _difference(grids[measure.label], row.label, column))}
        if found and contents.table.against is not None:
            found[contents.table.against] = _reference(grids[measure.label], contents.table.against, column)
        if not order:
            order = sorted(found, key=lambda row: -found[row].value if measures.better(measure) != "smaller" else found[row].value)
        if found:
            panels.append(Panel(column, measure.label, [found[row] for row in order if row in found]))
    return panels


def _difference(grid: formatting.Grid, row: str, column: str) -> Difference | None:
    one = grid.compared.get((row, column))
    if one is None or one.difference is None or one.differences is None:
        return None
    scores = grid.summaries[row, column].scores
    kind = next((kind for kind in KINDS if any(f"/{kind}/" in score for score in scores)), "model")
    return Difference(row, one.difference, *one.differences, f"{kind} model", one.like_best or (row, column) in grid.best)


def _reference(grid: formatting.Grid, row: str, column: str) -> Difference:
    """Returns the row that the others are compared with, at 0."""
    one = grid.compared.get((row, column))
    like_best = (row, column) in grid.best or (one is not None and one.like_best)
    return Difference(row, 0.0, 0.0, 0.0, "reference", like_best, is_reference=True)
