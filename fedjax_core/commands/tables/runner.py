"""Runs what is missing of a table, its trials first, and writes the table after every run."""

import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from fedjax_core import code_fingerprint, experiment
from fedjax_core.atomic_files import write_text
from fedjax_core.commands.tables import comparability, measures
from fedjax_core.commands.tables.bootstrap_comparison import Known
from fedjax_core.commands.tables.definition import Definition
from fedjax_core.commands.tables.progress import SILENCE, Beat, Heartbeat, Job, Pace
from fedjax_core.commands.tables.results import Contents, Result, counted, finished, result_of
from fedjax_core.commands.tables.search import plan
from fedjax_core.commands.tables.table_cells import Cell, cell, cells, choose, configs_of
from fedjax_core.commands.tables.trials import Searches, delete_states, give_up, has_states, mark_as_trial
from fedjax_core.commands.tables.writers import write
from fedjax_core.data import digest as contents
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine.simulator import Diverged
from fedjax_core.reporting import reporter
from fedjax_core.run import CallbackFailed, check_inputs
from fedjax_core.storage.json_files import plain, read_json
from fedjax_core.storage.workdir import DATA, RECORDED, RUN

T = TypeVar("T")
LOOK = 5.0  # seconds between two looks at a trial that another process runs
AGAIN = 120.0  # seconds after which it is tried again: that process may have died


class Outcome(NamedTuple):
    """What `run` leaves.

    Attributes:
      results: of finished cells, by their names.
      failures: why cells of those asked for have no result, by their names.
      files: the tables.
    """

    results: dict[str, Result]
    failures: dict[str, str]
    files: list[Path]


def run(
    table: Definition,
    directory: str,
    variant: str = "small",
    *,
    only: Iterable[str] = (),
    seeds: Sequence[int] | None = None,
    progress: bool | None = None,
    say: Callable[[str], None] = reporter.say,
) -> Outcome:
    """Runs what is missing of a table, and writes it.

    Stopped or killed at any moment and called again, it goes on: finished runs are kept, an interrupted one is resumed. With a
    search the trials of all rows come first, then the cells with the settings that were chosen. Trials that another process runs
    are left to it and waited for.

    Args:
      table: the definition.
      directory: where runs and tables go.
      variant: of the rows' configs.
      only: rows, or "ROW/COLUMN"; see `choose`. The tables show all.
      seeds: in place of the table's.
      progress: True: a bar per run; False: a line after at most `progress.SILENCE` seconds; None: a bar where standard error is a
        terminal.
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
    studies = plan(table, variant)
    bar, folder = progress if progress is not None else sys.stderr.isatty(), Path(directory).expanduser()
    going = _Going(table, folder, variant, every, Searches(studies, folder), bool(bar), say)
    places = [place for place in studies if place in {(c.row, c.column) for c in chosen}]
    return going.on(places, {(c.row, c.column, c.seed) for c in chosen})


class _Going:
    """A table on its way.

    Attributes:
      every: all cells; those of a row and column have the settings that a search chose as soon as it is over.
      results, failures: of cells, by their names.
      contents: what the table is written from.
    """

    def __init__(
        self,
        table: Definition,
        folder: Path,
        variant: str,
        every: list[Cell],
        searches: Searches,
        bar: bool,
        say: Callable[[str], None],
    ) -> None:
        self._table, self._folder, self._variant, self._bar, self._say = table, folder, variant, bar, say
        self._counts = all(measures.is_count(measure) for measure in table.measures)
        self._searches, self._pace = searches, Pace()
        self._data: tuple[str, FederatedData] | None = None
        self._digests: dict[str, str | None] = {}  # of inputs and targets, by their name; None: they cannot be read
        self._settled: set[tuple[str, str]] = set()
        self._held: set[tuple[str, int]] = set()  # trials that another process runs, by their names and rounds
        self._broken: set[str] = set()  # cells whose callbacks failed: such a run may be complete, and has failed all the same
        self._over = 0  # runs of this call
        self._files: list[Path] = []
        self._known: Known = {}
        self.every, self.results, self.failures = every, {}, {}
        self.contents = Contents(table, variant, every, self.results, self.failures, searches)
        self._take_up([one for one in every if (one.row, one.column) not in searches.studies])
        for place in searches.studies:
            self._settle(place)
        for job, seconds in searches.took():
            self._pace.took(job, seconds)

    def _take_up(self, some: Sequence[Cell]) -> None:
        """The results of cells that lie finished, each said where that takes long; what cannot be read is the cell's failure."""
        long = any(measures.is_analysis(measure) and not measures.is_count(measure) for measure in self._table.measures)
        is_there = lambda one: finished(self._folder, one) and (not long or has_states(self._folder / "runs" / one.name))
        there = [] if self._counts else [one for one in some if self._read(one, is_there)]
        said = time.monotonic()
        for i, one in enumerate(there, 1):
            if long or time.monotonic() - said > SILENCE:
                self._say(f"reading {i}/{len(there)}  {one}")
                said = time.monotonic()
            with Beat(f"reading {i}/{len(there)}  {one}", self._say):
                result = self._read(one, self._result_of)
            if result is not None:
                self.results[one.name] = result
                if self.failures.pop(one.name, None) is not None:
                    self._log(one).unlink(missing_ok=True)
                self._pace.took(Job(one, one.config.rounds), result.seconds)

    def _result_of(self, one: Cell) -> Result:
        """The result of a finished cell, if it was run on the data that there are now."""
        self._check_inputs(one)
        return result_of(self._table, self._folder, one)

    def _check_inputs(self, one: Cell) -> None:
        """Raises ValueError if the directory of a cell or a trial says that it was run on other inputs or targets."""
        place = self._folder / "runs" / one.name
        recorded = read_json(place / RUN, RECORDED).get(DATA) if (place / RUN).exists() else None
        if recorded is None:  # it has not begun, or an earlier version began it
            return
        name = experiment.name_inputs(one.config)
        if name not in self._digests:
            self._digests[name] = None
            with Beat(f"reading the data of {one.column}", self._say):
                try:
                    self._digests[name] = contents.digest_data(self._data_of(one)).digest
                except (ValueError, OSError) as error:
                    what = "its finished runs are taken up without comparing their data"
                    self._say(f"{one.column}: {what}, which cannot be read: {reporter.one_line(error)}")
        if (digest := self._digests[name]) is not None:
            check_inputs(place, recorded, {"digest": digest})

    def _read(self, one: Cell, read: Callable[[Cell], T]) -> T | None:
        """What is read of a cell's directory; None where it cannot be read."""
        try:
            return read(one)
        except (ValueError, TypeError, OSError) as error:
            self._fail([one], str(one), reporter.one_line(error))
            return None

    def _fail(self, some: Sequence[Cell], which: str, why: str) -> None:
        """Notes why cells failed, and says it, but not twice."""
        if any(self.failures.get(one.name) != why for one in some):
            self.failures |= {one.name: why for one in some}
            self._say(f"failed: {which}: {why}")

    def _settle(self, place: tuple[str, str]) -> None:
        """Gives the cells of a (row, column) the settings that its search has chosen, if it is over, and forgets why they failed
        before; they fail where a trial cannot be read."""
        standing = self._searches.standing(place)
        if place in self._settled:
            return
        if standing.chosen is None:
            if standing.settled:  # all have diverged
                delete_states(self._folder, self._searches.studies[place], {one.name for one in self.every})
            if place in self._searches.failures:
                self._fail_all(place, self._searches.failures[place])
            return
        try:
            for trial in self._searches.studies[place].trials:
                for one in trial.cells:
                    self._check_inputs(one)
        except (ValueError, OSError) as error:
            self._searches.failures[place] = reporter.one_line(error)
            self._fail_all(place, self._searches.failures[place])
            return
        self._settled.add(place)
        row = next(row for row in self._table.rows if row.label == place[0])
        column = next(column for column in self._table.columns if column.label == place[1])
        tuned = standing.chosen.values if standing.chosen.number else {}
        for i, one in enumerate(self.every):
            if (one.row, one.column) == place:
                self.failures.pop(one.name, None)
                made = cell(self._table, row, column, one.seed, self._variant, tuned)
                self.every[i] = made._replace(own=one.own)  # as the trials began
        delete_states(self._folder, self._searches.studies[place], {one.name for one in self.every})
        self._take_up([one for one in self.every if (one.row, one.column) == place])

    def on(self, places: Sequence[tuple[str, str]], wanted: Container[tuple[str, str, int]]) -> Outcome:
        """The searches of some (row, column), then the cells of some (row, column, seed)."""
        mine = [one for one in self.every if (one.row, one.column, one.seed) in wanted]
        left, standings = self._left(places, wanted), [self._searches.standing(place) for place in places]
        done, trials = sum(s.done for s in standings), sum(s.done + len(s.waiting) + len(s.later) for s in standings)
        of_trials = f"{done} of {trials} runs of the search and " if trials else ""
        there = sum(one.name in self.results for one in mine)
        for difference in comparability.find_differences(self._table, configs_of(self.every)):
            self._say(f"rows differ in {difference}")
        self._say(f"{of_trials}{there} of {len(mine)} runs are finished, {len(left)} to do")
        self._write()
        for i, place in enumerate(places):
            self._search(place, lambda i=i: self._left(places[i:], wanted))
        todo = self._left((), wanted)
        ready = lambda: [job for job in self._left((), wanted) if job.cell.name not in self.failures]
        while True:
            while jobs := ready():
                self._do(jobs)
            self._catch_up()
            if not ready():  # else another process has ended a search
                break
        from fedjax_core.commands.tables.drawn import draw  # with matplotlib, for the end

        with Beat("drawing the figures", self._say):
            self._files += draw(self.contents, self._folder, self._known)
        failures = {job.cell.name: self.failures[job.cell.name] for job in self._left((), wanted)}
        self._say(f"{len(failures)} of {len(todo)} runs failed" if failures else f"all {len(mine)} runs are finished")
        self._say(f"tables   {self._folder / 'table.md'}")
        return Outcome(self.results, failures, self._files)

    def _catch_up(self) -> None:
        """Takes up what other processes have finished in this directory meanwhile, so that the last one writes the whole table."""
        before = len(self.results), len(self._settled), dict(self.failures)
        for place in self._searches.studies:
            if place not in self._settled:
                self._searches.look(place)
                self._settle(place)
        known = {*self.results, *self._broken}
        settled = lambda one: (one.row, one.column) in self._settled or (one.row, one.column) not in self._searches.studies
        self._take_up([one for one in self.every if one.name not in known and settled(one)])
        if before != (len(self.results), len(self._settled), self.failures):
            self._write()

    def _left(self, places: Sequence[tuple[str, str]], wanted: Container[tuple[str, str, int]]) -> list[Job]:
        """What is to be done of the searches of some (row, column) and of the cells of some (row, column, seed), in order."""
        jobs = []
        for place in places:
            study, standing = self._searches.studies[place], self._searches.standing(place)
            jobs += [Job(run, run.config.rounds - standing.before) for run in standing.waiting]
            jobs += [Job(study.trials[0].cells[0], rounds) for rounds in standing.later]
        some = [one for one in self.every if (one.row, one.column, one.seed) in wanted and one.name not in self.results]
        return jobs + [Job(one, one.config.rounds) for one in some]

    def _search(self, place: tuple[str, str], left: Callable[[], list[Job]]) -> None:
        """Runs the trials of a (row, column) and chooses; its cells fail where that cannot be done. `left`: what is to be done."""
        why = None
        while True:
            self._searches.look(place)  # other processes may have done some
            why, waiting = self._searches.failures.get(place) or why, self._searches.standing(place).waiting
            if why is not None or not waiting:
                break
            if all(self._is_held(run) for run in waiting):
                self._wait(place, waiting[0])
            else:
                why = self._do([job for job in left() if not self._is_held(job.cell)])
        self._settle(place)
        if place not in self._settled:
            why = why or self._searches.failures.get(place)
            self._fail_all(place, why or f"all {self._searches.standing(place).diverged} trials of the search diverged")
        self._write()

    def _is_held(self, one: Cell) -> bool:
        return (one.name, one.config.rounds) in self._held

    def _is_scored(self, one: Cell) -> bool:
        """Whether a trial's directory has its score, as it does where another process has taken the trial further meanwhile."""
        try:
            return one.trial is not None and self._searches.read(self._searches.studies[one.row, one.column], one)
        except (ValueError, TypeError, OSError):
            return False

    def _fail_all(self, place: tuple[str, str], why: str) -> None:
        self._fail([one for one in self.every if (one.row, one.column) == place], " / ".join(place), why)

    def _wait(self, place: tuple[str, str], run: Cell) -> None:
        """Until a trial that another process runs is done, of those of a (row, column), or long enough to try it here again."""
        done, began = self._searches.standing(place).done, time.monotonic()
        with Beat(f"waiting for {run}", self._say):
            while (
                place not in self._searches.failures
                and self._searches.standing(place).done == done
                and time.monotonic() - began < AGAIN
            ):
                time.sleep(LOOK)
                self._searches.look(place)
        self._held.clear()

    def _do(self, jobs: Sequence[Job]) -> str | None:
        """Does the first of the jobs, a trial or a cell, and the seeds that train beside it: why one failed, None if none did."""
        batch = self._batch(jobs)
        number = f"{self._over + 1}/{self._over + len(jobs)}"
        for job in batch:
            self._say(f"{number}  {job.cell}{self._pace.left(jobs) if job is batch[0] else '  (together)'}")
        began, why, stopped, interrupted = time.monotonic(), None, "", None
        with Heartbeat(self._folder, jobs, number, self._pace, None if self._bar else self._say):
            outcomes = self._alone(batch[0].cell) if len(batch) == 1 else self._together([job.cell for job in batch])
        for job, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, BlockingIOError) and job.cell.trial is not None:
                self._held.add((job.cell.name, job.cell.config.rounds))
                self._say(f"left for later: {job.cell}: {reporter.one_line(outcome)}")
            elif isinstance(outcome, Exception) and not isinstance(outcome, CallbackFailed) and self._is_scored(job.cell):
                self._say(f"done by another process: {job.cell}")
            elif isinstance(outcome, Exception):
                said = self._failed(job.cell, outcome)
                why = why or said
                stopped = stopped or (str(job.cell) if isinstance(outcome, Diverged) and outcome.stopped else "")
            elif isinstance(outcome, BaseException):
                interrupted = outcome
            else:
                self._log(job.cell).unlink(missing_ok=True)
                self._pace.took(job, (time.monotonic() - began) / len(batch))
                stopped = stopped or (str(job.cell) if outcome else "")
        self._over += sum(not self._is_held(job.cell) for job in batch)
        _forget()
        self._write()
        if interrupted is not None:
            raise interrupted
        if stopped:
            raise KeyboardInterrupt(f"after {stopped}; the same command goes on from there")
        return why

    def _batch(self, jobs: Sequence[Job]) -> list[Job]:
        """The first of the jobs, and its other seeds that `plan.lanes` lets train beside it."""
        cell = jobs[0].cell
        most = 1 if self._counts else experiment.lanes_of(cell.config)
        if most == 1:
            return [jobs[0]]
        first: dict[str, Job] = {}  # of a trial: the rung that it waits for, not those after it
        for job in jobs:
            if (job.cell.row, job.cell.column, job.cell.trial) == (cell.row, cell.column, cell.trial):
                first.setdefault(job.cell.name, job)
        seeds = list(first.values())
        return [seeds[i] for i in experiment.alike([job.cell.config for job in seeds])[0][:most]]

    def _log(self, one: Cell) -> Path:
        return self._folder / "runs" / f"{one.name}.error.txt"

    def _failed(self, one: Cell, error: Exception) -> str:
        """Notes why a run failed: what is said of its search, if it is a trial, or of its cell."""
        failed, log = reporter.one_line(error), self._log(one)
        log.parent.mkdir(parents=True, exist_ok=True)
        write_text(log, "".join(traceback.format_exception(error)))
        self._say(f"failed: {one}: {failed}")
        if one.trial is None:
            self.failures[one.name] = failed
            if isinstance(error, CallbackFailed):
                self._broken.add(one.name)
            return failed
        return f"trial {one.trial}: {failed}"

    def _alone(self, one: Cell) -> list[bool | Exception]:
        """Runs a cell or a trial: why it failed, or whether a signal came meanwhile."""
        try:
            code_fingerprint.check_same(one.own)
            data = self._data_of(one)
            if self._counts:
                self.results[one.name] = counted(self._table, one, data)
                return [False]
            place = str(self._folder / "runs" / one.name)
            if one.trial is not None:
                mark_as_trial(self._folder, one)
            try:
                ended = experiment.execute(one.config, place, self._bar, data=data, console=lambda text: None)
            except Diverged as error:
                ended = error
            return [self._taken_up(one, ended, data)]
        except Exception as error:  # a failure must not end the others'
            return [error]

    def _together(self, some: Sequence[Cell]) -> list[bool | BaseException]:
        """Runs seeds of a cell or a trial together: of each why it failed, or whether a signal came meanwhile."""
        try:
            for one in some:
                code_fingerprint.check_same(one.own)
            data, silent = self._data_of(some[0]), lambda text: None
            runs = [experiment.Run(one.config, str(self._folder / "runs" / one.name), silent) for one in some]
            for one in some:
                if one.trial is not None:
                    mark_as_trial(self._folder, one)
            ended = experiment.execute_all(runs, False, data=data, say=self._say)  # bars of several would write over each other
        except Exception as error:
            return [error] * len(some)
        found: list[bool | BaseException] = []
        for one, outcome in zip(some, ended, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Diverged):
                found.append(outcome)
                continue
            try:
                found.append(self._taken_up(one, outcome, data))
            except Exception as error:
                found.append(error)
        return found

    def _data_of(self, one: Cell) -> FederatedData:
        """The data of a run; those of the last one are kept."""
        wanted = json.dumps(plain(one.config.data.to_dict()), sort_keys=True)
        if self._data is None or self._data[0] != wanted:
            self._data = None  # the old data go before the new ones come
            self._data = wanted, experiment.dataset(one.config)
        return self._data[1]

    def _taken_up(self, one: Cell, ended: Any, data: FederatedData) -> bool:
        """Takes up what a run gave; whether a signal came meanwhile.

        Raises:
          Diverged: it did, and is no trial.
          ValueError: it ended before its last round.
        """
        if isinstance(ended, Diverged):
            if one.trial is None:
                raise ended
            give_up(self._folder, one, reporter.one_line(ended))
            self._say(f"diverged, so it counts as the worst: {one}: {reporter.one_line(ended)}")
        if one.trial is None:
            if not ended.stopped and not finished(self._folder, one):
                raise ValueError(
                    f"a callback ended the run before round {one.config.rounds}: its scores are of no round to compare"
                )
            self.results[one.name] = result_of(self._table, self._folder, one, data)
        elif not self._searches.read(self._searches.studies[one.row, one.column], one):
            raise ValueError(f"the run ended before round {one.config.rounds}")  # a callback asked it to
        return bool(ended.stopped)

    def _write(self) -> None:
        with Beat("writing the tables", self._say):
            self._files = write(self.contents, self._folder, self._known)


def _forget() -> None:
    """Lets go of the last run's arrays and programs, which hang together in circles."""
    jax.clear_caches()
    gc.collect()
