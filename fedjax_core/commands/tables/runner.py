"""Runs what is missing of a table, its trials first, and writes the table between runs."""

import contextlib
import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from fedjax_core import code_fingerprint, experiment
from fedjax_core.atomic_files import write_text
from fedjax_core.commands.tables import measures
from fedjax_core.commands.tables.definition import Definition
from fedjax_core.commands.tables.progress import SILENCE, Beat, Job, Pace, RunBeat
from fedjax_core.commands.tables.results import Contents, Result, TableData, compute_counts, is_finished, read_result
from fedjax_core.commands.tables.search import plan_searches, score_names
from fedjax_core.commands.tables.table_cells import Cell, build_cell, build_cells, select_cells
from fedjax_core.commands.tables.trials import (
    SearchProgress,
    delete_checkpoints,
    has_checkpoints,
    mark_as_diverged,
    mark_as_trial,
)
from fedjax_core.commands.tables.writers import make_folder, remove_differences, write_tables
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine.heap import trim_heap
from fedjax_core.engine.simulator import Diverged
from fedjax_core.reporting import console, score_labels
from fedjax_core.run import CallbackFailed
from fedjax_core.storage.workdir import FIGURES, METRICS, DirectoryInUse

T = TypeVar("T")
MAX_WRITE_SHARE = 0.05  # the most of the time that writing tables between runs takes
POLL_SECONDS = 5.0  # seconds between two looks at a run of another process
RETRY_SECONDS = 120.0  # seconds after which such a run is tried again: that process may have died


class Outcome(NamedTuple):
    """The result of `run`."""

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
    say: Callable[[str], None] = console.say,
) -> Outcome:
    """Runs what is missing of a table, and writes the table.

    A call after an interruption continues: finished runs are kept, an interrupted one is resumed.
    With a search the trials of all rows come first, then the cells with the chosen settings. Runs of
    another process are left to it and waited for.

    Args:
      only: rows, or "ROW/COLUMN"; see `select_cells`. The tables show all.
      progress: True: a bar per run; False: a line after at most `progress.SILENCE` seconds; None: a
        bar if standard error is a terminal.

    Raises:
      ValueError: the definition is wrong, or the directory has other files; nothing has run then.
      KeyboardInterrupt: a signal came; the same call continues from there.
    """
    every = build_cells(table, variant, seeds)
    chosen = select_cells(every, only)
    studies = plan_searches(table, variant)
    bar = progress if progress is not None else sys.stderr.isatty()
    folder = Path(directory).expanduser()
    make_folder(folder)
    searches = SearchProgress(studies, folder)
    return TableRunner(table, folder, variant, every, chosen, searches, bar, say).run()


class TableRunner:
    """The runner of a table in one directory.

    Attributes:
      every: all cells; those of a row and column get the settings that its search chose.
    """

    def __init__(
        self,
        table: Definition,
        folder: Path,
        variant: str,
        every: list[Cell],
        chosen: Sequence[Cell],
        searches: SearchProgress,
        bar: bool,
        say: Callable[[str], None],
    ) -> None:
        self._table = table
        self._folder = folder
        self._variant = variant
        self._bar = bar
        self._say = say
        self._counts = all(measures.is_count(measure) for measure in table.measures)
        self._searches = searches
        self._chosen = {(cell.pair, cell.seed) for cell in chosen}  # what is run
        self._pairs = [pair for pair in searches.studies if pair in {cell.pair for cell in chosen}]
        self._pace = Pace()
        self._data = TableData(folder, say)
        self._settled: set[tuple[str, str]] = set()  # (row, column) whose search has chosen
        self._held: set[tuple[str, int]] = set()  # (name, rounds) of runs of another process
        self._broken: set[str] = set()  # cells whose callbacks failed: they failed, though complete
        self._first_failures: dict[str, str] = {}  # by reason, the run that failed for it first
        self._runs_over = 0
        self._written_at, self._write_seconds = 0.0, 0.0  # when the tables were written last, and the seconds that it took
        self._files: list[Path] = []
        self.every, self.results, self.failures = every, {}, {}
        self.contents = Contents(table, variant, every, self.results, self.failures, searches if searches.studies else None)
        self._read_finished([cell for cell in every if cell.pair not in searches.studies])
        for pair in searches.studies:
            self._settle(pair)
        for job, seconds in searches.durations():
            self._pace.record(job, seconds)

    def run(self) -> Outcome:
        """Runs the searches of the chosen rows and columns, then the chosen cells."""
        self._report_start()
        self._write()
        try:
            for pair in self._pairs:
                self._run_search(pair)
            to_do = len(self._jobs_left(()))
            self._run_ready_cells()
        except BaseException:
            with contextlib.suppress(ValueError, OSError):
                self._catch_up()  # or the table would lose what other processes have finished
                self._write()
                remove_differences(self._folder)
            raise
        self._write()
        self._draw()
        failures = {job.cell.name: self.failures[job.cell.name] for job in self._jobs_left(())}
        finished = len(self._chosen_cells())
        self._say(f"{len(failures)} of {to_do} runs failed" if failures else f"all {finished} runs are finished")
        self._say(f"tables   {self._folder / 'table.md'}")
        return Outcome(self.results, failures, self._files)

    def _run_ready_cells(self) -> None:
        while True:
            jobs = self._ready_cells()
            if not jobs:
                self._catch_up()  # another process may have ended a search
                jobs = self._ready_cells()
            if not jobs:
                break
            if free := [job for job in jobs if not self._is_held(job.cell)]:
                self._run_first(free)
            else:
                self._wait_for_cells([job.cell for job in jobs])

    def _report_start(self) -> None:
        statuses = [self._searches.status(pair) for pair in self._pairs]
        done = sum(status.finished_runs for status in statuses)
        trials = done + sum(len(status.waiting) + len(status.later_rounds) for status in statuses)
        of_search = f"{done} of {trials} runs of the search and " if trials else ""
        chosen = self._chosen_cells()
        finished = sum(cell.name in self.results for cell in chosen)
        for difference in self.contents.differences:
            self._say(f"rows differ in {difference}")
        for score in () if self._table.search is None else score_names(self._table.search):
            if text := score_labels.describe_direction(score):
                self._say(f"search: {text}")
        to_do = len(self._jobs_left(self._pairs))
        self._say(f"{of_search}{finished} of {len(chosen)} runs are finished, {to_do} to do")

    def _chosen_cells(self) -> list[Cell]:
        return [cell for cell in self.every if (cell.pair, cell.seed) in self._chosen]

    def _jobs_left(self, pairs: Sequence[tuple[str, str]]) -> list[Job]:
        """Returns what is to do of the searches of pairs and of the chosen cells, in order."""
        jobs = []
        for pair in pairs:
            status = self._searches.status(pair)
            first = self._searches.studies[pair].trials[0].cells[0]
            jobs += [Job(run, run.config.rounds - status.rounds_before) for run in status.waiting]
            jobs += [Job(first, rounds) for rounds in status.later_rounds]
        return jobs + [Job(cell, cell.config.rounds) for cell in self._chosen_cells() if cell.name not in self.results]

    def _ready_cells(self) -> list[Job]:
        return [job for job in self._jobs_left(()) if job.cell.name not in self.failures]

    def _run_search(self, pair: tuple[str, str]) -> None:
        """Runs the trials of a (row, column) and chooses; its cells fail where that is impossible."""
        why, pairs = None, self._pairs[self._pairs.index(pair) :]
        while True:
            self._searches.refresh(pair)  # other processes may have done some
            waiting = self._searches.status(pair).waiting
            why = self._searches.failures.get(pair) or why
            if why is not None or not waiting:
                break
            if all(self._is_held(run) for run in waiting):
                self._wait_for_trial(pair, waiting[0])
            else:
                why = self._run_first([job for job in self._jobs_left(pairs) if not self._is_held(job.cell)])
        self._settle(pair)
        if pair not in self._settled:
            why = why or self._searches.failures.get(pair)
            diverged = self._searches.status(pair).diverged_trials
            self._fail_pair(pair, why or f"all {diverged} trials of the search diverged")
        self._write_if_due()

    def _wait_for_cells(self, cells: Sequence[Cell]) -> None:
        """Waits until other processes have finished one of the cells, or until it is time to try them here."""
        self._wait(cells[0], lambda: any(map(self._has_ended, cells)))
        self._catch_up()

    def _has_ended(self, cell: Cell) -> bool:
        """Returns whether a cell is finished; False where that cannot be read, as long as another process writes there."""
        with contextlib.suppress(ValueError, TypeError, OSError):
            return is_finished(self._folder, cell)
        return False

    def _wait_for_trial(self, pair: tuple[str, str], run: Cell) -> None:
        """Waits until another process has done a trial of a pair, or until it is time to try it here."""
        done = self._searches.status(pair).finished_runs

        def has_changed() -> bool:
            self._searches.refresh(pair)
            return pair in self._searches.failures or self._searches.status(pair).finished_runs != done

        self._wait(run, has_changed)

    def _wait(self, run: Cell, has_changed: Callable[[], bool]) -> None:
        """Waits for other processes, at most `RETRY_SECONDS`; what they held may be tried again then."""
        began = time.monotonic()
        with Beat(f"waiting for {run}", self._say):
            while not has_changed() and time.monotonic() - began < RETRY_SECONDS:
                time.sleep(POLL_SECONDS)
        self._held.clear()

    def _run_first(self, jobs: Sequence[Job]) -> str | None:
        """Runs the first job and the seeds that train with it; returns why one failed, None if none did."""
        batch = self._batch(jobs)
        number = f"{self._runs_over + 1}/{self._runs_over + len(jobs)}"
        for job in batch:
            self._say(f"{number}  {job.cell}{self._pace.describe_remaining(jobs) if job is batch[0] else '  (together)'}")
        began, why, stopped, interrupted = time.monotonic(), None, "", None
        with RunBeat(self._folder, jobs, number, self._pace, None if self._bar else self._say):
            outcomes = self._run_cells([job.cell for job in batch])
        for job, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, DirectoryInUse):
                self._held.add((job.cell.name, job.cell.config.rounds))
                self._say(f"left for later: {job.cell}: {console.one_line(outcome)}")
            elif isinstance(outcome, Exception) and not isinstance(outcome, CallbackFailed) and self._is_scored(job.cell):
                self._say(f"done by another process: {job.cell}")
            elif isinstance(outcome, Exception):
                failure = self._record_failure(job.cell, outcome)
                why = why or failure
                stopped = stopped or (str(job.cell) if isinstance(outcome, Diverged) and outcome.stopped else "")
            elif isinstance(outcome, BaseException):
                interrupted = outcome
            else:
                self._log(job.cell).unlink(missing_ok=True)
                self._pace.record(job, (time.monotonic() - began) / len(batch))
                stopped = stopped or (str(job.cell) if outcome else "")
        self._runs_over += sum(not self._is_held(job.cell) for job in batch)
        _release_memory()
        if interrupted is not None:
            raise interrupted
        if stopped:
            raise KeyboardInterrupt(f"after {stopped}; the same command goes on from there")
        self._write_if_due()
        return why

    def _batch(self, jobs: Sequence[Job]) -> list[Job]:
        """Returns the first of the jobs, and its other seeds that `plan.lanes` lets train beside it."""
        cell = jobs[0].cell
        most = 1 if self._counts else experiment.seeds_at_once(cell.config)
        if most == 1:
            return [jobs[0]]
        first: dict[str, Job] = {}  # of a trial: the rung that it waits for, not those after it
        for job in jobs:
            if (job.cell.row, job.cell.column, job.cell.trial) == (cell.row, cell.column, cell.trial):
                first.setdefault(job.cell.name, job)
        seeds = list(first.values())
        return [seeds[i] for i in experiment.group_seeds([job.cell.config for job in seeds])[0][:most]]

    def _run_cells(self, cells: Sequence[Cell]) -> list[bool | BaseException]:
        """Runs seeds of a cell or a trial; returns of each the error, or whether a signal came."""
        try:
            for cell in cells:
                code_fingerprint.check_unchanged(cell.own)
            data = self._data.load(cells[0].config)
            if self._counts:
                self.results[cells[0].name] = compute_counts(self._table, cells[0], data)
                return [False]
            for cell in cells:
                if cell.trial is not None:
                    mark_as_trial(self._folder, cell)
            ended = self._execute(cells, data)
        except Exception as error:  # a failure must not end the others'
            return [error] * len(cells)
        outcomes: list[bool | BaseException] = []
        for cell, outcome in zip(cells, ended, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Diverged):
                outcomes.append(outcome)
                continue
            try:
                outcomes.append(self._take_result(cell, outcome, data))
            except Exception as error:
                outcomes.append(error)
        return outcomes

    def _execute(self, cells: Sequence[Cell], data: FederatedData) -> list[Any]:
        silent = lambda text: None
        draws = cells[0].trial is None
        runs = [experiment.Run(cell.config, str(cell.workdir(self._folder)), silent, draws=draws) for cell in cells]
        if len(runs) > 1:
            return experiment.execute_all(runs, False, data=data, say=self._say)  # bars of several would write over each other
        try:
            return [experiment.execute(runs[0].config, runs[0].workdir, self._bar, data=data, console=silent, draws=draws)]
        except Exception as error:
            return [error]

    def _take_result(self, cell: Cell, ended: Any, data: FederatedData) -> bool:
        """Stores the result of a run. Returns whether a signal came during it."""
        if isinstance(ended, Diverged):
            if cell.trial is None:
                raise ended
            mark_as_diverged(self._folder, cell, console.one_line(ended))
            self._say(f"diverged, so it counts as the worst: {cell}: {console.one_line(ended)}")
        if cell.trial is None:
            if not ended.stopped and not is_finished(self._folder, cell):
                raise ValueError(
                    f"a callback ended the run before round {cell.config.rounds}: its scores are of no round to compare"
                )
            self._data.compare_partitions(cell)
            self.results[cell.name] = read_result(self._table, self._folder, cell, data)
        elif not self._searches.read_run(self._searches.studies[cell.pair], cell):
            raise ValueError(f"the run ended before round {cell.config.rounds}")  # a callback asked it to
        return bool(ended.stopped)

    def _is_held(self, cell: Cell) -> bool:
        return (cell.name, cell.config.rounds) in self._held

    def _is_scored(self, cell: Cell) -> bool:
        """Returns whether a trial's directory has its score: another process may have run it meanwhile."""
        try:
            return cell.trial is not None and self._searches.read_run(self._searches.studies[cell.pair], cell)
        except (ValueError, TypeError, OSError):
            return False

    def _read_finished(self, cells: Sequence[Cell]) -> None:
        """Reads the results of finished cells; a cell that cannot be read fails."""
        analyses = [m.scores[0] for m in self._table.measures if measures.is_analysis(m) and not measures.is_count(m)]
        is_slow = bool(analyses)

        def is_readable(cell: Cell) -> bool:
            if not is_finished(self._folder, cell):
                return False
            workdir = cell.workdir(self._folder)
            if has_checkpoints(workdir) or not (missing := measures.list_unknown_analyses(workdir, analyses)):
                return True
            self._say(f"{cell}: finished, but {', '.join(missing)} needs a checkpoint, so it is trained again")
            return False

        finished = [] if self._counts else [cell for cell in cells if self._read(cell, is_readable)]
        reported = time.monotonic()
        for i, cell in enumerate(finished, 1):
            if is_slow or time.monotonic() - reported > SILENCE:
                self._say(f"reading {i}/{len(finished)}  {cell}")
                reported = time.monotonic()
            with Beat(f"reading {i}/{len(finished)}  {cell}", self._say):
                result = self._read(cell, self._read_checked)
            if result is not None:
                self.results[cell.name] = result
                if self.failures.pop(cell.name, None) is not None:
                    self._log(cell).unlink(missing_ok=True)
                self._draw_run(cell)
                self._pace.record(Job(cell, cell.config.rounds), result.seconds)

    def _read_checked(self, cell: Cell) -> Result:
        """Returns the result of a finished cell, if it was run on today's data."""
        self._data.check_inputs(cell)
        return read_result(self._table, self._folder, cell)

    def _read(self, cell: Cell, read: Callable[[Cell], T]) -> T | None:
        """Returns what is read of a cell's directory; None, and the cell fails, if that is impossible."""
        try:
            return read(cell)
        except (ValueError, TypeError, OSError) as error:
            self._fail([cell], str(cell), console.one_line(error))
            return None

    def _catch_up(self) -> None:
        """Takes up what other processes have finished, so that the last one writes the whole table."""
        for pair in self._searches.studies:
            if pair not in self._settled:
                self._searches.refresh(pair)
                self._settle(pair)
        known = {*self.results, *self._broken}
        unsettled = {pair for pair in self._searches.studies if pair not in self._settled}
        self._read_finished([cell for cell in self.every if cell.name not in known and cell.pair not in unsettled])

    def _settle(self, pair: tuple[str, str]) -> None:
        """Gives the cells of a (row, column) the settings that its search chose, if it is over.

        Earlier failures of the cells are dropped. The cells fail if a trial cannot be read.
        """
        status = self._searches.status(pair)
        if pair in self._settled:
            return
        study, names = self._searches.studies[pair], {cell.name for cell in self.every}
        if status.chosen is None:
            if pair in self._searches.failures:
                self._fail_pair(pair, self._searches.failures[pair])
            elif not status.waiting:  # all have diverged
                delete_checkpoints(self._folder, study, names)
            return
        try:
            for run in study.runs:
                self._data.check_inputs(run)
        except (ValueError, OSError) as error:
            self._searches.failures[pair] = console.one_line(error)
            self._fail_pair(pair, self._searches.failures[pair])
            return
        self._settled.add(pair)
        row = next(row for row in self._table.rows if row.label == pair[0])
        column = next(column for column in self._table.columns if column.label == pair[1])
        tuned = status.chosen.values if status.chosen.number else {}
        tune = lambda seed: build_cell(self._table, row, column, seed, self._variant, tuned)
        for i, cell in enumerate(self.every):
            if cell.pair == pair:
                self.failures.pop(cell.name, None)
                self.every[i] = tune(cell.seed)._replace(own=cell.own)  # as the trials began
        seeds = {run.seed for run in study.runs}
        cells_of_other_calls = {tune(seed).name for seed in seeds}
        delete_checkpoints(self._folder, study, {cell.name for cell in self.every} | cells_of_other_calls)
        self._read_finished([cell for cell in self.every if cell.pair == pair])

    def _fail(self, cells: Sequence[Cell], which: str, why: str) -> None:
        if any(self.failures.get(cell.name) != why for cell in cells):
            self.failures |= {cell.name: why for cell in cells}
            self._say(f"failed: {which}: {why}")

    def _fail_pair(self, pair: tuple[str, str], why: str) -> None:
        self._fail([cell for cell in self.every if cell.pair == pair], " / ".join(pair), why)

    def _record_failure(self, cell: Cell, error: Exception) -> str:
        """Records why a run failed, with its traceback in a file; returns it."""
        why, log = console.one_line(error), self._log(cell)
        first = self._first_failures.setdefault(why, str(cell))
        self._say(f"failed: {cell}: {why if first == str(cell) else f'as {first}'}")
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            write_text(log, "".join(traceback.format_exception(error)))
        except OSError as unwritten:  # such as a full disk, which may be why the run failed
            self._say(f"its traceback is not kept: {console.one_line(unwritten)}")
        if cell.trial is not None:
            return f"trial {cell.trial}: {why}"
        self.failures[cell.name] = why
        if isinstance(error, CallbackFailed):
            self._broken.add(cell.name)
        return why

    def _log(self, cell: Cell) -> Path:
        return cell.workdir(self._folder).with_name(f"{cell.name}.error.txt")

    def _write(self) -> None:
        began = time.monotonic()
        with Beat("writing the tables", self._say):
            self._files = write_tables(self.contents, self._folder)
        self._written_at = time.monotonic()
        self._write_seconds = self._written_at - began

    def _write_if_due(self) -> None:
        """Writes the tables, if that takes at most `MAX_WRITE_SHARE` of the time since they were written last."""
        if time.monotonic() - self._written_at >= self._write_seconds / MAX_WRITE_SHARE:
            self._write()

    def _draw_run(self, cell: Cell) -> None:
        """Draws the figures of a finished run that has none, or older ones than its metrics: it was a trial."""
        workdir = cell.workdir(self._folder)
        try:
            drawn = [(workdir / name).stat().st_mtime for name in FIGURES if (workdir / name).exists()]
            if max(drawn, default=0.0) >= (workdir / METRICS).stat().st_mtime:
                return
            from fedjax_core.reporting.plots import plot_run  # loads matplotlib

            with Beat(f"drawing the figures of {cell}", self._say):
                plot_run(workdir)
        except Exception as error:  # a figure must not end the table
            self._say(f"no figures of {cell}: {console.one_line(error)}")

    def _draw(self) -> None:
        from fedjax_core.commands.tables.difference_figure import draw_differences  # loads matplotlib

        with Beat("drawing the figures", self._say):
            self._files += draw_differences(self.contents, self._folder)


def _release_memory() -> None:
    """Frees the last run's arrays and programs, which reference each other in cycles, and their memory on the heap."""
    jax.clear_caches()
    gc.collect()
    trim_heap()
