"""Accuracies by class or by client, a marker per run."""

import os
from collections.abc import Mapping

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fedjax_core.reporting.plots import style


def dots(series: Mapping[str, Mapping[str, float]], path: str | os.PathLike, across: str, up: str) -> Figure:
    """Draws accuracies by category, a marker per run.

    Args:
      series: by run, {category: accuracy in [0, 1]}; what is NaN is not drawn.
      path: where the figure goes; the suffix says the format. Its CSV has a line per category, a column per run.
      across: what the categories are: "class", "client".
      up: what the numbers are.

    Returns:
      The figure.

    Raises:
      OSError: if the files cannot be written.
    """
    names = list(dict.fromkeys(name for values in series.values() for name in values))
    of = dict(zip(style.columns(across, series, "run"), series.values(), strict=True))
    rows = [{across: name, **{run: values[name] for run, values in of.items() if name in values}} for name in names]
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(style.COLUMN if len(names) <= 25 else style.PAGE, 2.4), layout="constrained")
        axes = figure.add_subplot()
        for i, (run, values) in enumerate(series.items()):
            shift = 0.12 * (i - (len(series) - 1) / 2) if len(series) > 1 else 0.0
            at = [names.index(name) + shift for name in values]
            colour, marker = style.COLOURS[i % len(style.COLOURS)], style.MARKERS[i % len(style.MARKERS)]
            look = {"color": colour, "marker": marker, "linestyle": "none", "markersize": 3.5}
            axes.plot(at, list(values.values()), label=style.entry(run), **look)
        longest = max(map(len, names), default=0)
        long = longest > 4
        step = style.step((0.12 if long else 0.06 * (longest + 1)) * len(names) / (figure.get_figwidth() - 0.7))
        axes.set_xticks(range(0, len(names), step), style.short(names[::step]), rotation=90 if long else 0)
        axes.set(xlabel=across, ylabel=up)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
        if len(series) > 1:
            figure.legend(loc="outside upper center", ncols=min(len(series), 3), handletextpad=0.1, columnspacing=1.0)
        style.save(figure, path, rows)
    return figure
