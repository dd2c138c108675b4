"""Figures of runs, from what lies in their directories: metrics.jsonl, and the label table in run.json. Nothing else is read.

Every figure of numbers has them beside it, in a CSV file of the same name. The figures are matplotlib's objects and touch none of
pyplot's global state, so they are drawn in any thread; in a notebook show the file, or the returned Figure.
"""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedjax_core.reporting.report import is_accuracy
from fedjax_core.storage.workdir import METRICS, RUN, read_json, read_jsonl, write_bytes, write_csv

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
}

Line = tuple[str, Sequence[float], Sequence[float]]  # label, rounds, values


def curves(
    run_dirs: Sequence[str | os.PathLike] | str | os.PathLike,
    metric: str | Sequence[str],
    path: str | os.PathLike,
    labels: Sequence[str] | None = None,
) -> Figure:
    """Draws one score of one run or several over the rounds.

    Args:
      run_dirs: their directories.
      metric: a name in metrics.jsonl, e.g. "test/global/accuracy"; of several the first that a run has, for methods that have
        different models.
      path: where the figure goes; the suffix says the format (.png, .pdf, .svg). Its CSV has columns run, round, `metric`.

      labels: of the lines; by default the directories' names.

    Returns:
      The figure.

    Raises:
      OSError: if a run has no metrics.jsonl, or the files cannot be written.
      ValueError: if a run has no such score; the message lists those it has.
    """
    folders = [Path(run_dirs)] if isinstance(run_dirs, (str, os.PathLike)) else [Path(folder) for folder in run_dirs]
    labels = labels_of(folders) if labels is None else labels
    metrics = [metric] if isinstance(metric, str) else list(metric)
    lines, rows = [], []
    for label, folder in zip(labels, folders, strict=True):
        name, xs, ys = _series(folder, metrics)
        lines.append((label, xs, ys))
        rows += [{"run": label, "round": r, name: v} for r, v in zip(xs, ys, strict=True)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 2.4), layout="constrained")
        axes = figure.add_subplot()
        _draw_lines(axes, lines, metrics[0])
        if len(metrics) > 1:
            axes.set_ylabel("test accuracy" if is_accuracy(metrics[0]) else metrics[0].rpartition("/")[2])
        _save(figure, path, rows)
    return figure


def partition_bubbles(label_table: Any, path: str | os.PathLike, class_names: Sequence[str] | None = None) -> Figure:
    """Draws who has how much of what: a circle per client and class, its area proportional to the number of examples.

    Args:
      label_table: [clients, classes] counts. Of more than `MOST_CLIENTS` clients so many are drawn, evenly spaced.
      path: where the figure goes; the suffix says the format. Its CSV has all clients, a column per class.
      class_names: one per class; by default their numbers.

    Returns:
      The figure.

    Raises:
      OSError: if the files cannot be written.
      ValueError: if the table is not a matrix of counts, or the names are not one per class.
    """
    counts = np.asarray(label_table)
    if counts.ndim != 2 or not counts.size or counts.dtype.kind not in "iuf" or not (counts >= 0).all():
        raise ValueError(f"the label table must be counts [clients, classes], found {counts.dtype} of shape {counts.shape}")
    clients = len(counts)
    names = _class_names(counts.shape[1], class_names)
    rows = [{"client": i, **dict(zip(names, row.tolist(), strict=True))} for i, row in enumerate(counts)]
    shown = np.unique(np.linspace(0, clients - 1, min(clients, MOST_CLIENTS)).round().astype(int))
    with matplotlib.rc_context(STYLE):
        figure = _bubbles(counts[shown], shown, _short(names), clients)
        _save(figure, path, rows)
    return figure


def contact_sheet(rows: Mapping[str, Any], path: str | os.PathLike) -> Figure:
    """Draws rows of images side by side, such as what an augmentation makes of them. It has no CSV: the pictures are the data.

    Args:
      rows: label -> images [n, H, W, C] with 1 or 3 channels, uint8 or floats in [0, 1]; what lies outside is cut.
      path: where the figure goes; the suffix says the format (.png, .pdf, .svg).

    Returns:
      The figure.

    Raises:
      OSError: if the file cannot be written.
      ValueError: if there is nothing to draw, or it is not images.
    """
    if not rows:
        raise ValueError("a contact sheet needs at least one row of images")
    sheets = {label: np.asarray(images) for label, images in rows.items()}
    for label, images in sheets.items():
        if images.ndim != 4 or images.shape[3] not in (1, 3) or not len(images):
            raise ValueError(f"row {label!r} of a contact sheet has shape {images.shape}, which is not [n, H, W, 1 or 3]")
    most = max(map(len, sheets.values()))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(PAGE, (PAGE - 1) / most * len(sheets)), layout="constrained")
        axes = figure.subplots(len(sheets), most, squeeze=False)
        for row, (label, images) in zip(axes, sheets.items(), strict=True):
            shown = images if images.dtype == np.uint8 else np.clip(images.astype(np.float32), 0, 1)
            for place, image in zip(row, shown, strict=False):
                place.imshow(image, cmap="gray", vmin=0, vmax=255 if shown.dtype == np.uint8 else 1, interpolation="nearest")
            for place in row:
                place.axis("off")
            row[0].text(-0.08, 0.5, label, transform=row[0].transAxes, ha="right", va="center", fontsize=7)
        _write(figure, path)
    return figure


def heatmap(
    values: Any,
    path: str | os.PathLike,
    class_names: Sequence[str] | None = None,
    *,
    clients: Sequence[int] | None = None,
    of: str = "examples",
    percent: bool = False,
) -> Figure:
    """Draws a number per client and class as shades of blue; the numbers stand in the cells where there is room.

    Args:
      values: [clients, classes]; NaN where there is nothing. Of more than `MOST_CLIENTS` so many are drawn, evenly spaced.
      path: where the figure goes; the suffix says the format. Its CSV has all clients, a column per class.
      class_names: one per class; by default their numbers.
      clients: their ids; by default 0, 1, ...
      of: what the numbers are, beside the colour bar.
      percent: whether they are shown times 100.

    Returns:
      The figure.

    Raises:
      OSError: if the files cannot be written.
      ValueError: if the values are not a matrix, or the names are not one per class.
    """
    table = np.asarray(values, float)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"the values must be a matrix [clients, classes], found shape {table.shape}")
    names = _class_names(table.shape[1], class_names)
    ids = list(range(len(table))) if clients is None else list(clients)
    rows = [{"client": i, **dict(zip(names, row.tolist(), strict=True))} for i, row in zip(ids, np.asarray(values), strict=True)]
    shown = np.unique(np.linspace(0, len(table) - 1, min(len(table), MOST_CLIENTS)).round().astype(int))
    part = table[shown].T * (100 if percent else 1)
    columns = len(shown)
    with matplotlib.rc_context(STYLE):
        size = (COLUMN if columns <= 12 else PAGE, min(0.9 + 0.2 * len(names), 8.0))
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
        across, down = _step(0.2 * columns / (size[0] - 1.3)), _step(len(names) / 40)
        axes.set_xticks(range(0, columns, across), [str(ids[i]) for i in shown[::across]])
        axes.set_yticks(range(0, len(names), down), _short(names[::down]))
        axes.set(xlabel="client" if len(table) == columns else f"client ({columns} of {len(table):,} shown)", ylabel="class")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, label=of + (" (%)" if percent else ""), pad=0.02).outline.set_linewidth(0.6)
        _save(figure, path, rows)
    return figure


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
    rows = [{across: name, **{run: values[name] for run, values in series.items() if name in values}} for name in names]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN if len(names) <= 25 else PAGE, 2.4), layout="constrained")
        axes = figure.add_subplot()
        for i, (run, values) in enumerate(series.items()):
            shift = 0.12 * (i - (len(series) - 1) / 2) if len(series) > 1 else 0.0
            at = [names.index(name) + shift for name in values]
            colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            axes.plot(at, list(values.values()), color=colour, marker=marker, linestyle="none", markersize=3.5, label=run)
        longest = max(map(len, names), default=0)
        long = longest > 4
        step = _step((0.12 if long else 0.06 * (longest + 1)) * len(names) / (figure.get_figwidth() - 0.7))
        axes.set_xticks(range(0, len(names), step), _short(names[::step]), rotation=90 if long else 0)
        axes.set(xlabel=across, ylabel=up)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
        if len(series) > 1:
            figure.legend(loc="outside upper center", ncols=min(len(series), 3), handletextpad=0.1, columnspacing=1.0)
        _save(figure, path, rows)
    return figure


def embedding(
    places: Any,
    classes: Any,
    clients: Any,
    path: str | os.PathLike,
    class_names: Sequence[str] | None = None,
    centres: Any = None,
) -> Figure:
    """Draws points in the plane twice: coloured by class, and by client (each with a marker of its own as well).

    Args:
      places: [n, 2].
      classes: [n] labels.
      clients: [n] ids.
      path: where the figure goes; the suffix says the format. Its CSV has a line per point.
      class_names: by default their numbers.
      centres: [n] bool, which of the points stand for many: they are larger, and have their client's marker on both sides.

    Returns:
      The figure.

    Raises:
      OSError: if the files cannot be written.
    """
    places, classes, clients = np.asarray(places), np.asarray(classes), np.asarray(clients)
    large = np.zeros(len(places), bool) if centres is None else np.asarray(centres, bool)
    names = _class_names(int(classes.max()) + 1, class_names) if class_names is None else list(map(str, class_names))
    rows = [
        {"x": x, "y": y, "class": names[k], "client": i, "what": "centroid" if c else "example"}
        for (x, y), k, i, c in zip(places.tolist(), classes.tolist(), clients.tolist(), large.tolist(), strict=True)
    ]
    markers = {client: MARKERS[i % len(MARKERS)] for i, client in enumerate(np.unique(clients).tolist())}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(PAGE, 3.6), layout="constrained")
        for place, (what, values) in enumerate((("class", classes), ("client", clients)), 1):
            axes = figure.add_subplot(1, 2, place)
            found = np.unique(values)
            for value, colour in zip(found.tolist(), _colours(len(found)), strict=True):
                mine = values == value
                marker = markers[value] if what == "client" else "o"
                label = _short(names)[value] if what == "class" else str(value)
                axes.scatter(*places[mine & ~large].T, s=7, color=colour, marker=marker, linewidths=0, label=label)
                for client in np.unique(clients[mine & large]).tolist():
                    at = places[mine & large & (clients == client)].T
                    axes.scatter(*at, s=60, color=colour, marker=markers[client], edgecolors="black", linewidths=0.8, zorder=3)
            axes.set_title(f"by {what}")
            _bare(axes, len(found), 1.6)
        _save(figure, path, rows)
    return figure


def landmarks(
    places: Any,
    classes: Any,
    marks: Any,
    mark_classes: Any,
    path: str | os.PathLike,
    class_names: Sequence[str] | None = None,
) -> Figure:
    """Draws points in the plane, coloured by class, and large dots among them, one for a class.

    Args:
      places: [n, 2].
      classes: [n] labels.
      marks: [k, 2].
      mark_classes: [k] labels.
      path: where the figure goes; the suffix says the format. Its CSV has a line per point and mark.
      class_names: by default their numbers.

    Returns:
      The figure.

    Raises:
      OSError: if the files cannot be written.
    """
    places, classes, marks, mark_classes = map(np.asarray, (places, classes, marks, mark_classes))
    most = int(max(classes.max(), mark_classes.max(initial=0))) + 1
    names = _class_names(most, class_names) if class_names is None else list(map(str, class_names))
    rows = [
        {"x": x, "y": y, "class": names[k], "what": what}
        for what, at, labels in (("example", places, classes), ("knowledge", marks, mark_classes))
        for (x, y), k in zip(at.tolist(), labels.tolist(), strict=True)
    ]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 3.4), layout="constrained")
        axes = figure.add_subplot()
        found = np.unique(np.concatenate([classes, mark_classes])).tolist()
        for value, colour in zip(found, _colours(len(found)), strict=True):
            axes.scatter(*places[classes == value].T, s=5, color=colour, linewidths=0, label=_short(names)[value])
            axes.scatter(*marks[mark_classes == value].T, s=90, color=colour, edgecolors="black", linewidths=1.2, zorder=3)
        _bare(axes, len(found), 1.8)
        _save(figure, path, rows)
    return figure


def attention(weights: Any, path: str | os.PathLike, labels: Sequence[str] | None = None) -> Figure:
    """Draws with which weights examples attend to their feature f and to each prompt, as shades of blue, a row per example.

    Args:
      weights: [n, 1 + prompts].
      path: where the figure goes; the suffix says the format. Its CSV has a line per example: its label, f, p1, p2, ...
      labels: of the examples, such as their classes; by default their numbers.

    Returns:
      The figure.

    Raises:
      OSError: if the files cannot be written.
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
    with matplotlib.rc_context(STYLE):
        wide = COLUMN if len(tokens) <= 25 else PAGE
        figure = Figure(figsize=(wide, min(0.9 + 0.13 * len(table), 8.0)), layout="constrained")
        axes = figure.add_subplot()
        image = axes.imshow(table, cmap="Blues", vmin=0, aspect="auto")
        across, down = _step(0.22 * len(tokens) / (wide - 1.2)), _step(len(table) / 60)
        axes.set_xticks(range(0, len(tokens), across), tokens[::across])
        axes.set_yticks(range(0, len(table), down), labels[::down])
        axes.set(xlabel="feature, then prompts", ylabel="test example")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, label="attention", pad=0.02).outline.set_linewidth(0.6)
        _save(figure, path, rows)
    return figure


def contours(
    steps: Any,
    loss: Any,
    path: str | os.PathLike,
    accuracy: Any = None,
    marks: Mapping[str, Any] | None = None,
    share: Sequence[float] | None = None,
) -> Figure:
    """Draws a loss over a plane, with lines of equal loss, a cross where the model is, and others.

    Args:
      steps: [n] places along both directions.
      loss: [n, n]: at `steps[j]` along the first and `steps[i]` along the second direction.
      path: where the figure goes; the suffix says the format. Its CSV has a line per point.
      accuracy: [n, n] for the CSV.
      marks: other models' places [m, 2], by label; in the CSV they have no loss.
      share: what of the others' distances lies along each direction, in [0, 1].

    Returns:
      The figure.

    Raises:
      OSError: if the files cannot be written.
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
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 2.8), layout="constrained")
        axes = figure.add_subplot()
        shades = axes.contourf(steps, steps, np.maximum(loss, low), levels=levels, cmap="Blues_r", norm=LogNorm(low, levels[-1]))
        lines = axes.contour(steps, steps, np.maximum(loss, low), levels=levels[1:-1], colors="black", linewidths=0.4)
        axes.clabel(lines, np.asarray(lines.levels)[::2], fmt="%.2g", fontsize=6)
        axes.plot([0], [0], "+", color=COLOURS[1], markersize=9, markeredgewidth=1.5)
        for i, (label, at) in enumerate(places.items()):
            shape = {"color": COLOURS[1 + i % (len(COLOURS) - 1)], "marker": MARKERS[i % len(MARKERS)]}
            axes.scatter(*at.T, s=22, edgecolors="white", linewidths=0.6, label=label, zorder=3, **shape)
        if places:
            axes.legend(fontsize=6, loc="upper right", frameon=True, framealpha=0.8)
        first, second = [""] * 2 if share is None else [f" ({100 * part:.0f} %)" for part in share]
        axes.set(xlabel=f"first direction{first}", ylabel=f"second direction{second}", aspect="equal")
        axes.grid(visible=False)
        figure.colorbar(shades, ax=axes, label="test loss", format="%.2g", pad=0.02, shrink=0.85)
        _save(figure, path, rows)
    return figure


def run_plots(run_dir: str | os.PathLike) -> list[Path]:
    """Draws what a run has to show, into its own directory.

    accuracy.png has the accuracies on test data (of scores per client the means) over the training loss; partition.png the label
    table that the run recorded: `record("partition", {"label_table": [[...]], "class_names": [...]})`, names optional.

    Args:
      run_dir: a run's directory.

    Returns:
      Paths of the figures and their CSV files. A run without scores, or without a label table, has fewer.

    Raises:
      OSError: if there is no metrics.jsonl, or the files cannot be written.
    """
    folder = Path(run_dir)
    written = []
    records = read_jsonl(folder / METRICS)
    names = list(dict.fromkeys(name for record in records for name in record))
    scores = [name for name in names if name.startswith("test/") and is_accuracy(name) and _is_mean(name)]
    losses = [name for name in names if name == "train/loss"]
    if scores or losses:
        path = folder / "accuracy.png"
        with matplotlib.rc_context(STYLE):
            figure = _progress(records, scores, losses)
            _save(figure, path, [{key: r[key] for key in ["round", *scores, *losses] if key in r} for r in records])
        written += [path, path.with_suffix(".csv")]
    partition = read_json(folder / RUN).get("partition", {}) if (folder / RUN).exists() else {}
    if partition.get("label_table"):
        path = folder / "partition.png"
        partition_bubbles(partition["label_table"], path, partition.get("class_names") or None)
        written += [path, path.with_suffix(".csv")]
    return written


def _colours(n: int) -> list[Any]:
    """n colours, as far apart as they can be."""
    colours = matplotlib.colormaps["tab10" if n <= 10 else "tab20" if n <= 20 else "turbo"]
    return [colours(i) if n <= 20 else colours(i / (n - 1)) for i in range(n)]


def _bare(axes: Axes, labels: int, scale: float) -> None:
    """No ticks and no grid; the legend beside the axes, if it is not too long."""
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    if labels <= 20:
        columns = 1 if labels <= 12 else 2
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), handletextpad=0.1, ncols=columns, markerscale=scale)


def _class_names(classes: int, names: Sequence[str] | None) -> list[str]:
    found = [str(k) for k in range(classes)] if names is None else list(map(str, names))
    if len(found) != classes:
        raise ValueError(f"{len(found)} class names for {classes} classes; give one per class")
    return found


def _short(names: Sequence[str]) -> list[str]:
    """Names as figures show them: WordNet's have up to 120 letters."""
    return [name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1].rstrip(" ,") + "…" for name in names]


def _is_mean(name: str) -> bool:
    """Whether a score is one number of the whole run: a global one, or the mean over clients."""
    return name.rpartition("/")[2] in ("accuracy", "mean")


def labels_of(folders: Sequence[Path]) -> list[str]:
    """The directories' names, with as many of their parents' as it takes to tell them apart."""
    parts = [folder.absolute().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1)):
        labels = ["/".join(part[-depth:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [str(folder) for folder in folders]


def _series(folder: Path, metrics: Sequence[str]) -> tuple[str, list[int], list[float]]:
    records = read_jsonl(folder / METRICS)
    for metric in metrics:
        found = [record for record in records if metric in record]
        if found:
            return metric, [record["round"] for record in found], [record[metric] for record in found]
    have = ", ".join(dict.fromkeys(name for record in records for name in record if name != "round")) or "no scores"
    raise ValueError(f"{folder} has no score {' or '.join(metrics)}; it has {have}")


def _draw_lines(axes: Axes, lines: Sequence[Line], name: str) -> None:
    for i, (label, rounds, values) in enumerate(lines):
        dashes, colour = DASHES[i // len(COLOURS) % len(DASHES) if len(lines) > len(DASHES) else i], COLOURS[i % len(COLOURS)]
        marker = "o" if len(rounds) <= 25 else None
        axes.plot(rounds, values, dashes, color=colour, marker=marker, markersize=2.5, label=label)
    axes.set_xlabel("round")
    axes.set_ylabel(name)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    if is_accuracy(name):
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
    if len(lines) > 1:
        axes.legend(loc="best", handlelength=2.5)


def _progress(records: Sequence[Mapping[str, Any]], scores: Sequence[str], losses: Sequence[str]) -> Figure:
    """Accuracies above, the training loss below, over the same rounds."""
    panels = [(kind, names) for kind, names in (("test accuracy", scores), ("training loss", losses)) if names]
    figure = Figure(figsize=(COLUMN, 0.5 + 1.7 * len(panels)), layout="constrained")
    shared = None
    for place, (kind, names) in enumerate(panels, 1):
        axes = shared = figure.add_subplot(len(panels), 1, place, sharex=shared)
        lines = []
        for name in names:
            found = [(record["round"], record[name]) for record in records if name in record]
            label = name.removeprefix("test/").replace("/accuracy", "")
            lines.append((label, [r for r, _ in found], [v for _, v in found]))
        _draw_lines(axes, lines, kind)
        if kind == "test accuracy":
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
            if len(names) == 1:
                axes.set_ylabel(f"{lines[0][0]} test accuracy")
        if place < len(panels):
            axes.set_xlabel("")
            axes.tick_params(labelbottom=False)
    return figure


def _bubbles(counts: np.ndarray, shown: np.ndarray, names: Sequence[str], clients: int) -> Figure:
    """A figure whose size follows from the table's: cells as large as fit, the largest circle nearly filling one."""
    columns, rows = counts.shape
    left, right, below, above = 0.35 + 0.06 * max(map(len, names)), 0.1, 0.42, 0.35
    page = COLUMN if columns <= 30 else PAGE
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
    across, down = _step(0.055 * (len(str(shown[-1])) + 1) / wide), _step(0.11 / high)
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


def _step(least: float) -> int:
    """The smallest round number that is not less: the distance of labels that do not touch."""
    return next((step for step in (1, 2, 5, 10, 20, 25, 50) if step >= least), 100)


def _circles(axes: Axes, x: Any, y: Any, inches: np.ndarray) -> None:
    """Circles of the given diameters at places in data units."""
    places = {"offsets": np.column_stack([x, y]), "offset_transform": axes.transData}
    look = {"facecolors": COLOURS[0], "linewidths": 0, "alpha": 0.85}
    axes.add_collection(EllipseCollection(inches, inches, np.zeros_like(inches), units="inches", **places, **look))


def _save(figure: Figure, path: str | os.PathLike, rows: Sequence[Mapping[str, Any]]) -> None:
    _write(figure, path)
    write_csv(Path(path).with_suffix(".csv"), rows)


def _write(figure: Figure, path: str | os.PathLike) -> None:
    path = Path(path)
    kind = path.suffix.removeprefix(".") or "png"
    allowed = sorted(figure.canvas.get_supported_filetypes())
    if kind not in allowed:
        raise ValueError(f"{path} has suffix .{kind}, not one of {', '.join(allowed)}; take .png or .pdf")
    image = io.BytesIO()
    figure.savefig(image, format=kind)
    write_bytes(path, image.getvalue())
