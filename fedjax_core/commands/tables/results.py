"""What finished runs put into their cells: read from their directories, and taken together over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_core import experiment
from fedjax_core.commands.analyses import scalar_metrics as analyses
from fedjax_core.commands.tables import client_statistics, measures
from fedjax_core.commands.tables.definition import Definition, paper_of, targets_of
from fedjax_core.commands.tables.score_checks import is_of_unseen
from fedjax_core.commands.tables.table_cells import Cell
from fedjax_core.commands.tables.trials import Searches
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.reporting import metrics_log, reporter, score_labels
from fedjax_core.reporting.rounds_to_target import crossing
from fedjax_core.run import MAY_DIFFER
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import CONFIG, compare_configs

_ENDED = {"rounds": int, "facts": dict}  # of summary.json, what tells whether a run is over
_FACTS = {"rounds": int, "facts": {"bytes_down": float, "bytes_up": float}}  # and what a table takes of one that is


class Result(NamedTuple):
    """What a finished run puts into its cell.

    Attributes:
      values: by measure's label; without those of unseen clients where the method has no models for them.
      scores: by measure's label, the name of the score that the value is of.
      reached: by target, the first round with that accuracy; None: never.
      seconds: of all rounds, compiling included; 0 of a table of counts.
      seconds_per_round: compiling left out; NaN if there are none.
      down, up: bytes per client and round.
      clients: by measure's label, the values of single clients that the value is made of, where there are such.
    """

    values: dict[str, float]
    scores: dict[str, str]
    reached: dict[float, int | None]
    seconds: float
    seconds_per_round: float
    down: float
    up: float
    clients: Mapping[str, client_statistics.Values] = MappingProxyType({})


class Summary(NamedTuple):
    """A cell over its seeds, in the measure's unit.

    Attributes:
      n: seeds that are finished.
      mean: NaN if none is; of rounds to a target over the seeds that reach it, infinity if none does.
      std: the sample standard deviation, NaN of fewer than two.
      paper: the published (value, standard deviation, source), or None.
      by_seed: the numbers.
      scores: names of the scores that they are of.
      failed: whether a run of it failed.
    """

    n: int
    mean: float
    std: float
    paper: tuple[float, float | None, str] | None
    by_seed: dict[int, float]
    scores: tuple[str, ...]
    failed: bool

    @property
    def difference(self) -> float:
        """Ours minus the paper's; NaN without either."""
        return self.mean - self.paper[0] if self.paper and self.n else math.nan


class Costs(NamedTuple):
    """Rounds to accuracies (by target, of each seed), seconds a round and bytes per client and round: means over a cell's seeds."""

    reached: dict[float, list[int | None]]
    seconds: float
    down: float
    up: float


class Contents(NamedTuple):
    """All that a table is written from.

    Attributes:
      table: the definition.
      variant: of the rows' configs.
      every: all of the table's cells.
      results: of finished cells, by their names.
      failures: why cells failed, by their names.
      searches: what chose the settings of rows, and how far it is; None: nothing did.
    """

    table: Definition
    variant: str
    every: Sequence[Cell]
    results: Mapping[str, Result]
    failures: Mapping[str, str]
    searches: Searches | None = None

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(cell.seed for cell in self.every))

    def summary(self, row: str, column: str, measure: Any) -> Summary:
        """A cell over its seeds."""
        mine = [cell for cell in self.every if (cell.row, cell.column) == (row, column)]
        scale = 100.0 if measures.is_percent(measure) else 1 / measure.unit
        there = [(cell.seed, self.results[cell.name]) for cell in mine if cell.name in self.results]
        there = [(seed, result) for seed, result in there if measure.label in result.values]
        by_seed = {seed: scale * result.values[measure.label] for seed, result in there}
        if client_statistics.row_of(measure) is not None:
            shares = self.of_clients(row, column, measure)
            by_seed = {seed: scale * float(np.nanmean(share.values)) for seed, share in shares.items()}
        scores = tuple(dict.fromkeys(result.scores[measure.label] for _, result in there))
        found = list(by_seed.values())
        reached = found if measures.target(measure) is None else [number for number in found if math.isfinite(number)] or found
        mean = statistics.fmean(reached) if reached else math.nan
        std = statistics.stdev(found) if len(found) > 1 and all(map(math.isfinite, found)) else math.nan
        paper = paper_of(self.table, row, column, measure.label)
        return Summary(len(found), mean, std, paper, by_seed, scores, any(cell.name in self.failures for cell in mine))

    def of_clients(self, row: str, column: str, measure: Any) -> dict[int, client_statistics.Values]:
        """By seed, the values of single clients that a cell's numbers are made of, as far as there are such.

        Of a measure that compares with a row: where both are finished and have scored the same clients; none of that row itself.
        """
        label, named = measure.label, client_statistics.row_of(measure)
        found = self._results(row, column)
        if named is None:
            return {seed: result.clients[label] for seed, result in found.items() if label in result.clients}
        others = self._results(named, column) if named != row else {}
        pairs: dict[int, client_statistics.Values] = {}
        for seed in found.keys() & others.keys():
            one, other = found[seed], others[seed]
            if label not in one.clients or label not in other.clients:  # such as unseen clients, whom one of them cannot serve
                continue
            shares = client_statistics.worse(one.clients[label], one.scores[label], other.clients[label])
            pairs |= {} if shares is None else {seed: shares}
        return pairs

    def _results(self, row: str, column: str) -> dict[int, Result]:
        mine = [cell for cell in self.every if (cell.row, cell.column) == (row, column)]
        return {cell.seed: self.results[cell.name] for cell in mine if cell.name in self.results}

    def costs(self, row: str, column: str) -> Costs | None:
        """What a cell's runs took; None if none is finished."""
        found = [self.results[c.name] for c in self.every if (c.row, c.column) == (row, column) and c.name in self.results]
        if not found:
            return None
        return Costs(
            {target: [r.reached[target] for r in found] for target in found[0].reached},
            statistics.fmean(r.seconds_per_round for r in found),
            statistics.fmean(r.down for r in found),
            statistics.fmean(r.up for r in found),
        )


def finished(folder: Path, cell: Cell) -> bool:
    """Whether the run of a cell lies finished in a folder.

    One that an error ended after its last round does not: its summary lacks what a run notes at its end, and the next command
    resumes it.
    """
    summary = folder / "runs" / cell.name / reporter.SUMMARY
    if not summary.exists():
        return False
    said = read_json(summary, _ENDED)
    return reporter.ENDED in said["facts"] and (said["rounds"] == cell.config.rounds or "ended" in said["facts"])


def result_of(table: Definition, folder: Path, cell: Cell, data: FederatedData | None = None) -> Result:
    """Reads a finished run.

    Raises:
      ValueError: it has none of the scores that a measure names, or its metrics are not those of all its rounds.
    """
    place = folder / "runs" / cell.name
    ended = read_json(place / reporter.SUMMARY, _FACTS)
    facts = ended["facts"]
    targets = targets_of(table, cell.column)
    kept = metrics_log.kept(place, ended["rounds"], reporter.say)
    summary = reporter.summarise(kept, targets, cell.config.evaluation.last_k, cell.config.evaluation.get("select"))
    there, values, scores, reached = summary["metrics"], {}, {}, {}
    rounds = {"last": ended["rounds"], "selected": summary.get("selected", {"round": 0})["round"]}
    clients: dict[str, client_statistics.Values] = {}
    served = any(map(is_of_unseen, there))
    for measure in table.measures:
        if measures.is_analysis(measure):
            scores[measure.label] = measure.scores[0]
            number = analyses.number(measure.scores[0].removeprefix(measures.ANALYSIS))
            values[measure.label] = number(place, data, _names_the_same_code(place, cell))
            continue
        if measure.clients is not None:
            found = client_statistics.read(place, measure, None, rounds[measure.statistic])
            if found is None and all(map(is_of_unseen, measure.scores)) and not served:
                continue
            if found is None:
                raise ValueError(f"{place} has no {' or '.join(measure.scores)} of single clients")
            scores[measure.label], clients[measure.label] = found
            values[measure.label] = client_statistics.number(measure, *found)
            continue
        score = next((name for name in measure.scores if name in there), None)
        target = measures.target(measure)
        statistic = "last" if target is not None else measures.STATISTICS[measure.statistic]
        if score is None and all(map(is_of_unseen, measure.scores)) and not served:
            continue
        if score is None or statistic not in there[score]:
            tested = ", ".join(name for name in there if name.startswith("test/"))
            raise ValueError(f"the run has no {measure.statistic} of {' or '.join(measure.scores)}; it has {tested}")
        scores[measure.label], values[measure.label] = score, there[score][statistic]
        if target is not None:
            series = reporter.history(kept)[score]
            values[measure.label] = crossing(
                series.rounds.tolist(), series.values.tolist(), target, score_labels.better(score) == "larger"
            )
        if (found := client_statistics.read(place, measure, score, rounds.get(measure.statistic, 0))) is not None:
            clients[measure.label] = found[1]
        if measure is table.measures[0] and "rounds_to" in there[score]:
            reached = {target: there[score]["rounds_to"][str(target)] for target in targets}
    speed = summary["speed"]
    per_round = 1 / speed["rounds_per_second"] if "rounds_per_second" in speed else math.nan
    seconds = speed.get("seconds", 0.0)
    return Result(values, scores, reached, seconds, per_round, facts["bytes_down"], facts["bytes_up"], clients)


def _names_the_same_code(place: Path, cell: Cell) -> bool:
    """Returns whether a run's directory has the config of its cell, whose code this command has imported anyhow."""
    if not (place / CONFIG).exists():
        return False
    config = experiment.complete_config(cell.config)
    return not compare_configs(read_json(place / CONFIG, dict), config, MAY_DIFFER)[1]


def counted(table: Definition, cell: Cell, data: FederatedData) -> Result:
    """What a run would put into a cell of counts."""
    simulation = experiment.build(cell.config, data, shapes_only=True)
    values = {m.label: analyses.size(m.scores[0].removeprefix(measures.ANALYSIS), simulation) for m in table.measures}
    scores = {measure.label: measure.scores[0] for measure in table.measures}
    return Result(values, scores, {}, 0.0, math.nan, simulation.shapes.down, simulation.shapes.up)
