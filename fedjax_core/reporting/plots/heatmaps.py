"""Heatmaps of numbers by client and class and of attention weights, and contact sheets of images."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from fedjax_core.reporting.evenly_spaced import space_evenly
from fedjax_core.reporting.plots import style


def plot_heatmap(
    values: Any,
    path: str | os.PathLike,
    class_names: Sequence[str] | None = None,
    *,
    clients: Sequence[int] | None = None,
    client_names: Sequence[str] | None = None,
    of: str = "examples",
    percent: bool = False,
    across: str = "client",
) -> Figure:
    """Draws a number per client and class as shades of blue, with numbers in the cells if there is
    room.

    Args:
      values: [clients, classes]; NaN for missing numbers. Of more than `style.MOST_CLIENTS` clients
        so many are drawn, evenly spaced.
      client_names: one per client, for the CSV; by default none.
      of: label of the colour bar.
      percent: whether to show numbers times 100.
      across: what the rows of `values` are, and `clients` their numbers, such as "round".

    Raises:
      ValueError: if the values are not a matrix, or the names are not one per class.
    """
    table = np.asarray(values, float)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"the values must be a matrix [clients, classes], found shape {table.shape}")
    names = style.resolve_class_names(table.shape[1], class_names)
    ids = list(range(len(table))) if clients is None else list(clients)
    rows = style.make_client_rows(ids, client_names, names, np.asarray(values), across)
    shown = space_evenly(len(table), style.MOST_CLIENTS)
    population = ids[-1] + 1 if across == "client" else len(table)  # of many clients a table has some
    part = table[shown].T * (100 if percent else 1)
    columns = len(shown)
    with matplotlib.rc_context(style.STYLE):
        size = (style.COLUMN if columns <= 12 else style.PAGE, min(0.9 + 0.2 * len(names), 8.0))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        most = 100.0 if percent else max(float(np.nanmax(part)), 1e-9) if np.isfinite(part).any() else 1.0
        image = axes.imshow(part, cmap="Blues", vmin=0, vmax=most, aspect="auto", origin="lower")
        width = max((len(f"{v:.0f}") for v in part.ravel() if np.isfinite(v)), default=1)
        if columns * width * 0.075 < size[0] - 1.3 and len(names) <= 30:
            for (k, i), value in np.ndenumerate(part):
                if np.isfinite(value) and (value or percent):
                    colour = "white" if value > 0.6 * most else "black"
                    axes.text(i, k, f"{value:.0f}", ha="center", va="center", fontsize=6, color=colour)
        x_step, y_step = style.tick_step(0.2 * columns / (size[0] - 1.3)), style.tick_step(len(names) / 40)
        axes.set_xticks(range(0, columns, x_step), [str(ids[i]) for i in shown[::x_step]])
        axes.set_yticks(range(0, len(names), y_step), style.shorten_names(names[::y_step]))
        axes.set(xlabel=across if population == columns else f"{across} ({columns} of {population:,} shown)", ylabel="class")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, label=of + (" (%)" if percent else ""), pad=0.02).outline.set_linewidth(0.6)
        style.save_figure(figure, path, rows)
    return figure


def plot_attention(weights: Any, path: str | os.PathLike, labels: Sequence[str] | None = None) -> Figure:
    """Draws the attention weights of examples to their feature f and to each prompt, one row per
    example.

    Args:
      weights: [n, 1 + prompts].
      path: its CSV has a line per example: its label, f, p1, p2, ...
      labels: of the examples, such as their classes; by default their numbers.

    Raises:
      ValueError: if the weights are not a matrix, or the labels are not one per example.
    """
    table = np.asarray(weights, float)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"the weights must be a matrix [examples, 1 + prompts], found shape {table.shape}")
    labels = list(map(str, range(len(table)) if labels is None else labels))
    if len(labels) != len(table):
        raise ValueError(f"{len(labels)} labels for {len(table)} examples; give one per example")
    tokens = ["f", *(f"p{i}" for i in range(1, table.shape[1]))]
    rows = [{"example": label, **dict(zip(tokens, row.tolist(), strict=True))} for label, row in zip(labels, table, strict=True)]
    with matplotlib.rc_context(style.STYLE):
        wide = style.COLUMN if len(tokens) <= 25 else style.PAGE
        figure = Figure(figsize=(wide, min(0.9 + 0.13 * len(table), 8.0)), layout="constrained")
        axes = figure.add_subplot()
        image = axes.imshow(table, cmap="Blues", vmin=0, aspect="auto")
        across, down = style.tick_step(0.22 * len(tokens) / (wide - 1.2)), style.tick_step(len(table) / 60)
        axes.set_xticks(range(0, len(tokens), across), tokens[::across])
        axes.set_yticks(range(0, len(table), down), labels[::down])
        axes.set(xlabel="feature, then prompts", ylabel="test example")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, label="attention", pad=0.02).outline.set_linewidth(0.6)
        style.save_figure(figure, path, rows)
    return figure


def plot_contact_sheet(rows: Mapping[str, Any], path: str | os.PathLike) -> Figure:
    """Draws rows of images side by side, such as augmented ones. It has no CSV.

    Args:
      rows: label -> images [n, H, W, C] with 1 or 3 channels, uint8 or floats, clipped to [0, 1].

    Raises:
      ValueError: if there are no rows, or a row is not images.
    """
    if not rows:
        raise ValueError("a contact sheet needs at least one row of images")
    sheets = {label: np.asarray(images) for label, images in rows.items()}
    for label, images in sheets.items():
        if images.ndim != 4 or images.shape[3] not in (1, 3) or not len(images):
            raise ValueError(f"row {label!r} of a contact sheet has shape {images.shape}, which is not [n, H, W, 1 or 3]")
    most = max(map(len, sheets.values()))
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(style.PAGE, (style.PAGE - 1) / most * len(sheets)), layout="constrained")
        axes = figure.subplots(len(sheets), most, squeeze=False)
        for row, (label, images) in zip(axes, sheets.items(), strict=True):
            shown = images if images.dtype == np.uint8 else np.clip(images.astype(np.float32), 0, 1)
            for place, image in zip(row, shown, strict=False):
                place.imshow(image, cmap="gray", vmin=0, vmax=255 if shown.dtype == np.uint8 else 1, interpolation="nearest")
            for place in row:
                place.axis("off")
            row[0].text(-0.08, 0.5, label, transform=row[0].transAxes, ha="right", va="center", fontsize=7)
        style.write_figure(figure, path)
    return figure
