"""Bubble charts of label counts by client and class."""

import os
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure

from fedjax_core.reporting.evenly_spaced import space_evenly
from fedjax_core.reporting.plots import style


def plot_partition(
    label_table: Any,
    path: str | os.PathLike,
    class_names: Sequence[str] | None = None,
    *,
    clients: Sequence[int] | None = None,
    client_names: Sequence[str] | None = None,
) -> Figure:
    """Draws a circle per client and class, its area proportional to the number of examples.

    Args:
      label_table: [clients, classes] counts. Of more than `style.MOST_CLIENTS` clients so many are
        drawn, evenly spaced.
      client_names: one per client, for the CSV; by default none.

    Raises:
      ValueError: if the table is not a matrix of counts, or the names are not one per class.
    """
    counts = np.asarray(label_table)
    if counts.ndim != 2 or not counts.size or counts.dtype.kind not in "iuf" or not (counts >= 0).all():
        raise ValueError(f"the label table must be counts [clients, classes], found {counts.dtype} of shape {counts.shape}")
    ids = np.arange(len(counts)) if clients is None else np.asarray(clients)
    names = style.resolve_class_names(counts.shape[1], class_names)
    rows = style.make_client_rows(ids.tolist(), client_names, names, counts)
    shown = space_evenly(len(counts), style.MOST_CLIENTS)
    with matplotlib.rc_context(style.STYLE):
        figure = _bubbles(counts[shown], ids[shown], style.shorten_names(names), int(ids[-1]) + 1)
        style.save_figure(figure, path, rows)
    return figure


def _bubbles(counts: np.ndarray, shown: np.ndarray, names: Sequence[str], clients: int) -> Figure:
    """Draws a figure as large as its table needs; the largest circle nearly fills its cell."""
    columns, rows = counts.shape
    left, right, below, above = 0.35 + 0.06 * max(map(len, names)), 0.1, 0.42, 0.35
    page = style.COLUMN if columns <= 30 else style.PAGE
    wide = min((page - left - right) / columns, 0.3)
    high = min(max(wide, 0.12), (8.0 if rows > 60 else 6.0) / rows, 0.3)
    most = float(counts.max()) or 1.0
    largest = max(0.95 * min(wide, high), 0.1)  # inches; in a crowd the few large ones may overlap
    size = max(left + columns * wide + right, 2.2), below + rows * high + above
    figure = Figure(figsize=size)
    axes = figure.add_axes((left / size[0], below / size[1], columns * wide / size[0], rows * high / size[1]))
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(-0.5, rows - 0.5))
    x, y = np.nonzero(counts)
    _circles(axes, x, y, largest * np.sqrt(counts[x, y] / most))
    axes.set_xlabel("client" if clients == columns else f"client ({columns} of {clients:,} shown)")
    axes.set_ylabel("class")
    across, down = style.tick_step(0.055 * (len(str(shown[-1])) + 1) / wide), style.tick_step(0.11 / high)
    axes.set_xticks(range(0, columns, across), [str(i) for i in shown[::across]])
    axes.set_yticks(range(0, rows, down), names[::down])
    axes.tick_params(length=2)
    axes.grid(linewidth=0.3)

    legend = figure.add_axes((0, 1 - above / size[1], 1, above / size[1]))
    legend.set(xlim=(0, size[0]), ylim=(0, above))
    legend.axis("off")
    at, middle = left + largest / 2, above / 2
    for count in dict.fromkeys((most, float(round(most / 4)) or most)):
        diameter = largest * np.sqrt(count / most)
        _circles(legend, [at], [middle], np.array([diameter]))
        legend.text(at + diameter / 2 + 0.04, middle, f"{count:,.0f}", va="center_baseline", fontsize=7)
        at += diameter / 2 + 0.2 + 0.06 * len(f"{count:,.0f}") + largest / 4
    legend.text(at - largest / 4, middle, "examples", va="center_baseline", fontsize=7)
    return figure


def _circles(axes: Axes, x: Any, y: Any, inches: np.ndarray) -> None:
    """Circles of the given diameters at places in data units."""
    places = {"offsets": np.column_stack([x, y]), "offset_transform": axes.transData}
    look = {"facecolors": style.COLOURS[0], "linewidths": 0, "alpha": 0.85}
    axes.add_collection(EllipseCollection(inches, inches, np.zeros_like(inches), units="inches", **places, **look))
