"""A score over what it has cost so far: bytes that clients have sent, or epsilon."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, PercentFormatter

from fedjax_core.reporting.plots import lines, style
from fedjax_core.reporting.records import read
from fedjax_core.reporting.report import SUMMARY
from fedjax_core.reporting.words import axis, is_accuracy
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import METRICS

COSTS = {"bytes": "bytes sent by a client that is always there", "epsilon": "epsilon"}
EPSILON = "privacy/epsilon"


def spending(
    run_dirs: Sequence[str | os.PathLike],
    metric: str | Sequence[str],
    path: str | os.PathLike,
    cost: str = "bytes",
    labels: Sequence[str] | None = None,
) -> Figure:
    """Draws a score of several runs over what they have cost, by the round in which it was taken; the cost is on a scale of powers.

    Args:
      run_dirs: their directories.
      metric: as `lines.curves` has it.
      path: where the figure goes; the suffix says the format. Its CSV has columns run, round, the cost, the score.
      cost: "bytes": of a client's uplinks, packed, in all rounds so far; "epsilon": what privacy has cost so far.
      labels: one for each run; by default the directories' names, of a table's runs those of row and column.

    Returns:
      The figure.

    Raises:
      OSError: a run has no metrics.jsonl or summary.json, or the files cannot be written.
      ValueError: a run has no such score, or no epsilon; or there is not one label for each.
    """
    folders, metrics = [Path(folder) for folder in run_dirs], [metric] if isinstance(metric, str) else list(metric)
    names = lines.labels_for(folders, [[folder] for folder in folders], labels)
    found, rows, scores = [], [], []
    for label, folder in zip(names, folders, strict=True):
        score, series = lines.series_of(folder, metrics)
        spent = _spent(folder, cost)
        line = lines.Line(label, [spent[r] for r in series], list(series.values()))
        found.append(line)
        scores.append(score)
        rows += [{"run": label, "round": r, cost: spent[r], score: value} for r, value in series.items()]
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(style.COLUMN, 2.4), layout="constrained")
        axes = figure.add_subplot()
        for i, line in enumerate(found):
            colour, marker = style.COLOURS[i % len(style.COLOURS)], style.MARKERS[i % len(style.MARKERS)]
            axes.plot(line.rounds, line.values, color=colour, marker=marker, markersize=2.5, label=line.label)
        axes.set(xscale="log", xlabel=COSTS[cost], ylabel=axis(scores[0]))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=5))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_minor_formatter(NullFormatter())
        if is_accuracy(scores[0]):
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
        if len(found) > 1:
            style.legend_above(figure, axes)
        style.save(figure, path, rows)
    return figure


def _spent(folder: Path, cost: str) -> dict[int, float]:
    """By round, what was spent."""
    records = read(folder / METRICS)
    if cost == "bytes":
        each = read_json(folder / SUMMARY, {"facts": {"bytes_up": float}})["facts"]["bytes_up"]
        return {record["round"]: each * record["round"] for record in records}
    if not any(EPSILON in record for record in records):
        raise ValueError(f"{folder} has no epsilon, for it ran without privacy.mechanism")
    return {record["round"]: record.get(EPSILON, math.nan) for record in records}
