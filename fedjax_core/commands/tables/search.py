"""The search of a table: the trials of each row on each column, which go on, and which one is chosen. Nothing runs here."""

import copy
import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fedjax_core import experiment, registry
from fedjax_core.commands.tables import measures, score_checks, search_spaces
from fedjax_core.commands.tables.definition import Definition, check
from fedjax_core.commands.tables.table_cells import Cell, cell
from fedjax_core.reporting.score_labels import is_loss, merit
from fedjax_core.uplink.dp_mechanisms import STRATEGIES

SAMPLERS = ("random", "grid")
Scores = Mapping[tuple[str, int], float]  # by (name of a run, rounds); NaN of a run that diverged


class Trial(NamedTuple):
    """One setting.

    Attributes:
      number: 0 is the row's own.
      values: by field of the row's space, as far as the config has it.
      cells: a run for each of the search's seeds.
    """

    number: int
    values: dict[str, Any]
    cells: tuple[Cell, ...]

    def after(self, rounds: int) -> list[Cell]:
        """Its runs, to a round."""
        shorter = []
        for run in self.cells:
            if run.config.rounds == rounds:
                shorter.append(run)
                continue
            config = copy.deepcopy(run.config)
            config.rounds = rounds
            shorter.append(run._replace(config=config))
        return shorter


class Rung(NamedTuple):
    """Where trials are compared: `number` of them, trial 0 apart, after `rounds`."""

    rounds: int
    number: int


class Study(NamedTuple):
    """The search of one row on one column.

    Attributes:
      row, column: labels.
      space: the row's.
      trials: in the order of their numbers.
      rungs: one without halving; none where there is nothing to choose.
      measure: names of scores; the first that a run has is taken.
    """

    row: str
    column: str
    space: Mapping[str, Any]
    trials: tuple[Trial, ...]
    rungs: tuple[Rung, ...]
    measure: tuple[str, ...]


class Standing(NamedTuple):
    """How far a study is.

    Attributes:
      done: how many runs are over, one that went on counted again at each rung.
      waiting: those that are to be done now, each to the rounds that its config has.
      before: rounds that they have done on the rung below.
      later: rounds of each that follows on the rungs above, as far as that is known.
      chosen: the best trial; None before the end, and where all diverged.
      scores: of the trials by number, (rounds, score) at the last rung that each came to; NaN of one that diverged.
    """

    done: int
    waiting: list[Cell]
    before: int
    later: list[int]
    chosen: Trial | None
    scores: dict[int, tuple[int, float]]

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do."""
        return not self.waiting

    @property
    def diverged(self) -> int:
        """How many trials did."""
        return sum(math.isnan(score) for _, score in self.scores.values())


def plan(table: Definition, variant: str) -> dict[tuple[str, str], Study]:
    """The studies of a table by (row, column), checked, one column after the other; none without a search.

    Raises:
      ValueError: the search or a trial's config is wrong; one line.
    """
    if table.search is None:
        for row in table.rows:
            if row.space:
                raise ValueError(f"row {row.label!r} has a space, and the table no search; give it one, or take the space out")
        return {}
    check(table)
    _check(table)
    return {(row.label, column.label): _study(table, row, column, variant) for column in table.columns for row in table.rows}


def names(search: Any) -> tuple[str, ...]:
    """The scores that a search chooses by."""
    return (search.measure,) if isinstance(search.measure, str) else tuple(search.measure)


def _check(table: Definition) -> None:
    search = table.search
    if all(measures.is_count(measure) for measure in table.measures):
        raise ValueError("search: a table of counts trains nothing, so it has nothing to search")
    for name in names(search):
        if not isinstance(name, str) or not name.startswith("validation/"):
            of = " is scored on test rows;" if str(name).startswith("test/") else ":"
            raise ValueError(
                f"search: measure {name!r}{of} settings are chosen by scores such as 'validation/global/accuracy' alone"
            )
    if not names(search) or len({is_loss(name) for name in names(search)}) > 1:
        raise ValueError(f"search: measure {search.measure!r} must name one or more scores, all of them losses or none")
    registry.choose("sampler of the search", search.sampler, SAMPLERS)
    for field, least, may_lack in (("trials", 2, False), ("rounds", 1, True), ("halving", 2, True)):
        value = getattr(search, field)
        if not (value is None and may_lack) and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"search: {field}={value!r} must be a whole number of at least {least}{' or None' * may_lack}")
    if not search.seeds or len(set(search.seeds)) < len(search.seeds):
        raise ValueError(f"search: seeds {tuple(search.seeds)} must be one or more, each once")
    for label in search.fewer:
        registry.choose("row in the search's fewer", label, [row.label for row in table.rows])
    for row in table.rows:
        search_spaces.check(row.label, row.space)
        if not row.space and row.label not in search.fewer:
            raise ValueError(
                f"row {row.label!r} has no space for {search.trials} trials; give it one, or name it in the search's fewer"
            )
        if search.sampler == "grid":
            for field, values in row.space.items():
                if search_spaces.is_interval(values):
                    raise ValueError(f"space of row {row.label!r}: {field}={values} is no tuple of values, as a grid needs")


def _study(table: Definition, row: Any, column: Any, variant: str) -> Study:
    """The trials of one row on one column."""
    search, where = table.search, f"{row.label} / {column.label}"
    first = cell(table, row, column, search.seeds[0], variant).config
    if first.data.get("validation") is None:
        raise ValueError(f"{where}: the search needs validation rows; set data.validation, such as 0.2")
    until = first.evaluation.get("until")
    if until is not None and until.strip().startswith("test/"):
        raise ValueError(f"{where}: evaluation.until={until!r} ends trials by a score on test rows; take one on validation rows")
    found = tuple(first.evaluation.scopes)
    if not any(
        set(found) & ({"global"} if name.startswith("validation/global/") and name.count("/") == 2 else {"own", "all"})
        for name in names(search)
    ):
        raise ValueError(f"{where}: no run has the search's {' or '.join(names(search))} with evaluation.scopes={found}")
    asked = experiment.resolve(first)
    score_checks.check_searched(names(search), asked)
    if search.rounds is not None and search.rounds > first.rounds:
        raise ValueError(f"{where}: the search's rounds={search.rounds} must not be more than the run's {first.rounds}")
    own = _own(first, row.space)
    points = search_spaces.settings(row.space, search.sampler, search.seed, search.trials - 1, own) if row.space else []
    if len(points) + 1 < search.trials and row.label not in search.fewer:
        raise ValueError(
            f"{where}: the space of {', '.join(row.space)} has {len(points)} points beside the row's own settings, too few for "
            f"{search.trials} trials; give it more, or name the row in the search's fewer"
        )
    shorter = {} if search.rounds is None else {"rounds": search.rounds}
    trials = []
    for number, values in enumerate([{}, *points]):
        runs = [cell(table, row, column, seed, variant, values | shorter, number) for seed in search.seeds]
        trials.append(Trial(number, values or own, tuple(runs)))
    full = search.rounds or first.rounds
    steps = rungs(len(trials), full, first.evaluation.every, search.halving) if points else ()
    if len(steps) > 1:
        _check_noise(where, search.halving, asked)
    return Study(row.label, column.label, row.space, tuple(trials), steps, names(search))


def _check_noise(where: str, halving: int, asked: experiment.Asked) -> None:
    """Raises ValueError for noise that is made for a number of rounds: a trial that goes on from a halt would need other noise."""
    private = asked.privacy
    if private is None or (private.epsilon is None and private.name not in STRATEGIES):
        return
    of = f"privacy.mechanism={private.name!r}" if private.epsilon is None else f"privacy.epsilon={private.epsilon:g}"
    raise ValueError(
        f"{where}: halving={halving} lets trials go on after a halt, and the noise of {of} is made for a number of rounds; "
        "leave halving out, or set privacy.noise with a mechanism of independent noise, such as 'gaussian'"
    )


def _own(config: Any, space: Mapping[str, Any]) -> dict[str, Any]:
    """What a config has in the fields of a space, None too; without fields that it does not have."""
    found = {}
    for field in space:
        *outer, name = field.split(".")
        place = config
        for each in outer:
            place = place.get(each) if isinstance(place, ConfigDict) else None
        if isinstance(place, ConfigDict) and name in place:
            found[field] = place[name]
    return found


def rungs(trials: int, rounds: int, every: int, factor: int | None) -> tuple[Rung, ...]:
    """After which rounds how many trials are compared: rounds / factor ** k, up to the next evaluation, where one is scored anyway.

    >>> rungs(8, 40, 5, 2)
    (Rung(rounds=5, number=8), Rung(rounds=10, number=4), Rung(rounds=20, number=2), Rung(rounds=40, number=1))
    >>> rungs(8, 40, 5, None)
    (Rung(rounds=40, number=8),)
    """
    if factor is None:
        return (Rung(rounds, trials),)
    steps, found = 0, {}
    while factor ** (steps + 1) <= trials:
        steps += 1
    for step in range(steps + 1):
        at = min(rounds, math.ceil(rounds / factor ** (steps - step) / every) * every)
        found.setdefault(at, trials // factor**step)  # where two come to one round, nothing is cut between them
    return tuple(Rung(at, number) for at, number in found.items())


def standing(study: Study, scores: Scores) -> Standing:
    """How far a study is, from the scores that there are."""
    if not study.rungs:
        return Standing(0, [], 0, [], study.trials[0], {})
    alive, found, done = list(study.trials), {}, 0
    ranked: list[Trial] = []
    for place, rung in enumerate(study.rungs):
        if place:
            alive = [trial for trial in alive if trial in ranked[: rung.number] or (trial in ranked and trial.number == 0)]
        waiting = []
        for trial in alive:
            there = [scores[run.name, rung.rounds] for run in trial.cells if (run.name, rung.rounds) in scores]
            done += len(there)
            if any(map(math.isnan, there)):
                found[trial.number] = rung.rounds, math.nan
            elif len(there) == len(trial.cells):
                found[trial.number] = rung.rounds, statistics.fmean(there)
            else:
                waiting += [run for run in trial.after(rung.rounds) if (run.name, rung.rounds) not in scores]
        if waiting:
            before = study.rungs[place - 1].rounds if place else 0
            return Standing(done, waiting, before, _later(study, place), None, found)
        ranked = sorted(
            (trial for trial in alive if not math.isnan(found[trial.number][1])),
            key=lambda trial: -merit(study.measure[0], found[trial.number][1]),
        )
    return Standing(done, [], 0, [], ranked[0] if ranked else None, found)


def _later(study: Study, place: int) -> list[int]:
    """Rounds of each run on the rungs above one."""
    found = []
    for below, rung in itertools.pairwise(study.rungs[place:]):
        trials = min(rung.number + 1, len(study.trials))  # trial 0 goes on in any case
        found += [rung.rounds - below.rounds] * (trials * len(study.trials[0].cells))
    return found
