"""A score of several runs over the rounds; runs that differ in their seed alone are one line, with a band."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fedjax_core.reporting.metrics_log import read
from fedjax_core.reporting.plots import style
from fedjax_core.reporting.score_labels import axis, is_accuracy, spoken
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import CONFIG, METRICS

BAND = "mean and standard deviation over seeds"
_NOT_THE_RUNS = {"seed", "plan", "checkpoint", "profile"}  # fields of a config that seeds of one experiment may differ in
_CONFIG = {"data?": dict}  # what is read of one
_OF_TABLE = re.compile(r"(.+)--(.+)--seed\d+--[0-9a-f]{8}")  # a directory of commands/tables: row, column, seed, hash


class Line(NamedTuple):
    """Values [n] over rounds [n]; `band`: [n], how far they spread to either side, None of one run alone."""

    label: str
    rounds: Sequence[float]
    values: Sequence[float]
    band: Sequence[float] | None = None


def curves(
    run_dirs: Sequence[str | os.PathLike] | str | os.PathLike,
    metric: str | Sequence[str],
    path: str | os.PathLike,
    labels: Sequence[str] | None = None,
) -> Figure:
    """Draws one score of one run or several over the rounds.

    Runs whose configs differ in the seed alone (the seed of the data included) are drawn as their mean, with a band of one standard
    deviation to either side (that of a sample, with n - 1), over the rounds that all of them have.

    Args:
      run_dirs: their directories.
      metric: a name in metrics.jsonl, e.g. "test/global/accuracy"; of several the first that a run has, for methods that have
        different models.
      path: where the figure goes; the suffix says the format (.png, .pdf, .svg). Its CSV has columns run, round, `metric`, and of
        several seeds standard_deviation, seeds.
      labels: of the lines, or of the runs; by default the directories' names, or for a table's runs those of row and column.

    Returns:
      The figure.

    Raises:
      OSError: if a run has no metrics.jsonl, or the files cannot be written.
      ValueError: if a run has no such score (the message lists those it has), runs that differ in the seed alone have no round in
        common, or the labels are not one for each.
    """
    folders = [Path(run_dirs)] if isinstance(run_dirs, (str, os.PathLike)) else [Path(folder) for folder in run_dirs]
    metrics = [metric] if isinstance(metric, str) else list(metric)
    groups = group_by_seed(folders)
    lines, names, rows = [], [], []
    for label, group in zip(make_line_labels(folders, groups, labels), groups, strict=True):
        name, line = mean_line(label, group, metrics)
        lines.append(line)
        names.append(name)
        for i, (r, v) in enumerate(zip(line.rounds, line.values, strict=True)):
            more = {} if line.band is None else {"standard_deviation": line.band[i], "seeds": len(group)}
            rows.append({"run": label, "round": r, name: v} | more)
    if len(set(names)) > 1:
        lines = [line._replace(label=f"{line.label}: {spoken(name)}") for line, name in zip(lines, names, strict=True)]
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(style.COLUMN, 2.4), layout="constrained")
        axes = figure.add_subplot()
        draw_lines(axes, lines, names[0])
        titles = [spoken(names[0])] if len(set(names)) == 1 and spoken(names[0]) != axis(names[0]) else []
        titles += [BAND] if any(line.band is not None for line in lines) else []
        axes.set_title("\n".join(titles))
        if len(lines) > 1:
            style.legend_above(figure, axes)
        style.save_figure(figure, path, rows)
    return figure


def group_by_seed(folders: Sequence[Path]) -> list[list[Path]]:
    """Runs in groups whose configs differ in the seed alone, in the order of their first ones."""
    groups: dict[Any, list[Path]] = {}
    for folder in folders:
        groups.setdefault(_without_seed(folder), []).append(folder)
    return list(groups.values())


def _without_seed(folder: Path) -> Any:
    """What a run and its repetitions with other seeds have in common; the folder itself if there is no config."""
    file = folder / CONFIG
    if not file.exists():
        return folder
    kept = {name: value for name, value in read_json(file, _CONFIG).items() if name not in _NOT_THE_RUNS}
    if "data" in kept:
        kept["data"] = {name: value for name, value in kept["data"].items() if name != "seed"}
    return repr(sorted(kept.items()))


def make_line_labels(folders: Sequence[Path], groups: Sequence[Sequence[Path]], given: Sequence[str] | None) -> list[str]:
    """What each group's line is called: as given, or by the directories' names, of a table's runs by those of row and column."""
    if given is None:
        return _default_labels(folders, groups)
    if len(given) == len(groups):
        found = list(given)
    elif len(given) == len(folders):
        of = dict(zip(folders, given, strict=True))
        if mixed := [group for group in groups if len({of[folder] for folder in group}) > 1]:
            wrong = ", ".join(repr(of[folder]) for folder in mixed[0])
            raise ValueError(f"labels {wrong} are of runs that differ in the seed alone; give them one")
        found = [of[group[0]] for group in groups]
    else:
        raise ValueError(f"{len(given)} labels for {len(folders)} runs in {len(groups)} lines; give one for each line or run")
    if len(set(found)) < len(found):
        raise ValueError(f"labels {', '.join(map(repr, found))} must each be of one line")
    return found


def _default_labels(folders: Sequence[Path], groups: Sequence[Sequence[Path]]) -> list[str]:
    of = dict(zip(folders, labels_of(folders), strict=True))
    matches = [_OF_TABLE.fullmatch(group[0].name) for group in groups]
    if all(matches):
        columns = {match[2] for match in matches if match}
        labels = [match[1] if len(columns) == 1 else f"{match[1]}, {match[2]}" for match in matches if match]
        if len(set(labels)) == len(labels):
            return labels
    shared = [_beginning([of[folder] for folder in group]).removesuffix("seed").rstrip("-_./ ") for group in groups]
    labels = [of[group[0]] if len(group) == 1 else name or of[group[0]] for group, name in zip(groups, shared, strict=True)]
    return labels if len(set(labels)) == len(labels) else [of[group[0]] for group in groups]


def _beginning(names: Sequence[str]) -> str:
    """What all names begin with."""
    differ = (place for place, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1)
    return names[0][: next(differ, min(map(len, names)))]


def labels_of(folders: Sequence[Path]) -> list[str]:
    """The directories' names, with as many of their parents' as it takes to tell them apart."""
    parts = [folder.absolute().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1)):
        labels = ["/".join(part[-depth:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [str(folder) for folder in folders]


def mean_line(label: str, group: Sequence[Path], metrics: Sequence[str]) -> tuple[str, Line]:
    """(the score, its line) of runs that differ in the seed alone: the mean, and how far they spread."""
    found = [read_series(folder, metrics) for folder in group]
    name, first = found[0]
    if len(group) == 1:
        return name, Line(label, list(first), list(first.values()))
    if len({other for other, _ in found}) > 1:
        raise ValueError(f"{group[0]} has {name}, another seed of it has not; choose one that all have with --score=NAME")
    rounds = [r for r in first if all(r in values for _, values in found)]
    if not rounds:
        raise ValueError(f"{group[0]} and its other seeds have {name} in no round together")
    values = np.array([[series[r] for r in rounds] for _, series in found], float)
    return name, Line(label, rounds, values.mean(0).tolist(), values.std(0, ddof=1).tolist())


def read_series(folder: Path, metrics: Sequence[str]) -> tuple[str, dict[int, float]]:
    """(the first of some scores that a run has, its value by round)."""
    records = read(folder / METRICS)
    for metric in metrics:
        found = {record["round"]: record[metric] for record in records if metric in record}
        if found:
            return metric, found
    raise ValueError(f"{folder} has no score {' or '.join(metrics)}; it has {scores_in(records)}")


def scores_in(records: Sequence[Mapping[str, Any]]) -> str:
    """The names of what records hold, with commas between."""
    return ", ".join(dict.fromkeys(name for record in records for name in record if name != "round")) or "no scores"


def draw_band(axes: Axes, at: Sequence[float], line: Line, colour: str) -> None:
    """How far a line spreads, over the places [n] that its values have."""
    if line.band is None:
        return
    middle, spread = np.asarray(line.values), np.asarray(line.band)
    if len(middle) == 1:  # a band over one place has no width
        axes.errorbar(at, middle, spread, color=colour, alpha=0.5)
    else:
        axes.fill_between(np.asarray(at), middle - spread, middle + spread, color=colour, alpha=0.2, linewidth=0)


def draw_lines(axes: Axes, lines: Sequence[Line], name: str) -> None:
    """Draws lines of a score over the rounds, and labels the axes."""
    for i, line in enumerate(lines):
        colour = style.COLOURS[i % len(style.COLOURS)]
        dashes = style.DASHES[i // len(style.COLOURS) % len(style.DASHES) if len(lines) > len(style.DASHES) else i]
        marker = "o" if len(line.rounds) <= 25 else None
        axes.plot(
            line.rounds, line.values, dashes, color=colour, marker=marker, markersize=2.5, label=style.legend_entry(line.label)
        )
        draw_band(axes, line.rounds, line, colour)
    axes.set_xlabel("round")
    axes.set_ylabel(axis(name))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    if is_accuracy(name):
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
