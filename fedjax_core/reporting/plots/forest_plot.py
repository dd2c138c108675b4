"""Forest plots of differences between methods with their intervals, and dot plots of accuracies by
category.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from fedjax_core.reporting.bootstrap import LEVEL
from fedjax_core.reporting.plots import style

LINE = 0.135  # height of a method, in inches
KEY = (  # labels of the marks of `_make_legend_marks`
    f"{100 * LEVEL:g} % interval",
    "0 is not in it",
    "0 is in it",
    "bold: tied with the best",
)
REFERENCE = "#777777"  # colour of the line at 0 and of its row


class Difference(NamedTuple):
    """The difference of a method to the reference.

    Attributes:
      label: the method.
      value: the difference.
      low, high: the ends of its interval.
      kind: such as "global" or "personal"; each kind has its own colour and marker.
      like_best: whether it is the best of its panel or indistinguishable from it; its name is then
        bold.
      is_reference: whether it is the reference itself, which has no interval.
    """

    label: str
    value: float
    low: float
    high: float
    kind: str
    like_best: bool
    is_reference: bool = False


class Panel(NamedTuple):
    """The differences of one data set and measure.

    Attributes:
      row: shared by the panels side by side, such as the data set.
      title: of its numbers.
      methods: from top to bottom.
    """

    row: str
    title: str
    methods: Sequence[Difference]


def plot_differences(panels: Sequence[Panel], path: str | os.PathLike, against: str, unit: str) -> Figure:
    """Draws a panel per data set and measure, with methods from top to bottom and intervals of
    differences across.

    A marker is filled if its interval excludes 0, else hollow. Panels of one `row` are side by
    side. Only the first has names if all have the same methods in the same order, else each has.

    Args:
      panels: in drawing order.
      against: the name of the reference.
      unit: of the differences, such as "points".
    """
    rows = list(dict.fromkeys(panel.row for panel in panels))
    grid = [[panel for panel in panels if panel.row == row] for row in rows]
    kinds = list(dict.fromkeys(one.kind for panel in panels for one in panel.methods if not one.is_reference))
    heights = [0.5 + LINE * max(len(panel.methods) for panel in beside) for beside in grid]
    with matplotlib.rc_context(style.STYLE):
        width = style.COLUMN if max(map(len, grid)) == 1 else style.PAGE
        columns = 2 if width == style.COLUMN else len(KEY)
        lines = -(-len(KEY) // columns) + (len(kinds) > 1)
        figure = Figure(figsize=(width, 0.4 + 0.16 * lines + sum(heights)), layout="constrained")
        places = figure.add_gridspec(len(grid), 1, height_ratios=heights)
        for at, beside in enumerate(grid):
            shared = len({tuple(one.label for one in panel.methods) for panel in beside}) == 1
            inside = places[at].subgridspec(1, len(beside))
            for i, panel in enumerate(beside):
                axes = figure.add_subplot(inside[i])
                _panel(axes, panel, kinds, not shared or i == 0)
                axes.set_title(f"{panel.row}: {panel.title}" if i == 0 else panel.title)
                if beside is grid[-1]:
                    axes.set_xlabel(f"minus {against} [{unit}]")
        figure.legend(_make_legend_marks(), KEY, loc="outside lower center", ncols=columns, columnspacing=1.0, handlelength=1.5)
        if len(kinds) > 1:
            handles = {}
            for axes in figure.axes:
                marks, names = axes.get_legend_handles_labels()
                handles |= dict(zip(names, marks, strict=True))
            labels = [kind for kind in kinds if kind in handles]
            figure.legend([handles[kind] for kind in labels], labels, loc="outside upper center", ncols=len(labels))
        style.save_figure(figure, path, [_record(panel, one) for panel in panels for one in panel.methods if not one.is_reference])
    return figure


def _record(panel: Panel, one: Difference) -> dict[str, Any]:
    """Returns a row of the CSV."""
    numbers = {name: value for name, value in one._asdict().items() if name != "is_reference"}
    return {"row": panel.row, "title": panel.title, **numbers}


def _make_legend_marks() -> list[Line2D]:
    """Returns the marks of the entries of `KEY`."""
    marker = {"color": "black", "linestyle": "none", "marker": "o", "markersize": 3.5}
    return [
        Line2D([], [], color="black", linewidth=1.0),
        Line2D([], [], **marker),
        Line2D([], [], **marker, markerfacecolor="white"),
        Line2D([], [], linestyle="none"),
    ]


def _panel(axes: Axes, panel: Panel, kinds: Sequence[str], named: bool) -> None:
    axes.axvline(0, color=REFERENCE, linewidth=0.8)
    for at, one in enumerate(panel.methods):
        if one.is_reference:
            axes.plot([0], [at], "|", color=REFERENCE, markersize=7, markeredgewidth=1.5, label="_reference")
    for i, kind in enumerate(kinds):
        colour, marker = style.COLOURS[i % len(style.COLOURS)], style.MARKERS[i % len(style.MARKERS)]
        label = kind
        for at, one in enumerate(panel.methods):
            if one.kind != kind or one.is_reference:
                continue
            axes.plot([one.low, one.high], [at, at], color=colour, linewidth=1.0)
            face = colour if one.low > 0 or one.high < 0 else "white"
            axes.plot([one.value], [at], marker, color=colour, markerfacecolor=face, markersize=3.5, linestyle="none", label=label)
            label = "_" + kind  # one entry in the legend
    axes.set_yticks(range(len(panel.methods)), [one.label for one in panel.methods] if named else [])
    axes.set_ylim(len(panel.methods) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    if named:
        for text, one in zip(axes.get_yticklabels(), panel.methods, strict=True):
            text.set_fontweight("bold" if one.like_best else "normal")


def plot_dots(series: Mapping[str, Mapping[str, float]], path: str | os.PathLike, across: str, up: str) -> Figure:
    """Draws accuracies by category, a marker per run.

    Args:
      series: by run, {category: accuracy in [0, 1]}; NaN is not drawn.
      across: label of the categories: "class", "client".
      up: label of the numbers.
    """
    names = list(dict.fromkeys(name for values in series.values() for name in values))
    of = dict(zip(style.csv_columns(across, series, "run"), series.values(), strict=True))
    rows = [{across: name, **{run: values[name] for run, values in of.items() if name in values}} for name in names]
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(style.COLUMN if len(names) <= 25 else style.PAGE, 2.4), layout="constrained")
        axes = figure.add_subplot()
        for i, (run, values) in enumerate(series.items()):
            shift = 0.12 * (i - (len(series) - 1) / 2) if len(series) > 1 else 0.0
            at = [names.index(name) + shift for name in values]
            colour, marker = style.COLOURS[i % len(style.COLOURS)], style.MARKERS[i % len(style.MARKERS)]
            look = {"color": colour, "marker": marker, "linestyle": "none", "markersize": 3.5}
            axes.plot(at, list(values.values()), label=style.legend_entry(run), **look)
        longest = max(map(len, names), default=0)
        long = longest > 4
        step = style.tick_step((0.12 if long else 0.06 * (longest + 1)) * len(names) / (figure.get_figwidth() - 0.7))
        axes.set_xticks(range(0, len(names), step), style.shorten_names(names[::step]), rotation=90 if long else 0)
        axes.set(xlabel=across, ylabel=up)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
        if len(series) > 1:
            figure.legend(loc="outside upper center", ncols=min(len(series), 3), handletextpad=0.1, columnspacing=1.0)
        style.save_figure(figure, path, rows)
    return figure
