"""The style of figures, and functions that write them."""

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedjax_core.atomic_files import write_bytes, write_csv

COLUMN = 3.4  # width of a printed column, in inches
PAGE = 7.0
MOST_CLIENTS = 100  # columns of a chart by client
LONGEST_NAME = 20  # letters of a class in a figure; the CSV has all
# Okabe and Ito's colours, distinguishable for the colour-blind; dashes distinguish lines without colour
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
DASHES = ("-", "--", "-.", ":")
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a dollar in a class's name or a label is a dollar
}


def save_figure(figure: Figure, path: str | os.PathLike, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a figure, and its numbers as a CSV file of the same name."""
    write_figure(figure, path)
    write_csv(Path(path).with_suffix(".csv"), rows)


def write_figure(figure: Figure, path: str | os.PathLike) -> None:
    """Writes a figure in the format of the suffix, by default PNG; ValueError if unknown."""
    path = Path(path)
    kind = path.suffix.removeprefix(".") or "png"
    allowed = sorted(figure.canvas.get_supported_filetypes())
    if kind not in allowed:
        raise ValueError(f"{path} has suffix .{kind}, not one of {', '.join(allowed)}; take .png, .pdf or .svg")
    image = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(image, format=kind)
    write_bytes(path, image.getvalue())


def legend_above(figure: Figure, axes: Axes) -> None:
    """Puts the legend above all axes, and makes the figure higher by its rows."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(3, len(labels), int(16 * figure.get_figwidth() / (max(map(len, labels)) + 8))))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.14 * rows)
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, handlelength=2.5, columnspacing=1.0)


def make_palette(n: int) -> list[Any]:
    """Returns n colours that are as distinct as possible."""
    colormap = matplotlib.colormaps["tab10" if n <= 10 else "tab20" if n <= 20 else "turbo"]
    return [colormap(i) if n <= 20 else colormap(i / (n - 1)) for i in range(n)]


def hide_axes(axes: Axes, labels: int, scale: float) -> None:
    """Removes ticks and grid, and puts a legend of at most 20 entries beside the axes."""
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    if labels <= 20:
        columns = 1 if labels <= 12 else 2
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), handletextpad=0.1, ncols=columns, markerscale=scale)


def resolve_class_names(classes: int, names: Sequence[str] | None) -> list[str]:
    """Returns the names of classes, by default their numbers; ValueError unless all."""
    resolved = [str(k) for k in range(classes)] if names is None else list(map(str, names))
    if len(resolved) != classes:
        raise ValueError(f"{len(resolved)} class names for {classes} classes; give one per class")
    return resolved


def csv_columns(head: str, names: Iterable[str], what: str) -> list[str]:
    """Returns column names of a CSV; a name equal to column `head` gets `what` in brackets."""
    return [f"{name} ({what})" if name == head else name for name in names]


def make_client_rows(
    ids: Iterable[int], client_names: Sequence[str] | None, class_names: Iterable[str], table: np.ndarray, of: str = "client"
) -> list[dict[str, Any]]:
    """Returns CSV rows, one per client (or what `of` says) with a column per class of `table` [clients, classes]."""
    heads = csv_columns(of, class_names, "class")
    if client_names is None:
        return [{of: i, **dict(zip(heads, row.tolist(), strict=True))} for i, row in zip(ids, table, strict=True)]
    heads = csv_columns("name", heads, "class")
    rows = zip(ids, client_names, table, strict=True)
    return [{of: i, "name": name, **dict(zip(heads, row.tolist(), strict=True))} for i, name, row in rows]


def legend_entry(label: str) -> str:
    """Returns a label that matplotlib shows, which omits those that are empty or begin with "_"."""
    return label if label and not label.startswith("_") else f"\u200b{label}"


def shorten_names(names: Sequence[str]) -> list[str]:
    """Returns names cut to `LONGEST_NAME`; WordNet's have up to 120 letters."""
    return [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1].rstrip(" ,") + "…" for name in names]


def tick_step(least: float) -> int:
    """Returns the smallest round number >= `least`: the distance of labels that do not touch."""
    return next((step for step in (1, 2, 5, 10, 20, 25, 50) if step >= least), 100)
