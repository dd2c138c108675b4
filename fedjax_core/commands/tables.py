"""Tables of methods over data: a definition (`configs/tables/base.py`) becomes runs, and the runs become Markdown, CSV and LaTeX.

A cell and a seed are one ordinary run directory, named by the cell and by a hash of its resolved config:

    DIR/runs/fedavg-samples--iid--seed0--1f0c77ab/
    DIR/table.md, table.csv, table.tex

So another setting of one method is another directory, and everything else is found finished. The tables are made from what lies in
the directories alone, and written after every cell.
"""

import ast
import dataclasses
import gc
import hashlib
import importlib.util
import json
import math
import re
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from fedjax_core import by_name, experiment
from fedjax_core.commands import analyse
from fedjax_core.data.federated import FederatedData
from fedjax_core.reporting import report
from fedjax_core.run import MAY_DIFFER
from fedjax_core.storage.workdir import METRICS, plain, read_json, read_jsonl, write_csv, write_text

Definition = Any  # a Table of configs/tables/base.py; what a method is made of does not import configs
# a measure's: as `report.summarise` calls it
STATISTICS = {"last": "last", "first": "first", "best": "best", "mean_of_last": "mean_last_k"}
SHOWN = {
    "last": "last round",
    "first": "first evaluation",
    "best": "best over rounds, selected on test data",
    "mean_of_last": "mean of the last evaluations",
}
SCOPES = {"own", "all", "post_local"}
_ANALYSIS = "analysis:"


class Cell(NamedTuple):
    """One run of a table.

    Attributes:
      row, column: labels.
      seed: of training.
      config: resolved.
      name: of its directory.
    """

    row: str
    column: str
    seed: int
    config: Any
    name: str

    def __str__(self) -> str:
        return f"{self.row} / {self.column} / seed {self.seed}"


class Result(NamedTuple):
    """What a finished run puts into its cell.

    Attributes:
      values: by measure's label.
      reached: by target, the first round with that accuracy; None: never.
      seconds: of all rounds, compiling included; 0 of a table of counts.
      seconds_per_round: compiling left out; NaN if there are none.
      down, up: bytes per client and round.
    """

    values: dict[str, float]
    reached: dict[float, int | None]
    seconds: float
    seconds_per_round: float
    down: float
    up: float


class Outcome(NamedTuple):
    """What `run` leaves.

    Attributes:
      results: of finished cells, by their names.
      failures: why cells failed in this call, by their names.
      files: the tables.
    """

    results: dict[str, Result]
    failures: dict[str, str]
    files: list[Path]


# ---------------------------------------------------------------------------------------------------- definitions


def read(file: str, variant: str) -> Definition:
    """A definition from its file.

    Raises:
      ValueError: there is no such file, or it does not define a table; one line.
    """
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"there is no table definition {file!r}")
    spec = importlib.util.spec_from_file_location(f"table_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        table = module.get_table(variant)
        fields = {field.name for field in dataclasses.fields(table)}
    except Exception as error:  # whatever a file of code can raise
        raise ValueError(f"{file}: {report.one_line(error)}") from error
    if not {"rows", "columns", "measures", "seeds"} <= fields:
        raise ValueError(f"{file}: get_table gave a {type(table).__name__}, not a Table of configs/tables/base.py")
    return table


def changed(table: Definition, settings: Iterable[str]) -> Definition:
    """The table with "FIELD=VALUE" in all of its runs, whatever the definition says; a value is a Python literal or else text.

    Raises:
      ValueError: a setting has another form.
    """
    given = {}
    for setting in settings:
        field, equals, text = setting.partition("=")
        if not (field and equals):
            raise ValueError(f"--set={setting} is not of the form FIELD=VALUE, such as data.dir=DIR")
        try:
            given[field] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            given[field] = text
    if not given:
        return table
    of_all = {
        (row.label, column.label): {**table.cells.get((row.label, column.label), {}), **given}
        for row in table.rows
        for column in table.columns
    }
    return dataclasses.replace(table, cells=of_all)


def cells(table: Definition, variant: str, seeds: Sequence[int] | None = None) -> list[Cell]:
    """The runs of a table, checked; one seed of everything before the next.

    Args:
      table: the definition.
      variant: of the rows' configs.
      seeds: in place of the table's.

    Raises:
      ValueError: the definition is wrong: a name twice, a method, setting, row or column that there is not, a number of the paper
        that is missing; one line that names it.
    """
    _check(table)
    seeds = tuple(table.seeds if seeds is None else seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds {seeds} must be one or more, each once")
    made = []
    for seed in seeds:
        for column in table.columns:
            for row in table.rows:
                try:
                    config = _resolved(table, row, column, seed, variant)
                    experiment.check(config)
                    _check_scores(table, config)
                except Exception as error:  # get_config is the user's code too
                    raise ValueError(f"{row.label} / {column.label}: {report.one_line(error)}") from error
                name = f"{_slug(row.label)}--{_slug(column.label)}--seed{seed}--{_hash(config)}"
                made.append(Cell(row.label, column.label, seed, config, name))
    return made


def _check(table: Definition) -> None:
    for what, found in (("row", table.rows), ("column", table.columns), ("measure", table.measures)):
        if not found:
            raise ValueError(f"the table has no {what}s")
        seen: dict[str, str] = {}
        for one in found:
            name = _slug(one.label)
            if not name:
                raise ValueError(f"{what} {one.label!r} has no letter or digit to name a directory by")
            if name in seen:
                raise ValueError(f"{what}s {seen[name]!r} and {one.label!r} have one name, {name!r}; give each its own")
            seen[name] = one.label
    rows, columns = [r.label for r in table.rows], [c.label for c in table.columns]
    for pair in table.cells:
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise ValueError(f"cells: {pair!r} must be (row, column)")
        by_name.choose("row in cells", pair[0], rows)
        by_name.choose("column in cells", pair[1], columns)
    for measure in table.measures:
        by_name.choose(f"statistic of measure {measure.label!r}", measure.statistic, STATISTICS)
        scores = measure.scores
        if isinstance(scores, str) or not scores:
            raise ValueError(f"measure {measure.label!r}: scores must be a tuple of one or more names, found {scores!r}")
        if any(score.startswith(_ANALYSIS) for score in scores):
            if len(scores) > 1:
                raise ValueError(f"measure {measure.label!r}: an analysis stands alone, found {scores!r}")
            analyse.number(scores[0].removeprefix(_ANALYSIS))
        if measure.unit != 1 and _percent(measure):
            raise ValueError(f"measure {measure.label!r}: unit={measure.unit} of what is shown in per cent; leave one of them out")
    for target in [*table.targets, *(t for c in table.columns for t in c.targets or ())]:
        if not 0 < target <= 1:
            raise ValueError(f"target {target} is not an accuracy in (0, 1]")
    _check_paper(table, rows, columns)


def _check_paper(table: Definition, rows: list[str], columns: list[str]) -> None:
    for row, of_row in table.paper.items():
        by_name.choose("row in paper", row, rows)
        for column in of_row or ():
            by_name.choose("column in paper", column, columns)
    for row in rows if table.paper else ():
        if row not in table.paper:
            raise ValueError(f"paper: row {row!r} is missing; write None if the paper has no numbers for it")
        for column in columns if table.paper[row] is not None else ():
            if column not in table.paper[row]:
                raise ValueError(f"paper: the number of {row!r} / {column!r} is missing; write None if the paper has none")
            for measure in table.measures:
                _paper(table, row, column, measure.label)


def _paper(table: Definition, row: str, column: str, measure: str) -> tuple[float, float | None, str] | None:
    """The paper's (value, standard deviation, source) for a cell."""
    entry = (table.paper.get(row) or {}).get(column)
    where = f"paper: {row!r} / {column!r}"
    if isinstance(entry, Mapping):
        labels = [m.label for m in table.measures]
        for label in entry:
            by_name.choose(f"measure in {where}", label, labels)
        if measure not in entry:
            raise ValueError(f"{where}: the number of measure {measure!r} is missing; write None if the paper has none")
        entry = entry[measure]
    elif entry is not None and len(table.measures) > 1:
        raise ValueError(f"{where}: the table has several measures; write a number for each of them, by its label")
    if entry is None:
        return None
    value, std, source = getattr(entry, "value", entry), getattr(entry, "std", None), getattr(entry, "source", "") or table.source
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{where}: {entry!r} is not a number; write a number, a Paper(value, std, source) or None")
    if not source:
        raise ValueError(f"{where}: say which table of which paper {value} is from, as the table's source")
    return float(value), std, source


def _check_scores(table: Definition, config: Any) -> None:
    """Whether a run can have each measure, as far as its scopes tell."""
    for measure in table.measures:
        needed = []
        for score in measure.scores:
            parts = score.split("/")
            if score.startswith(_ANALYSIS) or parts[0] in ("train", "server"):
                break
            scope = "global" if len(parts) == 3 and parts[1] == "global" else parts[2] if len(parts) == 5 else None
            if parts[0] != "test" or scope not in SCOPES | {"global"}:
                raise ValueError(f"measure {measure.label!r}: {score!r} is no name of a score, such as test/global/accuracy")
            if scope in config.evaluation.scopes:
                break
            needed.append(scope)
        else:
            raise ValueError(
                f"measure {measure.label!r} needs {' or '.join(map(repr, dict.fromkeys(needed)))} in evaluation.scopes, "
                f"found {tuple(config.evaluation.scopes)}"
            )


def _resolved(table: Definition, row: Any, column: Any, seed: int, variant: str) -> Any:
    config = row.config(variant)
    for changes in (table.changes, column.changes, row.changes, table.cells.get((row.label, column.label), {})):
        for field, value in changes.items():
            _change(config, field, value)
    config.seed = seed
    if table.new_partitions:
        config.data.seed += seed
    config.evaluation.targets = tuple(_targets(table, column.label))
    return config


def _targets(table: Definition, column: str) -> Sequence[float]:
    own = next(c for c in table.columns if c.label == column).targets
    return table.targets if own is None else own


def _change(config: Any, field: str, value: Any) -> None:
    """Sets a dotted field that is there, or an option of the method."""
    *above, last = field.split(".")
    place: Any = config
    for name in above:
        place = place.get(name) if isinstance(place, ConfigDict) else None
    known = list(place) if isinstance(place, ConfigDict) else []
    if last not in known and not (above == ["method"] and known):
        raise ValueError(f"the config has no field {field}.{by_name.did_you_mean(field, _fields(config))}")
    try:
        with place.unlocked():
            place[last] = value
    except TypeError as error:
        raise ValueError(f"{field}={value!r}: {report.one_line(error)}") from None


def _fields(config: ConfigDict, prefix: str = "") -> list[str]:
    found = []
    for name, value in config.items():
        found += [f"{prefix}{name}", *(_fields(value, f"{prefix}{name}.") if isinstance(value, ConfigDict) else ())]
    return found


def _slug(label: str) -> str:
    return re.sub(r"[^\w.]+", "-", label.lower()).strip("-.")


def _hash(config: Any) -> str:
    """Of what makes a run what it is: not how it is spread over devices, saved or summarised, and no field that is not given, so
    that new fields of configs leave it as it was."""

    def given(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        kept = {key: value for key, value in fields.items() if value is not None and f"{prefix}{key}" not in left_out}
        return {key: given(value, f"{prefix}{key}.") if isinstance(value, dict) else value for key, value in kept.items()}

    left_out = set(MAY_DIFFER) - {"rounds"}
    fields = given(plain(config.to_dict()))
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:8]


def choose(all_cells: Sequence[Cell], only: Iterable[str]) -> list[Cell]:
    """The cells that "ROW" and "ROW/COLUMN" name, by label or by the name that their directories have; all of them for none.

    Raises:
      ValueError: a name is not one of the table's.
    """
    only = list(only)
    if not only:
        return list(all_cells)
    chosen = set()
    for text in only:
        found = {
            c.name
            for c in all_cells
            if text in _names(c.row) or text in {f"{r}/{k}" for r in _names(c.row) for k in _names(c.column)}
        }
        if not found:
            rows = [_slug(row) for row in dict.fromkeys(c.row for c in all_cells)]
            columns = [_slug(column) for column in dict.fromkeys(c.column for c in all_cells)]
            row, slash, column = text.partition("/")
            by_name.choose("row", _slug(row), rows)
            by_name.choose("column", _slug(column) if slash else "", columns)
        chosen |= found
    return [c for c in all_cells if c.name in chosen]


def _names(label: str) -> set[str]:
    return {label, _slug(label)}


# ---------------------------------------------------------------------------------------------------- runs


def run(
    table: Definition,
    directory: str,
    variant: str = "small",
    *,
    only: Iterable[str] = (),
    seeds: Sequence[int] | None = None,
    progress: bool | None = None,
    say: Callable[[str], None] = report.say,
) -> Outcome:
    """Runs what is missing of a table, and writes it.

    Stopped or killed at any moment and called again, it goes on: finished runs are kept, an interrupted one is resumed.

    Args:
      table: the definition.
      directory: where runs and tables go.
      variant: of the rows' configs.
      only: rows, or "ROW/COLUMN"; see `choose`. The tables show all.
      seeds: in place of the table's.
      progress: True: a bar per run; None: where standard error is a terminal.
      say: takes a line of text.

    Returns:
      Results, failures and files.

    Raises:
      ValueError: the definition is wrong; nothing has run then.
      OSError: the tables cannot be written.
      KeyboardInterrupt: it was asked to stop.
    """
    every = cells(table, variant, seeds)
    chosen = choose(every, only)
    folder = Path(directory)
    counted = all(_is_count(measure) for measure in table.measures)
    results, failures = {} if counted else _collect(table, folder, every), {}
    left = [cell for cell in chosen if cell.name not in results]
    spent: dict[tuple[str, str], list[float]] = {}
    for cell in every:
        if cell.name in results:
            spent.setdefault((cell.row, cell.column), []).append(results[cell.name].seconds)
    say(f"{len(chosen) - len(left)} of {len(chosen)} runs are finished, {len(left)} to do")
    files = write(table, folder, variant, every, results, failures)
    bar = progress if progress is not None else sys.stderr.isatty()
    last_data: tuple[str, FederatedData] | None = None
    for place, cell in enumerate(left):
        say(f"{place + 1}/{len(left)}  {cell}{_forecast(left[place:], spent)}")
        began, stopped = time.monotonic(), False
        try:
            wanted = json.dumps(plain(cell.config.data.to_dict()), sort_keys=True)
            if last_data is None or last_data[0] != wanted:
                last_data = None  # the old data go before the new ones come
                last_data = wanted, experiment.dataset(cell.config)
            if counted:
                results[cell.name] = _counted(table, cell, last_data[1])
            else:
                stopped = experiment.execute(
                    cell.config, str(folder / "runs" / cell.name), bool(bar), data=last_data[1], console=lambda text: None
                ).stopped
                results[cell.name] = _result(table, folder, cell, last_data[1])
        except Exception as error:  # a cell's failure must not end the others'
            failures[cell.name] = report.one_line(error)
            log = folder / "runs" / f"{cell.name}.error.txt"
            log.parent.mkdir(parents=True, exist_ok=True)
            write_text(log, "".join(traceback.format_exception(error)))
            say(f"failed: {cell}: {failures[cell.name]}")
        else:
            (folder / "runs" / f"{cell.name}.error.txt").unlink(missing_ok=True)
            spent.setdefault((cell.row, cell.column), []).append(time.monotonic() - began)
        _forget()
        files = write(table, folder, variant, every, results, failures)
        if stopped:
            raise KeyboardInterrupt(f"stopped after {cell}; the same command goes on from there")
    say(f"{len(failures)} of {len(left)} runs failed" if failures else f"all {len(chosen)} runs are finished")
    say(f"tables   {folder / 'table.md'}")
    return Outcome(results, failures, files)


def _forget() -> None:
    """Lets go of the last run's arrays and programs, which hang together in circles."""
    jax.clear_caches()
    gc.collect()


def _forecast(left: Sequence[Cell], spent: Mapping[tuple[str, str], Sequence[float]]) -> str:
    """How long the cells will take, judged by those of the same row and column, else of the same row, else by all."""
    everything = [seconds for found in spent.values() for seconds in found]
    if not everything:
        return ""

    def guess(cell: Cell) -> float:
        same = spent.get((cell.row, cell.column)) or [s for (row, _), found in spent.items() if row == cell.row for s in found]
        return statistics.fmean(same or everything)

    return f"  (about {report.readable_time(round(math.fsum(map(guess, left))))} left)"


def _collect(table: Definition, folder: Path, every: Sequence[Cell]) -> dict[str, Result]:
    return {cell.name: _result(table, folder, cell) for cell in every if _finished(folder, cell)}


def _finished(folder: Path, cell: Cell) -> bool:
    summary = folder / "runs" / cell.name / report.SUMMARY
    return summary.exists() and read_json(summary)["rounds"] == cell.config.rounds


def _result(table: Definition, folder: Path, cell: Cell, data: FederatedData | None = None) -> Result:
    """Reads a finished run.

    Raises:
      ValueError: it has none of the scores that a measure names.
    """
    place = folder / "runs" / cell.name
    facts = read_json(place / report.SUMMARY)["facts"]
    targets = _targets(table, cell.column)
    summary = report.summarise(read_jsonl(place / METRICS), targets, cell.config.evaluation.last_k)
    scores, values, reached = summary["metrics"], {}, {}
    for measure in table.measures:
        if measure.scores[0].startswith(_ANALYSIS):
            values[measure.label] = analyse.number(measure.scores[0].removeprefix(_ANALYSIS))(place, data)
            continue
        score = next((name for name in measure.scores if name in scores), None)
        statistic = STATISTICS[measure.statistic]
        if score is None or statistic not in scores[score]:
            there = ", ".join(name for name in scores if name.startswith("test/"))
            raise ValueError(f"the run has no {measure.statistic} of {' or '.join(measure.scores)}; it has {there}")
        values[measure.label] = scores[score][statistic]
        if measure is table.measures[0] and "rounds_to" in scores[score]:
            reached = {target: scores[score]["rounds_to"][str(target)] for target in targets}
    speed = summary["speed"]
    per_round = 1 / speed["rounds_per_second"] if "rounds_per_second" in speed else math.nan
    return Result(values, reached, speed.get("seconds", 0.0), per_round, facts["bytes_down"], facts["bytes_up"])


def _counted(table: Definition, cell: Cell, data: FederatedData) -> Result:
    """What a run would put into a cell of counts."""
    simulation = experiment.build(cell.config, data, shapes_only=True)
    values = {m.label: analyse.size(m.scores[0].removeprefix(_ANALYSIS), simulation) for m in table.measures}
    return Result(values, {}, 0.0, math.nan, simulation.shapes.down, simulation.shapes.up)


# ---------------------------------------------------------------------------------------------------- tables


class _Summary(NamedTuple):
    """A cell over its seeds."""

    n: int
    mean: float
    std: float
    paper: tuple[float, float | None, str] | None
    by_seed: dict[int, float]
    failed: bool

    @property
    def difference(self) -> float:
        return self.mean - self.paper[0] if self.paper and self.n else math.nan


def write(
    table: Definition,
    folder: Path,
    variant: str,
    every: Sequence[Cell],
    results: Mapping[str, Result],
    failures: Mapping[str, str],
) -> list[Path]:
    """Writes table.md, table.csv and table.tex, each atomically.

    Raises:
      OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"table.{kind}" for kind in ("md", "csv", "tex")]
    write_text(files[0], markdown(table, variant, every, results, failures))
    write_csv(files[1], _rows(table, every, results, failures))
    write_text(files[2], latex(table, every, results, failures))
    return files


def _summary(table, every, results, failures, row: str, column: str, measure: Any) -> _Summary:
    mine = [cell for cell in every if (cell.row, cell.column) == (row, column)]
    scale = 100.0 if _percent(measure) else 1 / measure.unit
    by_seed = {cell.seed: scale * results[cell.name].values[measure.label] for cell in mine if cell.name in results}
    found = list(by_seed.values())
    mean = statistics.fmean(found) if found else math.nan
    std = statistics.stdev(found) if len(found) > 1 and all(map(math.isfinite, found)) else math.nan
    paper = _paper(table, row, column, measure.label)
    return _Summary(len(found), mean, std, paper, by_seed, any(cell.name in failures for cell in mine))


def _percent(measure: Any) -> bool:
    if measure.percent is not None:
        return measure.percent
    return report.is_accuracy(measure.scores[0]) or (measure.scores[0].startswith(_ANALYSIS) and not _is_count(measure))


def _is_count(measure: Any) -> bool:
    """Whether it is known from shapes, without training."""
    return measure.scores[0].startswith(_ANALYSIS) and analyse.is_size(measure.scores[0].removeprefix(_ANALYSIS))


def _form(measure: Any) -> str:
    """How its numbers are written, as a format."""
    return f",.{measure.digits}f" if measure.digits is not None else ".2f" if _percent(measure) else ".4g"


def _costs(every, results, row: str, column: str) -> dict[str, Any]:
    """Rounds to accuracies, time and traffic of a cell: means over its seeds."""
    found = [results[c.name] for c in every if (c.row, c.column) == (row, column) and c.name in results]
    if not found:
        return {}
    reached = {target: [r.reached[target] for r in found] for target in found[0].reached}
    return {
        "reached": reached,
        "seconds": statistics.fmean(r.seconds_per_round for r in found),
        "down": statistics.fmean(r.down for r in found),
        "up": statistics.fmean(r.up for r in found),
    }


def _unit(measure: Any) -> str:
    if _percent(measure):
        return ", in %"
    power = math.log2(measure.unit)
    return "" if measure.unit == 1 else f", in units of 2^{power:g}" if power.is_integer() else f", in units of {measure.unit:g}"


def _all_targets(table: Definition) -> list[float]:
    return sorted({target for column in table.columns for target in _targets(table, column.label)})


def _number(value: float, form: str) -> str:
    return ("nan" if math.isnan(value) else "inf") if not math.isfinite(value) else f"{value:{form}}"


def _shown(summary: _Summary, form: str, seeds: int, plus_minus: str) -> str:
    """The mean with its deviation; empty if nothing has run."""
    if not summary.n:
        return "failed" if summary.failed else ""
    text = _number(summary.mean, form)
    if math.isfinite(summary.std):
        text += f" {plus_minus} {_number(summary.std, form)}"
    return text + (f" (n={summary.n})" if summary.n < seeds else "")


def _published(summary: _Summary, form: str, plus_minus: str) -> str:
    """The paper's value, and ours minus it; empty if there is none."""
    if summary.paper is None:
        return ""
    value, std, _ = summary.paper
    text = _number(value, form) + (f" {plus_minus} {_number(std, form)}" if std is not None else "")
    if not summary.n:
        return text
    return f"{text}, {'+' if summary.difference >= 0 else '-'}{_number(abs(summary.difference), form)}"


def _rounds(reached: Sequence[int | None]) -> str:
    """The mean of the rounds, and how many runs came so far if not all did."""
    there = [r for r in reached if r is not None]
    if not there:
        return "never"
    return f"{statistics.fmean(there):.3g}" + (f" ({len(there)} of {len(reached)})" if len(there) < len(reached) else "")


def _seeds(every: Sequence[Cell]) -> list[int]:
    return list(dict.fromkeys(cell.seed for cell in every))


def markdown(
    table: Definition, variant: str, every: Sequence[Cell], results: Mapping[str, Result], failures: Mapping[str, str]
) -> str:
    """The table as Markdown: a grid per measure, then costs, then what failed."""
    seeds = _seeds(every)
    lines = [f"# {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    done = sum(cell.name in results for cell in every)
    state = "" if done == len(every) else f" {done} of {len(every)} runs are finished."
    over = f"seed {seeds[0]}" if len(seeds) == 1 else "mean ± standard deviation over seeds " + ", ".join(map(str, seeds))
    lines += [f"Variant `{variant}`; {over}.{state}"]
    papers = [_paper(table, r.label, c.label, m.label) for m in table.measures for r in table.rows for c in table.columns]
    if sources := list(dict.fromkeys(paper[2] for paper in papers if paper)):
        lines += ["", f"In brackets the published value and ours minus it: {'; '.join(sources)}."]
    for measure in table.measures:
        form, unit = _form(measure), _unit(measure)
        when = "" if measure.scores[0].startswith(_ANALYSIS) else f", {SHOWN[measure.statistic]}"
        lines += ["", f"## {measure.label}", "", f"{' or '.join(f'`{score}`' for score in measure.scores)}{when}{unit}.", ""]
        lines += [_line("", *(c.label for c in table.columns)), _line("---", *("--:" for _ in table.columns))]
        for row in table.rows:
            texts = []
            for column in table.columns:
                summary = _summary(table, every, results, failures, row.label, column.label, measure)
                published = _published(summary, form, "±")
                texts.append(_shown(summary, form, len(seeds), "±") + (f" [{published}]" if published else ""))
            lines.append(_line(row.label, *(text.strip() for text in texts)))
    lines += ["", "## Rounds, time and traffic", ""]
    targets = _all_targets(table)
    if targets:
        lines += [
            f"Rounds to accuracies: the first evaluated one, of {table.measures[0].label}. Traffic: per client and round.",
            "",
        ]
    heads = ["", "", *(f"rounds to {100 * t:g} %" for t in targets), "s/round", "down", "up"]
    lines += [_line(*heads), _line("---", "---", *("--:" for _ in heads[2:]))]
    for row, column, costs in _cost_rows(table, every, results):
        lines.append(_line(row, column, *costs))
    if failures:
        lines += ["", "## Failed", ""]
        lines += [f"- {cell}: {failures[cell.name]}" for cell in every if cell.name in failures]
    return "\n".join(lines) + "\n"


def _cost_rows(table: Definition, every: Sequence[Cell], results: Mapping[str, Result]) -> list[tuple[str, str, list[str]]]:
    rows = []
    for row in table.rows:
        for column in table.columns:
            costs = _costs(every, results, row.label, column.label)
            if costs:
                reached = [_rounds(costs["reached"][t]) if t in costs["reached"] else "" for t in _all_targets(table)]
                sizes = [report.readable_size(costs[way]) for way in ("down", "up")]
                seconds = "" if math.isnan(costs["seconds"]) else f"{costs['seconds']:.3g}"
                rows.append((row.label, column.label, [*reached, seconds, *sizes]))
    return rows


def _line(*texts: str) -> str:
    return "| " + " | ".join(text.replace("|", r"\|") for text in texts) + " |"


def _rows(table, every, results, failures) -> list[dict[str, Any]]:
    """The table as records: one per row, column and measure."""
    rows = []
    for measure in table.measures:
        for row in table.rows:
            for column in table.columns:
                s = _summary(table, every, results, failures, row.label, column.label, measure)
                costs = _costs(every, results, row.label, column.label)
                value, std, source = s.paper or (None, None, None)
                record = {"row": row.label, "column": column.label, "measure": measure.label, "statistic": measure.statistic}
                record |= {"n": s.n, "mean": _csv(s.mean), "std": _csv(s.std), "paper": value, "paper_std": std, "source": source}
                record |= {"difference": _csv(s.difference)}
                for target, reached in costs.get("reached", {}).items():
                    record[f"rounds_to_{target:g}"] = _rounds(reached)
                record |= {
                    "seconds_per_round": _csv(costs.get("seconds", math.nan)),
                    "bytes_down": costs.get("down"),
                    "bytes_up": costs.get("up"),
                }
                record |= {f"seed_{seed}": s.by_seed.get(seed) for seed in _seeds(every)}
                rows.append(record)
    return rows


def _csv(value: float) -> float | None:
    return value if math.isfinite(value) else None


def latex(table: Definition, every: Sequence[Cell], results: Mapping[str, Result], failures: Mapping[str, str]) -> str:
    """The table as LaTeX (package booktabs): a tabular per measure, then one of costs; a published value stands below ours."""
    blocks, columns = [f"% {table.title}; needs \\usepackage{{booktabs}}"], table.columns
    for measure in table.measures:
        form, unit = _form(measure), _unit(measure)
        lines = [f"% {measure.label}{unit}", rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule"]
        lines += [_tex_line("", *(_tex(c.label) for c in columns)), r"\midrule"]
        for row in table.rows:
            found = [_summary(table, every, results, failures, row.label, c.label, measure) for c in columns]
            lines.append(_tex_line(_tex(row.label), *(_shown(s, form, len(_seeds(every)), r"$\pm$") for s in found)))
            if any(s.paper for s in found):
                lines.append(
                    _tex_line(r"\quad paper, difference", *(_published(s, form, r"$\pm$").replace(", -", ", $-$") for s in found))
                )
        blocks.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    targets = _all_targets(table)
    heads = ["", "", *(_tex(f"to {100 * t:g} %") for t in targets), "s/round", "down", "up"]
    lines = [
        "% rounds, time, traffic",
        rf"\begin{{tabular}}{{ll{'r' * (len(heads) - 2)}}}",
        r"\toprule",
        _tex_line(*heads),
        r"\midrule",
    ]
    lines += [_tex_line(_tex(row), _tex(column), *costs) for row, column, costs in _cost_rows(table, every, results)]
    blocks.append("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]))
    return "\n\n".join(blocks) + "\n"


def _tex(text: str) -> str:
    """Text with LaTeX's own characters written out."""
    special = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
    }
    return "".join(special.get(c, rf"\{c}" if c in "&%$#_{}" else c) for c in text)


def _tex_line(*texts: str) -> str:
    return " & ".join(texts) + r" \\"
