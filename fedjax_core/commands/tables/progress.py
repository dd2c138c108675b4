"""How far the runs of a table are, and how long the others will take."""

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
    """So many rounds of the run of a cell or a trial that are to be done."""

    cell: Cell
    rounds: int


class Pace:
    """What runs took, and what others will take by that."""

    def __init__(self) -> None:
        self._known: list[tuple[Job, float]] = []

    def took(self, job: Job, seconds: float) -> None:
        """Remembers a run."""
        self._known.append((job, seconds))

    def guess(self, job: Job) -> float | None:
        """Seconds, by runs of the same row, column and length; else by the rounds of those of the same row and column, of the same
        row, of all; None before there is one."""
        row, column = job.cell.row, job.cell.column
        here = [(one, s) for one, s in self._known if (one.cell.row, one.cell.column) == (row, column)]
        if same := [seconds for one, seconds in here if one.rounds == job.rounds]:
            return statistics.fmean(same)
        known = here or [(one, s) for one, s in self._known if one.cell.row == row] or self._known
        return statistics.fmean(seconds / one.rounds for one, seconds in known) * job.rounds if known else None

    def left(self, jobs: Sequence[Job]) -> str:
        """How long some will take, as the end of a line; empty where nobody knows."""
        guesses = [self.guess(job) for job in jobs]
        return _left(math.fsum(guess for guess in guesses if guess is not None)) if None not in guesses else ""


def _left(seconds: float) -> str:
    return f"  (about {reporter.readable_time(round(seconds))} left)"


class Beat:
    """Says a line whenever `SILENCE` seconds have passed, from a thread of its own, until its block is over."""

    def __init__(self, what: str, say: Callable[[str], None] | None) -> None:
        """`what`: goes on; `say`: None for silence."""
        self._what, self._say = what, say
        self._over = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._talk, daemon=True)

    def _talk(self) -> None:
        while not self._over.wait(SILENCE):
            assert self._say is not None
            self._say(self.line())

    def line(self) -> str:
        """What is said now."""
        return f"{self._what}, after {reporter.readable_time(round(time.monotonic() - self._began))}"

    def __enter__(self) -> Self:
        if self._say is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._say is not None:
            self._thread.join()


class Heartbeat(Beat):
    """Says how far a run is: it compiles and reads data, too."""

    def __init__(self, folder: Path, jobs: Sequence[Job], number: str, pace: Pace, say: Callable[[str], None] | None) -> None:
        """`jobs`: the one that runs and those after it; `say`: None for silence."""
        super().__init__(str(jobs[0].cell), say)
        self._job, self._after, self._number, self._pace = jobs[0], jobs[1:], number, pace
        self._metrics = folder / "runs" / self._job.cell.name / METRICS
        self._first: tuple[float, int] | None = None  # when rounds were first seen, and how many

    def line(self) -> str:
        """How far it is now."""
        done, rounds, now = self._rounds(), self._job.cell.config.rounds, time.monotonic()
        if self._first is None and done:
            self._first = now, done
        rest = self._pace.guess(self._job)
        if rest is not None:
            rest = max(rest - (now - self._began), 0.0)
        if self._first is not None and done > self._first[1]:  # by the pace of this run, compiling left out
            rest = (now - self._first[0]) / (done - self._first[1]) * (rounds - done)
        here = (now - self._began) + (rest or 0.0)
        whole = None if rest is None else rest + math.fsum(self._pace.guess(job) or here for job in self._after)
        ran = reporter.readable_time(round(now - self._began))
        return f"{self._number}  {self._job.cell}: round {done}/{rounds} after {ran}{'' if whole is None else _left(whole)}"

    def _rounds(self) -> int:
        """Rounds that the run has recorded."""
        try:
            with open_regular(self._metrics) as file:
                return sum(line.endswith(b"\n") for line in file)
        except OSError:
            return 0
