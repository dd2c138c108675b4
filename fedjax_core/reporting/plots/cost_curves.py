"""Curves of a score over its cost so far: bytes that clients have sent, or epsilon."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from fedjax_core.reporting.metrics_log import read_records
from fedjax_core.reporting.plots import score_curves, style
from fedjax_core.reporting.reporter import SUMMARY
from fedjax_core.reporting.score_labels import axis_label, is_accuracy
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import METRICS

COSTS = {"bytes": "bytes sent by a client that always takes part", "epsilon": "epsilon"}
EPSILON = "privacy/epsilon"


def plot_costs(
    run_dirs: Sequence[str | os.PathLike],
    metric: str | Sequence[str],
    path: str | os.PathLike,
    cost: str = "bytes",
    labels: Sequence[str] | None = None,
) -> Figure:
    """Draws a score of several runs over their cost up to its round, on a logarithmic axis.

    Runs that differ only in seeds, `metric` and `labels` are as in `score_curves.plot_curves`.

    Args:
      path: its CSV has columns run, round, the cost, the score, and for several seeds
        standard_deviation, seeds.
      cost: "bytes": size of a client's packed uplinks so far; "epsilon": the privacy spent so far.
        The last score of a run without privacy, or that sends nothing, is a horizontal dashed line.

    Raises:
      ValueError: a run lacks the score, none has an epsilon, two have the same config and seed, or
        the number of labels is wrong.
    """
    folders, metrics = [Path(folder) for folder in run_dirs], [metric] if isinstance(metric, str) else list(metric)
    groups = score_curves.group_by_seed(folders)
    costs = [_read_costs(group, cost) for group in groups]
    lines, rows, scores = [], [], []
    for label, group, spent in zip(score_curves.make_line_labels(folders, groups, labels), groups, costs, strict=True):
        score, line = score_curves.mean_line(label, group, metrics)
        lines.append(line)
        scores.append(score)
        for i, (r, value) in enumerate(zip(line.rounds, line.values, strict=True)):
            more = {} if line.band is None else {"standard_deviation": line.band[i], "seeds": len(group)}
            rows.append({"run": label, "round": r, cost: spent[int(r)] if spent else "", score: value} | more)
    if not any(costs):
        raise ValueError(f"{folders[0]} has no epsilon, for it ran without privacy.mechanism")
    lines, title = score_curves.describe_lines(lines, scores)
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(style.COLUMN, 2.4), layout="constrained")
        axes = figure.add_subplot()
        for i, (line, spent) in enumerate(zip(lines, costs, strict=True)):
            _draw(axes, line, spent, i)
        axes.set(xscale="log", xlabel=COSTS[cost], ylabel=axis_label(scores[0]))
        axes.set_title(title)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=5))
        axes.xaxis.set_major_formatter(EngFormatter(sep="") if cost == "bytes" else FuncFormatter(lambda at, _: f"{at:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        if is_accuracy(scores[0]):
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
        if len(lines) > 1:
            style.legend_above(figure, axes)
        style.save_figure(figure, path, rows)
    return figure


def _draw(axes: Axes, line: score_curves.Line, spent: Mapping[int, float], i: int) -> None:
    """Draws line i over its costs by round, or horizontally where it has none."""
    colour, marker = style.COLOURS[i % len(style.COLOURS)], style.MARKERS[i % len(style.MARKERS)]
    if not any(spent.values()):
        last = line.values[-1]
        axes.axhline(last, color=colour, linestyle="--", linewidth=1, label=style.legend_entry(line.label))
        if line.band is not None:
            axes.axhspan(last - line.band[-1], last + line.band[-1], color=colour, alpha=0.1, linewidth=0)
        return
    at = [spent[int(r)] for r in line.rounds]
    axes.plot(at, line.values, color=colour, marker=marker, markersize=2.5, label=style.legend_entry(line.label))
    score_curves.draw_band(axes, at, line, colour)


def _read_costs(group: Sequence[Path], cost: str) -> dict[int, float]:
    """Returns costs by round, averaged over seeds; {} for runs without such a cost."""
    by_round: dict[int, list[float]] = {}
    for folder in group:
        records = read_records(folder / METRICS)
        if cost == "bytes":
            each = read_json(folder / SUMMARY, {"facts": {"bytes_up": float}})["facts"]["bytes_up"]
            costs = {record["round"]: each * record["round"] for record in records}
        elif any(EPSILON in record for record in records):
            costs = {record["round"]: record.get(EPSILON, math.nan) for record in records}
        else:
            return {}
        for r, value in costs.items():
            by_round.setdefault(r, []).append(value)
    return {r: math.fsum(values) / len(values) for r, values in by_round.items()}
