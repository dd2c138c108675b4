"""How figures look, and how they get onto the disk."""

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

COLUMN = 3.4  # inches: the width of a column in print
PAGE = 7.0
MOST_CLIENTS = 100  # columns of the partition chart
LONGEST_NAME = 20  # letters of a class in a figure; its CSV has all
# Okabe and Ito's colours, told apart by the colour-blind; the dashes tell lines apart without colour
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
    """Writes a figure, and its numbers into a CSV file of the same name."""
    write(figure, path)
    write_csv(Path(path).with_suffix(".csv"), rows)


def write(figure: Figure, path: str | os.PathLike) -> None:
    """Writes a figure in the format that the path's suffix says, a PNG if it has none.

    Raises:
      OSError: if it cannot be written.
      ValueError: if there is no such format.
    """
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
    """Puts the legend above all axes, where it covers nothing, and makes the figure higher by its rows."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(3, len(labels), int(16 * figure.get_figwidth() / (max(map(len, labels)) + 8))))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.14 * rows)
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, handlelength=2.5, columnspacing=1.0)


def make_palette(n: int) -> list[Any]:
    """n colours, as far apart as they can be."""
    colours = matplotlib.colormaps["tab10" if n <= 10 else "tab20" if n <= 20 else "turbo"]
    return [colours(i) if n <= 20 else colours(i / (n - 1)) for i in range(n)]


def hide_axes(axes: Axes, labels: int, scale: float) -> None:
    """No ticks and no grid; the legend beside the axes, if it is not too long."""
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    if labels <= 20:
        columns = 1 if labels <= 12 else 2
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), handletextpad=0.1, ncols=columns, markerscale=scale)


def resolve_class_names(classes: int, names: Sequence[str] | None) -> list[str]:
    found = [str(k) for k in range(classes)] if names is None else list(map(str, names))
    if len(found) != classes:
        raise ValueError(f"{len(found)} class names for {classes} classes; give one per class")
    return found


def csv_columns(head: str, names: Iterable[str], what: str) -> list[str]:
    """Names as columns of a CSV beside one that is called `head`: a name like that says in brackets what it is."""
    return [f"{name} ({what})" if name == head else name for name in names]


def make_client_rows(
    ids: Iterable[int], client_names: Sequence[str] | None, class_names: Iterable[str], table: np.ndarray
) -> list[dict[str, Any]]:
    """Returns the rows of a CSV with a line for each client and a column for each class; `table` is [clients, classes]."""
    heads = csv_columns("client", class_names, "class")
    if client_names is None:
        return [{"client": i, **dict(zip(heads, row.tolist(), strict=True))} for i, row in zip(ids, table, strict=True)]
    heads = csv_columns("name", heads, "class")
    rows = zip(ids, client_names, table, strict=True)
    return [{"client": i, "name": name, **dict(zip(heads, row.tolist(), strict=True))} for i, name, row in rows]


def legend_entry(label: str) -> str:
    """A label as a legend shows it: without the space of no width, matplotlib leaves out what is empty or begins with "_"."""
    return label if label and not label.startswith("_") else f"\u200b{label}"


def shorten(names: Sequence[str]) -> list[str]:
    """Names as figures show them: WordNet's have up to 120 letters."""
    return [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1].rstrip(" ,") + "…" for name in names]


def tick_step(least: float) -> int:
    """The smallest round number that is not less: the distance of labels that do not touch."""
    return next((step for step in (1, 2, 5, 10, 20, 25, 50) if step >= least), 100)
