"""Reports how far the runs of a table are, and estimates how long the others will take."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from fedjax_core.atomic_files import open_regular
from fedjax_core.commands.tables.table_cells import Cell
from fedjax_core.reporting import console
from fedjax_core.storage.workdir import METRICS

SILENCE = 25.0  # seconds after which a run without a bar says how far it is


class Job(NamedTuple):
    """Rounds to do of a cell's or a trial's run."""

    cell: Cell
    rounds: int


class Pace:
    """The speed of finished runs, which estimates that of others."""

    def __init__(self) -> None:
        self._sums: dict[tuple, tuple[float, int]] = {}  # of seconds, and how many; see `_likeness`

    def record(self, job: Job, seconds: float) -> None:
        """Records the seconds of a finished run."""
        of_length, *of_rounds = _likeness(job)
        for key, value in [(of_length, seconds), *((key, seconds / job.rounds) for key in of_rounds)]:
            total, number = self._sums.get(key, (0.0, 0))
            self._sums[key] = total + value, number + 1

    def estimate(self, job: Job) -> float | None:
        """Estimates the seconds of a job; None before any run.

        Runs of the same row, column and length count first; else seconds a round in the same row
        and column, in the same row, or in all.
        """
        of_length, *of_rounds = _likeness(job)
        if of_length in self._sums:
            total, number = self._sums[of_length]
            return total / number
        key = next(filter(self._sums.__contains__, of_rounds), None)
        if key is None:
            return None
        total, number = self._sums[key]
        return total / number * job.rounds

    def describe_remaining(self, jobs: Sequence[Job]) -> str:
        """Returns the time that jobs will take, as the end of a line; empty if it is unknown."""
        guesses = [self.estimate(job) for job in jobs]
        return _format_remaining(math.fsum(guess for guess in guesses if guess is not None)) if None not in guesses else ""


def _likeness(job: Job) -> list[tuple]:
    """Returns what a job has in common with others: first its row, column and length, last nothing."""
    row, column = job.cell.pair
    return [(row, column, job.rounds), (row, column), (row,), ()]


def _format_remaining(seconds: float) -> str:
    return f"  (about {console.readable_time(round(seconds))} left)"


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
        return f"{self._what}, after {console.readable_time(round(time.monotonic() - self._began))}"

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
        self._metrics = self._job.cell.workdir(folder) / METRICS
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
        ran = console.readable_time(round(now - self._began))
        remaining = "" if whole is None else _format_remaining(whole)
        return f"{self._number}  {self._job.cell}: round {done}/{rounds} after {ran}{remaining}"

    def _rounds(self) -> int:
        try:
            with open_regular(self._metrics) as file:
                return sum(line.endswith(b"\n") for line in file)
        except OSError:
            return 0
