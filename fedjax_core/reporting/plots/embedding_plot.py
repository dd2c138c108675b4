"""Scatter plots of embeddings, and the loss over a plane of parameters."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from fedjax_core.reporting.plots import style


def plot_embedding(
    places: Any,
    classes: Any,
    clients: Any,
    path: str | os.PathLike,
    class_names: Sequence[str] | None = None,
    centres: Any = None,
) -> Figure:
    """Draws points in two panels: coloured by class, and by client (each with its own marker).

    Args:
      places: [n, 2].
      classes: [n] labels.
      clients: [n] ids.
      centres: [n] mask of centroids, which are larger and have their client's marker in both
        panels.
    """
    places, classes, clients = np.asarray(places), np.asarray(classes), np.asarray(clients)
    large = np.zeros(len(places), bool) if centres is None else np.asarray(centres, bool)
    names = list(map(str, range(int(classes.max()) + 1) if class_names is None else class_names))
    rows = [
        {"x": x, "y": y, "class": names[k], "client": i, "what": "centroid" if c else "example"}
        for (x, y), k, i, c in zip(places.tolist(), classes.tolist(), clients.tolist(), large.tolist(), strict=True)
    ]
    markers = {client: style.MARKERS[i % len(style.MARKERS)] for i, client in enumerate(np.unique(clients).tolist())}
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(style.PAGE, 3.6), layout="constrained")
        for place, (what, values) in enumerate((("class", classes), ("client", clients)), 1):
            axes = figure.add_subplot(1, 2, place)
            unique = np.unique(values)
            for value, colour in zip(unique.tolist(), style.make_palette(len(unique)), strict=True):
                mask = values == value
                marker = markers[value] if what == "client" else "o"
                label = style.legend_entry(style.shorten_names(names)[value]) if what == "class" else str(value)
                axes.scatter(*places[mask & ~large].T, s=7, color=colour, marker=marker, linewidths=0, label=label)
                for client in np.unique(clients[mask & large]).tolist():
                    at = places[mask & large & (clients == client)].T
                    axes.scatter(*at, s=60, color=colour, marker=markers[client], edgecolors="black", linewidths=0.8, zorder=3)
            axes.set_title(f"by {what}")
            style.hide_axes(axes, len(unique), 1.6)
        style.save_figure(figure, path, rows)
    return figure


def plot_landmarks(
    places: Any,
    classes: Any,
    marks: Any,
    mark_classes: Any,
    path: str | os.PathLike,
    class_names: Sequence[str] | None = None,
) -> Figure:
    """Draws points in the plane, coloured by class, and one large dot per class.

    Args:
      places: [n, 2].
      classes: [n] labels.
      marks: [k, 2].
      mark_classes: [k] labels.
    """
    places, classes, marks, mark_classes = map(np.asarray, (places, classes, marks, mark_classes))
    most = int(max(classes.max(), mark_classes.max(initial=0))) + 1
    names = list(map(str, range(most) if class_names is None else class_names))
    rows = [
        {"x": x, "y": y, "class": names[k], "what": what}
        for what, at, labels in (("example", places, classes), ("knowledge", marks, mark_classes))
        for (x, y), k in zip(at.tolist(), labels.tolist(), strict=True)
    ]
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(style.COLUMN, 3.4), layout="constrained")
        axes = figure.add_subplot()
        unique = np.unique(np.concatenate([classes, mark_classes])).tolist()
        for value, colour in zip(unique, style.make_palette(len(unique)), strict=True):
            label = style.legend_entry(style.shorten_names(names)[value])
            axes.scatter(*places[classes == value].T, s=5, color=colour, linewidths=0, label=label)
            axes.scatter(*marks[mark_classes == value].T, s=90, color=colour, edgecolors="black", linewidths=1.2, zorder=3)
        style.hide_axes(axes, len(unique), 1.8)
        style.save_figure(figure, path, rows)
    return figure


def plot_contours(
    steps: Any,
    loss: Any,
    path: str | os.PathLike,
    accuracy: Any = None,
    marks: Mapping[str, Any] | None = None,
    share: Sequence[float] | None = None,
    of: str = "test loss",
) -> Figure:
    """Draws contours of a loss over a plane, with crosses at the model and at others.

    Args:
      steps: [n] positions along both directions.
      loss: [n, n]: at `steps[j]` along the first and `steps[i]` along the second direction.
      accuracy: [n, n] for the CSV.
      marks: positions [m, 2] of other models by label; they have no loss in the CSV.
      share: fraction of the others' squared distances along each direction, in [0, 1].
      of: label of the colour bar.

    Raises:
      ValueError: if no loss is finite.
    """
    steps, loss = np.asarray(steps, float), np.asarray(loss, float)
    if not np.isfinite(loss).any():
        raise ValueError("no loss on the plane is finite; take a smaller span")
    rows = [
        {"first": steps[j], "second": steps[i], "loss": loss[i, j]}
        | ({} if accuracy is None else {"accuracy": np.asarray(accuracy)[i, j]})
        for i in range(len(steps))
        for j in range(len(steps))
    ]
    places = {label: np.reshape(at, (-1, 2)) for label, at in (marks or {}).items()}
    if places:
        rows = [row | {"what": "surface"} for row in rows]
        rows += [{"first": x, "second": y, "what": label} for label, at in places.items() for x, y in at.tolist()]
    low, high = max(float(np.nanmin(loss)), 1e-6), float(np.nanmax(loss[np.isfinite(loss)]))
    levels = np.geomspace(low, max(high, low * 1.01), 11)
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(style.COLUMN, 2.8), layout="constrained")
        axes = figure.add_subplot()
        shades = axes.contourf(steps, steps, np.maximum(loss, low), levels=levels, cmap="Blues_r", norm=LogNorm(low, levels[-1]))
        lines = axes.contour(steps, steps, np.maximum(loss, low), levels=levels[1:-1], colors="black", linewidths=0.4)
        axes.clabel(lines, np.asarray(lines.levels)[::2], fmt="%.2g", fontsize=6)
        axes.plot([0], [0], "+", color=style.COLOURS[1], markersize=9, markeredgewidth=1.5)
        for i, (label, at) in enumerate(places.items()):
            shape = {"color": style.COLOURS[1 + i % (len(style.COLOURS) - 1)], "marker": style.MARKERS[i % len(style.MARKERS)]}
            axes.scatter(*at.T, s=22, edgecolors="white", linewidths=0.6, label=style.legend_entry(label), zorder=3, **shape)
        if places:
            style.legend_above(figure, axes)
        first, second = [""] * 2 if share is None else [f" ({100 * part:.0f} %)" for part in share]
        axes.set(xlabel=f"first direction{first}", ylabel=f"second direction{second}", aspect="equal")
        axes.grid(visible=False)
        figure.colorbar(shades, ax=axes, label=of, format="%.2g", pad=0.02, shrink=0.85)
        style.save_figure(figure, path, rows)
    return figure
