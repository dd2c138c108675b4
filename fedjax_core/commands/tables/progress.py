"""Reports how far the runs of a table are, and estimates how long the others will take."""

import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from fedjax_core.atomic_files import open_regular
from fedjax_core.commands.tables.table_cells import Cell
from fedjax_core.reporting import reporter
from fedjax_core.storage.workdir import METRICS

SILENCE = 25.0  # seconds after which a run without a bar says how far it is


class Job(NamedTuple):
    """Rounds to do of a cell's or a trial's run."""

    cell: Cell
    rounds: int


class Pace:
    """The speed of finished runs, which estimates that of others."""

    def __init__(self) -> None:
        self._known: list[tuple[Job, float]] = []

    def record(self, job: Job, seconds: float) -> None:
        """Records the seconds of a finished run."""
        self._known.append((job, seconds))

    def estimate(self, job: Job) -> float | None:
        """Estimates the seconds of a job; None before any run.

        Runs of the same row, column and length count first; else seconds a round in the same row
        and column, in the same row, or in all.
        """
        same_pair = [(done, seconds) for done, seconds in self._known if done.cell.pair == job.cell.pair]
        if same_length := [seconds for done, seconds in same_pair if done.rounds == job.rounds]:
            return statistics.fmean(same_length)
        same_row = [(done, seconds) for done, seconds in self._known if done.cell.row == job.cell.row]
        comparable = same_pair or same_row or self._known
        return statistics.fmean(seconds / done.rounds for done, seconds in comparable) * job.rounds if comparable else None

    def describe_remaining(self, jobs: Sequence[Job]) -> str:
        """Returns the time that jobs will take, as the end of a line; empty if it is unknown."""
        guesses = [self.estimate(job) for job in jobs]
        return _format_remaining(math.fsum(guess for guess in guesses if guess is not None)) if None not in guesses else ""


def _format_remaining(seconds: float) -> str:
    return f"  (about {reporter.readable_time(round(seconds))} left)"


class Beat:
    """A context that prints a line every `SILENCE` seconds, from a thread of its own."""

    def __init__(self, what: str, say: Callable[[str], None] | None) -> None:
        """Prepares the line: `what` is going on. `say` prints it; None: silent."""
        self._what, self._say = what, say
        self._over = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._talk, daemon=True)

    def _talk(self) -> None:
        while not self._over.wait(SILENCE):
            assert self._say is not None
            self._say(self.line())

    def line(self) -> str:
        """Returns the line to print now."""
        return f"{self._what}, after {reporter.readable_time(round(time.monotonic() - self._began))}"

    def __enter__(self) -> Self:
        if self._say is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._say is not None:
            self._thread.join()


class RunBeat(Beat):
    """A context that prints how far a run is, also while it compiles or reads data."""

    def __init__(self, folder: Path, jobs: Sequence[Job], number: str, pace: Pace, say: Callable[[str], None] | None) -> None:
        """Prepares the line of the first job; the others follow it. `say` prints it; None: silent."""
        super().__init__(str(jobs[0].cell), say)
        self._job, self._after, self._number, self._pace = jobs[0], jobs[1:], number, pace
        self._metrics = folder / "runs" / self._job.cell.name / METRICS
        self._first: tuple[float, int] | None = None  # when rounds were first seen, and how many

    def line(self) -> str:
        """Returns how far the run is now."""
        done, rounds, now = self._rounds(), self._job.cell.config.rounds, time.monotonic()
        if self._first is None and done:
            self._first = now, done
        rest = self._pace.estimate(self._job)
        if rest is not None:
            rest = max(rest - (now - self._began), 0.0)
        if self._first is not None and done > self._first[1]:  # by the pace of this run, compiling left out
            rest = (now - self._first[0]) / (done - self._first[1]) * (rounds - done)
        here = (now - self._began) + (rest or 0.0)
        whole = None if rest is None else rest + math.fsum(self._pace.estimate(job) or here for job in self._after)
        ran = reporter.readable_time(round(now - self._began))
        remaining = "" if whole is None else _format_remaining(whole)
        return f"{self._number}  {self._job.cell}: round {done}/{rounds} after {ran}{remaining}"

    def _rounds(self) -> int:
        try:
            with open_regular(self._metrics) as file:
                return sum(line.endswith(b"\n") for line in file)
        except OSError:
            return 0
