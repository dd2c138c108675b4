"""Lines over the rounds: a score of several runs, and what one run has to show."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedjax_core.reporting.plots import style
from fedjax_core.reporting.plots.bubbles import partition_bubbles
from fedjax_core.reporting.report import is_accuracy
from fedjax_core.storage.workdir import METRICS, RUN, read_json, read_jsonl

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
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(style.COLUMN, 2.4), layout="constrained")
        axes = figure.add_subplot()
        _draw_lines(axes, lines, metrics[0])
        if len(metrics) > 1:
            axes.set_ylabel("test accuracy" if is_accuracy(metrics[0]) else metrics[0].rpartition("/")[2])
        style.save(figure, path, rows)
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
        with matplotlib.rc_context(style.STYLE):
            figure = _progress(records, scores, losses)
            style.save(figure, path, [{key: r[key] for key in ["round", *scores, *losses] if key in r} for r in records])
        written += [path, path.with_suffix(".csv")]
    partition = read_json(folder / RUN).get("partition", {}) if (folder / RUN).exists() else {}
    if partition.get("label_table"):
        path = folder / "partition.png"
        partition_bubbles(partition["label_table"], path, partition.get("class_names") or None)
        written += [path, path.with_suffix(".csv")]
    return written


def labels_of(folders: Sequence[Path]) -> list[str]:
    """The directories' names, with as many of their parents' as it takes to tell them apart."""
    parts = [folder.absolute().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1)):
        labels = ["/".join(part[-depth:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [str(folder) for folder in folders]


def _is_mean(name: str) -> bool:
    """Whether a score is one number of the whole run: a global one, or the mean over clients."""
    return name.rpartition("/")[2] in ("accuracy", "mean")


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
        colour = style.COLOURS[i % len(style.COLOURS)]
        dashes = style.DASHES[i // len(style.COLOURS) % len(style.DASHES) if len(lines) > len(style.DASHES) else i]
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
    figure = Figure(figsize=(style.COLUMN, 0.5 + 1.7 * len(panels)), layout="constrained")
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
