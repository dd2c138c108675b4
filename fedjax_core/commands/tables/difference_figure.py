"""Draws a table as a figure: each row's difference to the row `against`, with its interval."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_core.commands.tables import formatting, measures
from fedjax_core.commands.tables.results import Contents
from fedjax_core.commands.tables.writers import remove_differences
from fedjax_core.reporting import plots
from fedjax_core.reporting.plots import Difference, Panel

MODEL_KINDS = ("personal", "global", "nearest")  # models that scores are of


def draw_differences(contents: Contents, folder: Path) -> list[Path]:
    """Draws differences.png and .pdf, with their numbers in differences.csv.

    There is a line of panels per column of the table: the measures of `Table.figure`, or the first
    one that has differences. The methods of a column are in the order of its first panel, the best
    first. Nothing is drawn where nothing was compared; figures of earlier settings are then deleted.
    """
    remove_differences(folder)
    against = contents.table.against
    if against is None:
        return []
    grids = {measure.label: formatting.make_grid(contents, measure) for measure in contents.table.measures}
    shown = [
        m for m in contents.table.measures if any(comparison.difference_interval for comparison in grids[m.label].compared.values())
    ]
    named = contents.table.figure
    shown = [measure for measure in shown if measure.label in named] if named else shown[:1]
    panels = [panel for column in contents.table.columns for panel in _make_panels(contents, column.label, shown, grids)]
    if not panels:
        return []
    files = [folder / "differences.png", folder / "differences.pdf"]
    unit = "points" if all(measures.is_percent(measure) for measure in shown) else "difference"
    figure = plots.plot_differences(panels, files[0], against, unit)
    plots.write_figure(figure, files[1])
    return [*files, folder / "differences.csv"]


def _make_panels(contents: Contents, column: str, shown: list[Any], grids: Mapping[str, formatting.Grid]) -> list[Panel]:
    """Returns the panels of a column, with its methods in one order."""
    panels, order = [], []
    for measure in shown:
        differences = {
            row.label: difference
            for row in contents.table.rows
            if (difference := _make_difference(grids[measure.label], row.label, column))
        }
        if differences and contents.table.against is not None:
            differences[contents.table.against] = _make_reference(grids[measure.label], contents.table.against, column)
        if not order:
            sign = 1 if measures.better_direction(measure) == "smaller" else -1
            order = sorted(differences, key=lambda row, sign=sign, values=differences: sign * values[row].value)
        order += [row for row in differences if row not in order]
        if differences:
            panels.append(Panel(column, measure.label, [differences[row] for row in order if row in differences]))
    return panels


def _make_difference(grid: formatting.Grid, row: str, column: str) -> Difference | None:
    comparison = grid.compared.get((row, column))
    if comparison is None or comparison.difference is None or comparison.difference_interval is None:
        return None
    scores = grid.summaries[row, column].scores
    kind = next((kind for kind in MODEL_KINDS if any(f"/{kind}/" in score for score in scores)), "model")
    return Difference(
        row,
        comparison.difference,
        *comparison.difference_interval,
        f"{kind} model",
        comparison.is_like_best or (row, column) in grid.best,
    )


def _make_reference(grid: formatting.Grid, row: str, column: str) -> Difference:
    comparison = grid.compared.get((row, column))
    like_best = (row, column) in grid.best or (comparison is not None and comparison.is_like_best)
    return Difference(row, 0.0, 0.0, 0.0, "reference", like_best, is_reference=True)
