"""Curves of a score over rounds or simulated time; runs that differ only in the seed are one line with a band."""

import math
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

from fedjax_core.reporting.metrics_log import read_records
from fedjax_core.reporting.plots import style
from fedjax_core.reporting.score_labels import axis_label, describe_score, is_accuracy
from fedjax_core.reporting.summary import CLOCK
from fedjax_core.storage.json_files import flatten, read_json
from fedjax_core.storage.workdir import CONFIG, FILE_DIGESTS, INCIDENTAL, METRICS, RUN, RUN_SCHEMA, is_within

BAND = "mean and standard deviation over seeds"
_IGNORED = ("seed", "data.seed", *INCIDENTAL)  # config fields that may differ between seeds of one experiment
_SHARED = (*FILE_DIGESTS, "given_code")  # how entries of run.json begin that seeds of one experiment share
_CONFIG = {"data?": dict}  # schema of a config
_TABLE_RUN = re.compile(r"(.+)--(.+)--seed\d+--[0-9a-f]{8}")  # directory of a table's run: row, column, seed, hash


class Line(NamedTuple):
    """Values [n] over rounds [n]; `band` [n]: their standard deviation over seeds, if several."""

    label: str
    rounds: Sequence[float]
    values: Sequence[float]
    band: Sequence[float] | None = None


def plot_curves(
    run_dirs: Sequence[str | os.PathLike] | str | os.PathLike,
    metric: str | Sequence[str],
    path: str | os.PathLike,
    labels: Sequence[str] | None = None,
    axis: str = "rounds",
) -> Figure:
    """Draws one score of one or several runs over rounds, or over simulated time.

    Runs whose configs differ only in seeds (also that of the data) and in `INCIDENTAL` fields are
    drawn as their mean over common rounds, with a band of one sample standard deviation to either side.

    Args:
      metric: a name in metrics.jsonl; of several names, the first that a run has.
      path: its CSV has columns run, round, seconds if they are the axis, `metric`, and for
        several seeds standard_deviation, seeds.
      labels: of the lines or of the runs; default: the directories' names, or row and column for a
        table's runs.
      axis: "rounds", or "seconds", simulated since the start of the run and averaged over seeds.

    Raises:
      ValueError: a run lacks the score (the message lists its scores), seeds have no common round,
        two runs have the same config and seed, or the number of labels is wrong.
    """
    folders = [Path(run_dirs)] if isinstance(run_dirs, (str, os.PathLike)) else [Path(folder) for folder in run_dirs]
    metrics = [metric] if isinstance(metric, str) else list(metric)
    groups = group_by_seed(folders)
    lines, names, rows, clocks = [], [], [], []
    for label, group in zip(make_line_labels(folders, groups, labels), groups, strict=True):
        name, line = mean_line(label, group, metrics)
        lines.append(line)
        names.append(name)
        clock = _mean_clock(group) if axis == "seconds" else {}
        clocks.append(clock)
        for i, (r, v) in enumerate(zip(line.rounds, line.values, strict=True)):
            more = {} if line.band is None else {"standard_deviation": line.band[i], "seeds": len(group)}
            rows.append({"run": label, "round": r} | ({axis: clock[int(r)]} if clock else {}) | {name: v} | more)
    if axis == "seconds":
        unit, seconds = _time_unit(max(clock[int(line.rounds[-1])] for clock, line in zip(clocks, lines, strict=True)))
        lines = [
            line._replace(rounds=[clock[int(r)] / seconds for r in line.rounds]) for clock, line in zip(clocks, lines, strict=True)
        ]
    lines, title = describe_lines(lines, names)
    with matplotlib.rc_context(style.STYLE):
        figure = Figure(figsize=(style.COLUMN, 2.4), layout="constrained")
        axes = figure.add_subplot()
        draw_lines(axes, lines, names[0])
        if axis == "seconds":
            axes.set_xlabel(f"simulated {unit}")
            axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_title(title)
        if len(lines) > 1:
            style.legend_above(figure, axes)
        style.save_figure(figure, path, rows)
    return figure


def describe_lines(lines: Sequence[Line], scores: Sequence[str]) -> tuple[list[Line], str]:
    """Returns the lines, and the title of their figure, which say the scores that they show: each line its own if they differ."""
    described, differ = list(map(describe_score, scores)), len(set(scores)) > 1
    if differ:
        lines = [line._replace(label=f"{line.label}: {score}") for line, score in zip(lines, described, strict=True)]
    titles = [] if differ or described[0] == axis_label(scores[0]) else described[:1]
    titles += [BAND] if any(line.band is not None for line in lines) else []
    return list(lines), "\n".join(titles)


def _mean_clock(group: Sequence[Path]) -> dict[int, float]:
    """Returns the simulated seconds until the end of each round, averaged over seeds.

    Raises:
      ValueError: a run has none.
    """
    by_round: dict[int, list[float]] = {}
    for folder in group:
        clock = {record["round"]: record[CLOCK] for record in read_records(folder / METRICS) if CLOCK in record}
        if not clock:
            raise ValueError(f"{folder} has no simulated time, for it ran without devices.profile")
        for r, seconds in clock.items():
            by_round.setdefault(r, []).append(seconds)
    return {r: math.fsum(values) / len(values) for r, values in by_round.items()}


def _time_unit(longest: float) -> tuple[str, float]:
    """Returns the unit of an axis that ends after so many seconds, and its seconds.

    >>> _time_unit(90.0), _time_unit(10_000.0)
    (('seconds', 1.0), ('hours', 3600.0))
    """
    units = {"days": 86400.0, "hours": 3600.0, "minutes": 60.0}
    return next(((unit, seconds) for unit, seconds in units.items() if longest >= 2 * seconds), ("seconds", 1.0))


def group_by_seed(folders: Sequence[Path]) -> list[list[Path]]:
    """Groups runs whose configs differ only in seeds, ordered by their first runs.

    Raises:
      ValueError: two runs have the same config, files and seeds, such as a copy of a run.
    """
    groups: dict[Any, dict[Any, Path]] = {}
    for folder in folders:
        key, seeds = _read_key_and_seeds(folder)
        group = groups.setdefault(key, {})
        if seeds in group:
            both = f"{group[seeds]} and {folder} have the same config, files and seed"
            raise ValueError(f"{both}; a mean over seeds needs different ones: leave one of the two out")
        group[seeds] = folder
    return [list(group.values()) for group in groups.values()]


def _read_key_and_seeds(folder: Path) -> tuple[Any, Any]:
    """Returns a key shared by a run and its other seeds, the folder itself without a config; and the seeds."""
    file = folder / CONFIG
    if not file.exists():
        return folder, None
    config = flatten(read_json(file, _CONFIG))
    kept = {name: value for name, value in config.items() if value is not None and not is_within(name, _IGNORED)}
    records = read_json(folder / RUN, RUN_SCHEMA) if (folder / RUN).exists() else {}
    files = {name: value for name, value in records.items() if name.startswith(_SHARED)}
    return repr((sorted(kept.items()), sorted(flatten(files).items()))), (config.get("seed"), config.get("data.seed"))


def make_line_labels(folders: Sequence[Path], groups: Sequence[Sequence[Path]], given: Sequence[str] | None) -> list[str]:
    """Returns a label per group: as given, from directories, or a table's row and column."""
    if given is None:
        return _default_labels(folders, groups)
    if len(given) == len(groups):
        labels = list(given)
    elif len(given) == len(folders):
        by_folder = dict(zip(folders, given, strict=True))
        if mixed := [group for group in groups if len({by_folder[folder] for folder in group}) > 1]:
            wrong = ", ".join(repr(by_folder[folder]) for folder in mixed[0])
            raise ValueError(f"labels {wrong} are of runs that differ in the seed alone; give them one")
        labels = [by_folder[group[0]] for group in groups]
    else:
        raise ValueError(f"{len(given)} labels for {len(folders)} runs in {len(groups)} lines; give one for each line or run")
    if len(set(labels)) < len(labels):
        raise ValueError(f"labels {', '.join(map(repr, labels))} must each be of one line")
    return labels


def _default_labels(folders: Sequence[Path], groups: Sequence[Sequence[Path]]) -> list[str]:
    by_folder = dict(zip(folders, labels_of(folders), strict=True))
    matches = [_TABLE_RUN.fullmatch(group[0].name) for group in groups]
    if all(matches):
        columns = {match[2] for match in matches if match}
        labels = [match[1] if len(columns) == 1 else f"{match[1]}, {match[2]}" for match in matches if match]
        if len(set(labels)) == len(labels):
            return labels
    first = [by_folder[group[0]] for group in groups]
    labels = []
    for group, label in zip(groups, first, strict=True):
        shared = os.path.commonprefix([by_folder[folder] for folder in group])  # noqa: RUF071 (letters)
        shared = re.sub(r"seed\d*$", "", shared).rstrip("-_./ ")  # of seed10 and seed11 also the 1
        labels.append(label if len(group) == 1 else shared or label)
    return labels if len(set(labels)) == len(labels) else first


def labels_of(folders: Sequence[Path]) -> list[str]:
    """Returns the directories' names, with as many parents as it takes to make them unique."""
    parts = [folder.absolute().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=1)):
        labels = ["/".join(part[-depth:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [str(folder) for folder in folders]


def mean_line(label: str, group: Sequence[Path], metrics: Sequence[str]) -> tuple[str, Line]:
    """Returns (score, line) of runs that differ only in seeds: their mean and standard deviation."""
    runs = [read_series(folder, metrics) for folder in group]
    name, first = runs[0]
    if len(group) == 1:
        return name, Line(label, list(first), list(first.values()))
    if len({other for other, _ in runs}) > 1:
        raise ValueError(f"{group[0]} has {name}, another seed of it has not; choose one that all have with --score=NAME")
    rounds = [r for r in first if all(r in values for _, values in runs)]
    if not rounds:
        raise ValueError(f"{group[0]} and its other seeds have {name} in no round together")
    values = np.array([[series[r] for r in rounds] for _, series in runs], float)
    return name, Line(label, rounds, values.mean(0).tolist(), values.std(0, ddof=1).tolist())


def read_series(folder: Path, metrics: Sequence[str]) -> tuple[str, dict[int, float]]:
    """Returns (the first of some scores that a run has, its value by round)."""
    records = read_records(folder / METRICS)
    for metric in metrics:
        series = {record["round"]: record[metric] for record in records if metric in record}
        if series:
            return metric, series
    raise ValueError(f"{folder} has no score {' or '.join(metrics)}; it has {list_scores(records)}")


def list_scores(records: Sequence[Mapping[str, Any]]) -> str:
    """Returns the names of the scores in records, joined by commas."""
    return ", ".join(dict.fromkeys(name for record in records for name in record if name != "round")) or "no scores"


def draw_band(axes: Axes, at: Sequence[float], line: Line, colour: str) -> None:
    """Draws the band of a line over the positions [n] of its values."""
    if line.band is None:
        return
    middle, spread = np.asarray(line.values), np.asarray(line.band)
    if len(middle) == 1:  # a band over one point has no width
        axes.errorbar(at, middle, spread, color=colour, alpha=0.5)
    else:
        axes.fill_between(np.asarray(at), middle - spread, middle + spread, color=colour, alpha=0.2, linewidth=0)


def draw_lines(axes: Axes, lines: Sequence[Line], name: str) -> None:
    """Draws lines of a score over rounds, and labels the axes."""
    for i, line in enumerate(lines):
        colour = style.COLOURS[i % len(style.COLOURS)]
        dashes = style.DASHES[i // len(style.COLOURS) % len(style.DASHES) if len(lines) > len(style.DASHES) else i]
        marker = "o" if len(line.rounds) <= 25 else None
        axes.plot(
            line.rounds, line.values, dashes, color=colour, marker=marker, markersize=2.5, label=style.legend_entry(line.label)
        )
        draw_band(axes, line.rounds, line, colour)
    axes.set_xlabel("round")
    axes.set_ylabel(axis_label(name))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    if is_accuracy(name):
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=None, symbol=" %"))
