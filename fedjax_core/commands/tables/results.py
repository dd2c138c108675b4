"""Reads the data and the results of finished runs, and summarizes results over seeds."""

import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_core import experiment
from fedjax_core.commands.analyses import scalar_metrics as analyses
from fedjax_core.commands.tables import client_statistics, comparability, measures
from fedjax_core.commands.tables.definition import Definition, column_targets, paper_value
from fedjax_core.commands.tables.measures import is_of_unseen
from fedjax_core.commands.tables.progress import Beat
from fedjax_core.commands.tables.table_cells import Cell, configs_of
from fedjax_core.commands.tables.trials import SearchProgress
from fedjax_core.data import digest
from fedjax_core.data.federated_data import FederatedData, pool_clients
from fedjax_core.reporting import console, metrics_log, reporter, score_labels
from fedjax_core.reporting.rounds_to_target import interpolate_crossing
from fedjax_core.reporting.summary import CLOCK, collect_history, summarize_records
from fedjax_core.run import MAY_DIFFER, check_inputs, check_partition
from fedjax_core.storage.json_files import read_json, to_json_values
from fedjax_core.storage.workdir import CONFIG, DATA, RUN, RUN_SCHEMA, compare_configs

_SUMMARY_FORM = {"rounds": int, "facts": dict}  # fields of summary.json that say whether a run is over
_RESULT_FORM = {"rounds": int, "facts": {"bytes_down": float, "bytes_up": float}}  # and what a table takes of one that is


class Result(NamedTuple):
    """The result of a finished run.

    Attributes:
      values: by measure's label; without those of unseen clients where the method has no models for them.
      scores: by measure's label, the name of the score that the value is of.
      reached: by target, the first round with that accuracy; None: never.
      seconds: of all rounds, compiling included; 0 of a table of counts.
      seconds_per_round: compiling left out; NaN if there are none.
      down, up: bytes per client and round.
      clients: by measure's label, the clients' values behind it, if there are any.
    """

    values: dict[str, float]
    scores: dict[str, str]
    reached: dict[float, int | None]
    seconds: float
    seconds_per_round: float
    down: float
    up: float
    clients: Mapping[str, client_statistics.ClientValues] = MappingProxyType({})


class Summary(NamedTuple):
    """A cell over its seeds, in the measure's unit.

    Attributes:
      mean: NaN if none is; of rounds to a target over the seeds that reach it, infinity if none does.
      std: the sample standard deviation, NaN of fewer than two.
    """

    n: int
    mean: float
    std: float
    paper: tuple[float, float | None, str] | None
    by_seed: dict[int, float]
    scores: tuple[str, ...]
    failed: bool

    @property
    def is_finite(self) -> bool:
        """Whether there are seeds, all of which have a finite number."""
        return self.n > 0 and all(map(math.isfinite, self.by_seed.values()))

    @property
    def difference(self) -> float:
        """Ours minus the paper's; NaN without either."""
        return self.mean - self.paper[0] if self.paper and self.n else math.nan


class Costs(NamedTuple):
    """Costs of a cell: rounds to targets by seed; means over seeds of seconds a round and bytes per client."""

    reached: dict[float, list[int | None]]
    seconds: float
    down: float
    up: float


@dataclasses.dataclass(frozen=True)
class Contents:
    """Everything that a table is written from.

    Attributes:
      results: of finished cells, by their names.
      failures: why cells failed, by their names.
      searches: what chooses the settings of rows, and how far it is; None: nothing does.
      comparisons: by (measure, column), the results that `compare_cells` has compared, and what it returned.
    """

    table: Definition
    variant: str
    every: Sequence[Cell]
    results: Mapping[str, Result]
    failures: Mapping[str, str]
    searches: SearchProgress | None = None
    comparisons: dict[tuple[str, str], tuple[list[Result | None], Any]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def differences(self) -> list[comparability.Difference]:
        """The settings in which rows differ; what a search chooses does not change them."""
        return comparability.find_differences(self.table, configs_of(self.every))

    @functools.cached_property
    def settings(self) -> list[str]:
        """Data, rounds and networks of a variant that is not the paper's, for beside published values; [] of the paper's."""
        return [] if self.variant == "paper" else comparability.describe_settings(self.table, configs_of(self.every))

    @functools.cached_property
    def _positions(self) -> dict[tuple[str, str], list[int]]:
        """Maps (row, column) to the positions of its cells in `every`, where a search replaces cells in place."""
        positions: dict[tuple[str, str], list[int]] = {}
        for i, cell in enumerate(self.every):
            positions.setdefault(cell.pair, []).append(i)
        return positions

    def _cells(self, row: str, column: str) -> list[Cell]:
        return [self.every[i] for i in self._positions.get((row, column), ())]

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(cell.seed for cell in self.every))

    def summary(self, row: str, column: str, measure: Any) -> Summary:
        """Summarizes a cell over its seeds."""
        cells = self._cells(row, column)
        scale = measures.display_scale(measure)
        results = [(cell.seed, self.results[cell.name]) for cell in cells if cell.name in self.results]
        results = [(seed, result) for seed, result in results if measure.label in result.values]
        by_seed = {seed: scale * result.values[measure.label] for seed, result in results}
        if client_statistics.reference_row(measure) is not None:
            shares = self.client_values(row, column, measure)
            by_seed = {seed: scale * float(np.nanmean(share.values)) for seed, share in shares.items()}
        scores = tuple(dict.fromkeys(result.scores[measure.label] for _, result in results))
        numbers = list(by_seed.values())
        reached = numbers
        if measures.rounds_target(measure) is not None:
            reached = [number for number in numbers if math.isfinite(number)] or numbers
        mean = statistics.fmean(reached) if reached else math.nan
        std = statistics.stdev(numbers) if len(numbers) > 1 and all(map(math.isfinite, numbers)) else math.nan
        paper = paper_value(self.table, row, column, measure.label)
        return Summary(len(numbers), mean, std, paper, by_seed, scores, any(cell.name in self.failures for cell in cells))

    def client_values(self, row: str, column: str, measure: Any) -> dict[int, client_statistics.ClientValues]:
        """Returns by seed the clients' values that a cell's numbers are made of, as far as there are any.

        A measure that compares with a row needs both finished with the same clients; that row has none.
        """
        label, other_row = measure.label, client_statistics.reference_row(measure)
        results = self._results(row, column)
        if other_row is None:
            return {seed: result.clients[label] for seed, result in results.items() if label in result.clients}
        others = self._results(other_row, column) if other_row != row else {}
        pairs: dict[int, client_statistics.ClientValues] = {}
        for seed in results.keys() & others.keys():
            ours, theirs = results[seed], others[seed]
            if label not in ours.clients or label not in theirs.clients:  # such as unseen clients, whom one of them cannot serve
                continue
            shares = client_statistics.find_worse_off(ours.clients[label], ours.scores[label], theirs.clients[label])
            if shares is not None:
                pairs[seed] = shares
        return pairs

    def _results(self, row: str, column: str) -> dict[int, Result]:
        return {cell.seed: self.results[cell.name] for cell in self._cells(row, column) if cell.name in self.results}

    def costs(self, row: str, column: str) -> Costs | None:
        """Returns the costs of a cell's runs; None if none is finished."""
        results = list(self._results(row, column).values())
        if not results:
            return None
        return Costs(
            {target: [result.reached[target] for result in results] for target in results[0].reached},
            statistics.fmean(result.seconds_per_round for result in results),
            statistics.fmean(result.down for result in results),
            statistics.fmean(result.up for result in results),
        )


def is_finished(folder: Path, cell: Cell) -> bool:
    """Returns whether the run of a cell is finished in a folder."""
    return is_over(cell.workdir(folder), cell.config.rounds)


def is_over(workdir: Path, rounds: int) -> bool:
    """Returns whether a run of so many rounds is finished.

    One that an error ended after its last round is not: its summary lacks the facts of a run's
    end, and the next command resumes it.
    """
    summary = workdir / reporter.SUMMARY
    if not summary.exists():
        return False
    ended = read_json(summary, _SUMMARY_FORM)
    return reporter.ENDED in ended["facts"] and (ended["rounds"] == rounds or "ended" in ended["facts"])


def read_result(table: Definition, folder: Path, cell: Cell, data: FederatedData | None = None) -> Result:
    """Reads a finished run.

    Raises:
      ValueError: it has no score of a measure, or not the metrics of all its rounds.
    """
    workdir = cell.workdir(folder)
    ended = read_json(workdir / reporter.SUMMARY, _RESULT_FORM)
    facts = ended["facts"]
    targets = column_targets(table, cell.column)
    records = metrics_log.read_complete_records(workdir, ended["rounds"])  # another process may be extending the run
    summary = summarize_records(records, targets, cell.config.evaluation.last_k, cell.config.evaluation.get("select"))
    metrics, values, scores, reached = summary["metrics"], {}, {}, {}
    rounds = {"last": ended["rounds"], "selected": summary.get("selected", {"round": 0})["round"]}
    clients: dict[str, client_statistics.ClientValues] = {}
    for measure in table.measures:
        if measures.is_analysis(measure):
            read = _read_analysis(measure, workdir, data, cell)
        elif measure.clients is not None:
            read = _read_clients(measure, workdir, metrics, rounds)
        else:
            read = _read_score(measure, workdir, metrics, rounds, records)
        if read is None:
            continue
        scores[measure.label], values[measure.label] = read.score, read.value
        if read.clients is not None:
            clients[measure.label] = read.clients
    first = metrics.get(scores.get(table.measures[0].label), {})
    if "rounds_to" in first:
        reached = {target: first["rounds_to"][str(target)] for target in targets}
    speed = summary["speed"]
    per_round = 1 / speed["rounds_per_second"] if "rounds_per_second" in speed else math.nan
    seconds = speed.get("seconds", 0.0)
    return Result(values, scores, reached, seconds, per_round, facts["bytes_down"], facts["bytes_up"], clients)


class _Read(NamedTuple):
    """A measure's value of a run; `score` is the name of the score that the value is of."""

    score: str
    value: float
    clients: client_statistics.ClientValues | None = None


def _read_analysis(measure: Any, workdir: Path, data: FederatedData | None, cell: Cell) -> _Read:
    score = measure.scores[0]
    analyze = analyses.make_metric(score.removeprefix(measures.ANALYSIS))
    return _Read(score, analyze(workdir, data, _names_the_same_code(workdir, cell)))


def _read_clients(measure: Any, workdir: Path, metrics: Mapping[str, Any], rounds: Mapping[str, int]) -> _Read | None:
    """Returns a statistic over clients; None of unseen clients, for whom the method has no models."""
    found = client_statistics.read_values_of_measure(workdir, measure, rounds[measure.statistic])
    if found is None and _lacks_unseen(measure, metrics):
        return None
    if found is None:
        raise ValueError(f"{workdir} has no {' or '.join(measure.scores)} of single clients")
    score, clients = found
    return _Read(score, client_statistics.compute_number(measure, score, clients), clients)


def _read_score(
    measure: Any, workdir: Path, metrics: Mapping[str, Any], rounds: Mapping[str, int], records: Sequence[Mapping[str, Any]]
) -> _Read | None:
    """Returns a score, or when it reaches a target; None of unseen clients, for whom the method has no models."""
    score = next((name for name in measure.scores if name in metrics), None)
    target = measures.rounds_target(measure)
    statistic = "last" if target is not None else measures.SUMMARY_KEYS[measure.statistic]
    if score is None and _lacks_unseen(measure, metrics):
        return None
    if score is None or statistic not in metrics[score]:
        tested = ", ".join(name for name in metrics if name.startswith("test/"))
        raise ValueError(f"the run has no {measure.statistic} of {' or '.join(measure.scores)}; it has {tested}")
    value = metrics[score][statistic] if target is None else _count_to_target(measure, score, target, records)
    clients = client_statistics.read_values_behind(workdir, measure, score, rounds.get(measure.statistic, 0))
    return _Read(score, value, clients)


def _lacks_unseen(measure: Any, metrics: Mapping[str, Any]) -> bool:
    """Returns whether a measure is of unseen clients in a run that scores none."""
    return all(map(is_of_unseen, measure.scores)) and not any(map(is_of_unseen, metrics))


def _count_to_target(measure: Any, score: str, target: float, records: Sequence[Mapping[str, Any]]) -> float:
    """Returns the rounds or simulated seconds until a score reaches a target."""
    history = collect_history(records)
    rounds_or_seconds, achieved = history[score].rounds.tolist(), history[score].values.tolist()
    if measures.counts_seconds(measure):
        if CLOCK not in history:
            raise ValueError("the run has no simulated time, for it ran without devices.profile")
        clock = dict(zip(history[CLOCK].rounds.tolist(), history[CLOCK].values.tolist(), strict=True))
        rounds_or_seconds = [clock[r] for r in rounds_or_seconds]
    return interpolate_crossing(rounds_or_seconds, achieved, target, score_labels.better_direction(score) == "larger")


def _names_the_same_code(workdir: Path, cell: Cell) -> bool:
    """Returns whether a run's directory has the config of its cell, whose code this command has imported anyhow."""
    if not (workdir / CONFIG).exists():
        return False
    config = experiment.complete_config(cell.config)
    return not compare_configs(read_json(workdir / CONFIG, dict), config, MAY_DIFFER)[1]


def compute_counts(table: Definition, cell: Cell, data: FederatedData) -> Result:
    """Computes the result of a cell of counts, from shapes alone."""
    simulation = experiment.build(cell.config, data, shapes_only=True)
    scores = {measure.label: measure.scores[0] for measure in table.measures}
    sizes = analyses.compute_sizes([score.removeprefix(measures.ANALYSIS) for score in scores.values()], simulation)
    values = dict(zip(scores, sizes, strict=True))
    return Result(values, scores, {}, 0.0, math.nan, simulation.spec.shapes.down, simulation.spec.shapes.up)


class TableData:
    """The data of a table's runs; those of the last config are kept."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        """Keeps the folder of the table, and `say`, which prints a line."""
        self._folder = folder
        self._say = say
        self._last: tuple[str, FederatedData] | None = None
        self._names: dict[str, tuple[str, bool]] = {}  # of inputs, and whether columns divide them; by fields of configs
        self._digests: dict[str, dict[str, str]] = {}  # by name of the inputs; empty: they cannot be read
        self._partitions: dict[str, tuple[str, str]] = {}  # a run's name and its partition's hash, by settings of the data

    def load(self, config: Any) -> FederatedData:
        """Returns the data of a run's config."""
        key = self._name_data(config)
        if self._last is None or self._last[0] != key:
            self._last = None  # frees the old data before the new are loaded
            self._last = key, experiment.dataset(config)
        return self._last[1]

    def _name_data(self, config: Any) -> str:
        return json.dumps([experiment.name_inputs(config), to_json_values(config.data.to_dict())], sort_keys=True)

    def check_inputs(self, cell: Cell) -> None:
        """Checks the inputs and targets that a cell or a trial was run on, its public set, a
        partition by columns of the data, such as natural clients, and `compare_partitions`.

        A run that has not begun, or that an earlier version began, has no record of them.
        """
        workdir = cell.workdir(self._folder)
        recorded = self._read_recorded(cell)
        if DATA not in recorded:
            return
        config = cell.config
        is_poisoned = config.get("adversary", {}).get("attack") is not None  # the recorded hash is of what attackers train on
        chosen = [config.data.to_dict(), config.models, config.get("public"), is_poisoned]
        fields = json.dumps(to_json_values(chosen), sort_keys=True)
        if fields not in self._names:  # to resolve each config takes longer than all else here
            by_columns = not is_poisoned and experiment.is_divided_by_columns(config)
            inputs = self._name_data(config) if by_columns else experiment.name_inputs(config)
            self._names[fields] = json.dumps([inputs, config.get("public")]), by_columns
        name, by_columns = self._names[fields]
        if name not in self._digests:
            self._digests[name] = self._compute_digests(cell, by_columns)
        now = self._digests[name]
        check_inputs(workdir, recorded[DATA], now)
        if "partition" in now:
            is_pooled = recorded.get("partition", {}).get("hash") == now["pooled"]
            check_partition(workdir, recorded.get("partition"), now["pooled" if is_pooled else "partition"])
        self.compare_partitions(cell, recorded)

    def compare_partitions(self, cell: Cell, recorded: Mapping[str, Any] | None = None) -> None:
        """Checks that a run's examples are divided as those of others with the same settings of the data.

        Args:
          recorded: the run's run.json; None: it is read.

        Raises:
          ValueError: they are not: a version of the code between the two divides otherwise.
        """
        recorded = self._read_recorded(cell) if recorded is None else recorded
        partition = recorded.get("partition", {})
        now = partition.get("hash")
        if now is None:
            return
        shared = ["data", "models", "adversary"]  # a model may drop long texts
        if len(partition.get("label_table", ())) == 1:
            shared.append("method")  # a pooled one, such as Centralized, makes one client of all
        chosen = [cell.config.to_dict().get(name) for name in shared]
        settings = json.dumps(to_json_values(chosen), sort_keys=True)
        other, known = self._partitions.setdefault(settings, (cell.name, now))
        if now != known:
            raise ValueError(
                f"{cell.workdir(self._folder)} and {other} have the same settings of the data, and other partitions "
                f"(hashes {now[:12]} and {known[:12]}): versions of the code between them divide otherwise. Move the older run away"
            )

    def _read_recorded(self, cell: Cell) -> dict[str, Any]:
        """Returns a run's record of its data; empty if it has none."""
        path = cell.workdir(self._folder) / RUN
        return read_json(path, RUN_SCHEMA) if path.exists() else {}

    def _compute_digests(self, cell: Cell, by_columns: bool) -> dict[str, str]:
        with Beat(f"reading the data of {cell.column}", self._say):
            try:
                data = self.load(cell.config)
                digests = {"digest": digest.digest_data(data).digest}
                if public := experiment.read_public(cell.config, data):
                    digests["public"] = digest.digest_examples("public", public).digest
                of_clients = {"partition": data.partition_hash, "pooled": pool_clients(data).partition_hash}
                return digests | (of_clients if by_columns else {})
            except (ValueError, OSError) as error:
                what = "its finished runs are taken up without comparing their data"
                self._say(f"{cell.column}: {what}, which cannot be read: {console.one_line(error)}")
                return {}
