"""Figures of one finished run: accuracies, training loss and label distribution."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from fedjax_core.reporting.label_tables import read_partition
from fedjax_core.reporting.metrics_log import read_records
from fedjax_core.reporting.plots import style
from fedjax_core.reporting.plots.label_distribution import plot_partition
from fedjax_core.reporting.plots.score_curves import Line, draw_lines
from fedjax_core.reporting.score_labels import axis_label, describe_score, is_headline, is_overall
from fedjax_core.storage.workdir import FIGURES, METRICS


def plot_run(run_dir: str | os.PathLike) -> list[Path]:
    """Draws the figures of a run into its directory.

    accuracy.png has accuracies or R2 on test data (means of scores per client) above the training
    loss, partition.png the recorded label table: `record("partition", {"label_table": [[...]],
    "class_names": [...]})`, names optional.

    Returns:
      Paths of the figures and their CSV files; fewer for a run without scores or label table.
    """
    folder = Path(run_dir)
    written = []
    records = read_records(folder / METRICS)
    names = list(dict.fromkeys(name for record in records for name in record))
    scores = [name for name in names if name.startswith("test/") and is_headline(name) and is_overall(name)]
    losses = [name for name in names if name == "train/loss"]
    if scores or losses:
        path = folder / FIGURES[0]
        with matplotlib.rc_context(style.STYLE):
            figure = _progress(records, scores, losses)
            style.save_figure(figure, path, [{key: r[key] for key in ["round", *scores, *losses] if key in r} for r in records])
        written += [path, path.with_suffix(".csv")]
    partition = read_partition(folder)
    if partition.get("label_table"):
        path = folder / FIGURES[1]
        how = {key: partition.get(key) for key in ("clients", "client_names")}
        plot_partition(partition["label_table"], path, partition.get("class_names") or None, **how)
        written += [path, path.with_suffix(".csv")]
    return written


def _progress(records: Sequence[Mapping[str, Any]], scores: Sequence[str], losses: Sequence[str]) -> Figure:
    """Draws accuracies above the training loss, over the same rounds."""
    panels = [names for names in (scores, losses) if names]
    figure = Figure(figsize=(style.COLUMN, 0.5 + 1.7 * len(panels)), layout="constrained")
    shared = None
    for place, names in enumerate(panels, 1):
        axes = shared = figure.add_subplot(len(panels), 1, place, sharex=shared)
        lines, several = [], len({axis_label(name) for name in names}) > 1
        for name in names:
            points = [(record["round"], record[name]) for record in records if name in record]
            label = f"{axis_label(name)}: {describe_score(name)}" if several else describe_score(name)
            lines.append(Line(label, [r for r, _ in points], [v for _, v in points]))
        draw_lines(axes, lines, names[0])
        if several:
            axes.set_ylabel("test score")
        if len(names) > 1:
            style.legend_above(figure, axes)
        elif names is scores:
            axes.set_title(lines[0].label)
        if place < len(panels):
            axes.set_xlabel("")
            axes.tick_params(labelbottom=False)
    return figure
