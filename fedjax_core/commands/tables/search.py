"""Plans the search of a table: the trials of each row on each column, their rungs, and the choice.

Nothing runs here.
"""

import copy
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_core import experiment, registry
from fedjax_core.commands.tables import comparability, measures, search_spaces
from fedjax_core.commands.tables.definition import Definition, check_definition
from fedjax_core.commands.tables.table_cells import Cell, build_cell
from fedjax_core.experiment import schema
from fedjax_core.reporting.score_labels import is_loss, selection_key
from fedjax_core.uplink.dp_mechanisms import STRATEGIES

SAMPLERS = ("random", "grid", "tpe")
Scores = Mapping[tuple[str, int], float]  # by (name of a run, rounds); NaN of a run that diverged


class Trial(NamedTuple):
    """One setting.

    Attributes:
      number: 0 is the row's own.
      values: by field of the row's space, as far as the config or its method has it.
    """

    number: int
    values: dict[str, Any]
    cells: tuple[Cell, ...]

    def cells_at(self, rounds: int) -> list[Cell]:
        """Returns the trial's runs, to a round."""
        cells = []
        for run in self.cells:
            if run.config.rounds == rounds:
                cells.append(run)
                continue
            config = copy.deepcopy(run.config)
            config.rounds = rounds
            cells.append(run._replace(config=config))
        return cells


class Rung(NamedTuple):
    """A comparison of trials after `rounds`: of the best `number` of them, and trial 0."""

    rounds: int
    number: int


class Study(NamedTuple):
    """The search of one row on one column.

    Attributes:
      rungs: one without halving; none where there is nothing to choose.
      measure: names of scores; the first that a run has is taken.
      number: of trials in all; with sampler "tpe" the later ones are proposed while the search runs.
      propose: (number, [(setting, merit) of the trials before]) -> the next trial.
    """

    row: str
    column: str
    space: Mapping[str, Any]
    trials: tuple[Trial, ...]
    rungs: tuple[Rung, ...]
    measure: tuple[str, ...]
    number: int
    propose: Callable[[int, Sequence[tuple[Mapping[str, Any], float]]], Trial]

    @property
    def runs(self) -> list[Cell]:
        """The runs of all trials."""
        return [run for trial in self.trials for run in trial.cells]


class StudyStatus(NamedTuple):
    """The progress of a study.

    Attributes:
      finished_runs: number of finished runs; a run that continued counts again at each rung.
      waiting: runs to do now, each to the rounds of its config.
      later_rounds: rounds of each run that follows, as far as that is known.
      chosen: the best trial; None before the end, and where all diverged.
      scores: (rounds, score) by trial's number, at the last rung that it reached; NaN: it diverged.
    """

    finished_runs: int
    waiting: list[Cell]
    rounds_before: int
    later_rounds: list[int]
    chosen: Trial | None
    scores: dict[int, tuple[int, float]]

    @property
    def diverged_trials(self) -> int:
        """The number of trials that diverged."""
        return sum(math.isnan(score) for _, score in self.scores.values())


def plan_searches(table: Definition, variant: str) -> dict[tuple[str, str], Study]:
    """Returns the checked studies of a table by (row, column); empty without a search."""
    if table.search is None:
        for row in table.rows:
            if row.space:
                raise ValueError(f"row {row.label!r} has a space, and the table no search; give it one, or take the space out")
        return {}
    check_definition(table)
    _check_search(table)
    return {(row.label, column.label): _make_study(table, row, column, variant) for column in table.columns for row in table.rows}


def score_names(search: Any) -> tuple[str, ...]:
    """Returns the scores that a search chooses by."""
    return (search.measure,) if isinstance(search.measure, str) else tuple(search.measure)


def _check_search(table: Definition) -> None:
    search = table.search
    if all(measures.is_count(measure) for measure in table.measures):
        raise ValueError("search: a table of counts trains nothing, so it has nothing to search")
    for name in score_names(search):
        if not isinstance(name, str) or not name.startswith("validation/"):
            of = " is scored on test examples;" if str(name).startswith("test/") else ":"
            raise ValueError(
                f"search: measure {name!r}{of} settings are chosen by scores such as 'validation/global/accuracy' alone"
            )
    if not score_names(search) or len({is_loss(name) for name in score_names(search)}) > 1:
        raise ValueError(f"search: measure {search.measure!r} must name one or more scores, all of them losses or none")
    registry.check_choice("sampler of the search", search.sampler, SAMPLERS)
    if search.sampler == "tpe":
        search_spaces.import_optuna()
        if search.halving is not None:
            raise ValueError(
                f"search: halving={search.halving} with sampler='tpe', which proposes from the scores of full trials; leave one out"
            )
    for field, least, may_lack in (("trials", 2, False), ("rounds", 1, True), ("halving", 2, True)):
        value = getattr(search, field)
        if not (value is None and may_lack) and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"search: {field}={value!r} must be an int of at least {least}{' or None' * may_lack}")
    if not search.seeds or len(set(search.seeds)) < len(search.seeds):
        raise ValueError(f"search: seeds {tuple(search.seeds)} must be one or more, each once")
    for label in search.fewer:
        registry.check_choice("row in the search's fewer", label, [row.label for row in table.rows])
    for row in table.rows:
        search_spaces.check_space(row.label, row.space)
        if not row.space and row.label not in search.fewer:
            raise ValueError(
                f"row {row.label!r} has no space for {search.trials} trials; give it one, or name it in the search's fewer"
            )
        if search.sampler == "grid":
            for field, values in row.space.items():
                if search_spaces.is_interval(values):
                    raise ValueError(f"space of row {row.label!r}: {field}={values} is no tuple of values, as a grid needs")


def _check_trials(search: Any, where: str, first: Any, resolved: experiment.ResolvedConfig) -> None:
    """Raises ValueError where trials lack the search's scores, or have fewer rounds than it; `first` is the config of one."""
    if first.data.get("validation") is None:
        raise ValueError(f"{where}: the search needs validation examples; set data.validation, such as 0.2")
    until = first.evaluation.get("until")
    if until is not None and until.strip().startswith("test/"):
        raise ValueError(
            f"{where}: evaluation.until={until!r} ends trials by a score on test examples; take one on validation examples"
        )
    scopes = tuple(first.evaluation.scopes)
    if not any(
        set(scopes) & ({"global"} if name.startswith("validation/global/") and name.count("/") == 2 else {"own", "all"})
        for name in score_names(search)
    ):
        raise ValueError(f"{where}: no run has the search's {' or '.join(score_names(search))} with evaluation.scopes={scopes}")
    measures.check_search_scores(score_names(search), resolved)
    if search.rounds is not None and search.rounds > first.rounds:
        raise ValueError(f"{where}: the search's rounds={search.rounds} must not be more than the run's {first.rounds}")


def _make_study(table: Definition, row: Any, column: Any, variant: str) -> Study:
    search, where = table.search, f"{row.label} / {column.label}"
    first = build_cell(table, row, column, search.seeds[0], variant).config
    resolved = experiment.resolve(first)
    _check_trials(search, where, first, resolved)
    own = _own_settings(first, row.space)
    number, points = search.trials - 1, []
    if row.space and search.sampler == "tpe":
        number = int(min(number, search_spaces.count_others(row.space, own)))
        random_trials = min(number, search_spaces.RANDOM_TRIALS)
        points = search_spaces.sample_settings(row.space, "random", search.seed, random_trials, own)
        number = number if len(points) == random_trials else len(points)
    elif row.space:
        points = search_spaces.sample_settings(row.space, search.sampler, search.seed, number, own)
        number = len(points)
    if number + 1 < search.trials and row.label not in search.fewer:
        raise ValueError(
            f"{where}: the space of {', '.join(row.space)} has {number} points beside the row's own settings, too few for "
            f"{search.trials} trials; give it more, or name the row in the search's fewer"
        )
    shorter = {} if search.rounds is None else {"rounds": search.rounds}

    def make_trial(index: int, values: dict[str, Any]) -> Trial:
        runs = [build_cell(table, row, column, seed, variant, values | shorter, index) for seed in search.seeds]
        return Trial(index, values or own, tuple(runs))

    def propose(index: int, history: Sequence[tuple[Mapping[str, Any], float]]) -> Trial:
        values = search_spaces.propose_setting(row.space, search.seed, index, history)
        taken = {search_spaces.point_key(setting) for setting, _ in history}
        if search_spaces.point_key(values) in taken:
            values = search_spaces.draw_setting(row.space, search.seed, index, taken)
        if values is None:
            raise ValueError(f"{where}: the space of {', '.join(row.space)} has no setting left for trial {index}")
        trial = make_trial(index, values)
        return trial._replace(cells=tuple(run._replace(own=trials[0].cells[0].own) for run in trial.cells))  # as the search began

    trials = [make_trial(index, values) for index, values in enumerate([{}, *points])]
    full = search.rounds or first.rounds
    steps = make_rungs(number + 1, full, first.evaluation.every, search.halving) if points else ()
    if len(steps) > 1:
        _check_noise(where, search.halving, resolved)
    number = number + 1 if points else 1
    return Study(row.label, column.label, row.space, tuple(trials), steps, score_names(search), number, propose)


def _check_noise(where: str, halving: int, resolved: experiment.ResolvedConfig) -> None:
    """Raises ValueError for noise that is made for a number of rounds: a trial that goes on from a halt would need other noise."""
    privacy = resolved.privacy
    if privacy is None or (privacy.epsilon is None and privacy.name not in STRATEGIES):
        return
    option = f"privacy.mechanism={privacy.name!r}" if privacy.epsilon is None else f"privacy.epsilon={privacy.epsilon:g}"
    raise ValueError(
        f"{where}: halving={halving} lets trials go on after a halt, and the noise of {option} is made for a number of rounds; "
        "leave halving out, or set privacy.noise with a mechanism of independent noise, such as 'gaussian'"
    )


def _own_settings(config: Any, space: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config's values in those fields of a space that it has; None of a method's option means its default."""
    own = {}
    for field in space:
        if schema.has_field(config, field):
            group, name = schema.find_group(config, field)
            own[field] = group[name]
    for name, value in comparability.read_method_options(config).items():
        field = f"method.{name}"
        if field in space and own.get(field) is None:
            is_listed = not search_spaces.is_interval(space[field]) and None in space[field]
            own[field] = None if is_listed else value
    return {f: own[f] for f in space if f in own}


def make_rungs(trials: int, rounds: int, every: int, factor: int | None) -> tuple[Rung, ...]:
    """Returns after which rounds how many trials are compared: rounds / factor ** k, up to the next evaluation.

    >>> make_rungs(8, 40, 5, 2)
    (Rung(rounds=5, number=8), Rung(rounds=10, number=4), Rung(rounds=20, number=2), Rung(rounds=40, number=1))
    >>> make_rungs(8, 40, 5, None)
    (Rung(rounds=40, number=8),)
    """
    if factor is None:
        return (Rung(rounds, trials),)
    steps, trials_at = 0, {}
    while factor ** (steps + 1) <= trials:
        steps += 1
    for step in range(steps + 1):
        round_num = min(rounds, math.ceil(rounds / factor ** (steps - step) / every) * every)
        trials_at.setdefault(round_num, trials // factor**step)  # two rungs of one round cut nothing between them
    return tuple(Rung(round_num, number) for round_num, number in trials_at.items())


def compute_status(study: Study, scores: Scores) -> StudyStatus:
    """Computes the status of a study from the scores so far."""
    if not study.rungs:
        return StudyStatus(0, [], 0, [], study.trials[0], {})
    alive, scores_at_rung, finished_runs = list(study.trials), {}, 0
    ranked: list[Trial] = []
    for level, rung in enumerate(study.rungs):
        cut: list[Trial] = []  # the best first
        if level:
            alive = [trial for trial in alive if trial in ranked[: rung.number] or (trial in ranked and trial.number == 0)]
            cut = [trial for trial in ranked if trial not in alive]
        new = alive
        while True:
            scores_of_new, waiting, count = _score_trials(new, rung.rounds, scores)
            scores_at_rung |= scores_of_new
            finished_runs += count
            if waiting:
                before = study.rungs[level - 1].rounds if level else 0
                later = [rung.rounds] * ((study.number - len(study.trials)) * len(study.trials[0].cells))
                later += _rounds_of_later_rungs(study, level)
                return StudyStatus(finished_runs, waiting, before, later, None, scores_at_rung)
            ranked = sorted(
                (trial for trial in alive if not math.isnan(scores_at_rung[trial.number][1])),
                key=lambda trial: -selection_key(study.measure[0], scores_at_rung[trial.number][1]),
            )
            if ranked or not cut:
                break
            new = [cut.pop(0)]  # all that went on have diverged
            alive = alive + new
    return StudyStatus(finished_runs, [], 0, [], ranked[0] if ranked else None, scores_at_rung)


def _score_trials(trials: Sequence[Trial], rounds: int, scores: Scores) -> tuple[dict[int, tuple[int, float]], list[Cell], int]:
    """Returns (rounds and mean score of each finished trial, by its number; runs without a score; how many have one).

    A trial with a diverged run is finished, and its score is nan.
    """
    finished, waiting, count = {}, [], 0
    for trial in trials:
        run_scores = [scores[run.name, rounds] for run in trial.cells if (run.name, rounds) in scores]
        count += len(run_scores)
        if any(map(math.isnan, run_scores)):
            finished[trial.number] = rounds, math.nan
        elif len(run_scores) == len(trial.cells):
            finished[trial.number] = rounds, statistics.fmean(run_scores)
        else:
            waiting += [run for run in trial.cells_at(rounds) if (run.name, rounds) not in scores]
    return finished, waiting, count


def add_proposed_trial(study: Study, status: StudyStatus) -> Study:
    """Returns the study with its next trial, which follows from the scores of all others."""
    merits = {number: selection_key(study.measure[0], score) for number, (_, score) in status.scores.items()}
    history = [(trial.values, merits[trial.number]) for trial in study.trials]
    return study._replace(trials=(*study.trials, study.propose(len(study.trials), history)))


def _rounds_of_later_rungs(study: Study, level: int) -> list[int]:
    """Returns the rounds of each run on the rungs above one."""
    rounds = []
    for below, rung in itertools.pairwise(study.rungs[level:]):
        trials = min(rung.number + 1, len(study.trials))  # trial 0 goes on in any case
        rounds += [rung.rounds - below.rounds] * (trials * len(study.trials[0].cells))
    return rounds
