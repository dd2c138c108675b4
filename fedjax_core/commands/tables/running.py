"""Runs what is missing of a table, and writes the table after every cell."""

import gc
import json
import math
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import jax

from fedjax_core import experiment
from fedjax_core.commands.tables import measures
from fedjax_core.commands.tables.cells import Cell, cells, choose
from fedjax_core.commands.tables.definition import Definition
from fedjax_core.commands.tables.results import Contents, Result, collect, counted, result_of
from fedjax_core.commands.tables.written import write
from fedjax_core.data.federated import FederatedData
from fedjax_core.reporting import report
from fedjax_core.storage.workdir import METRICS, plain, write_text

SILENCE = 25.0  # seconds after which a run without a bar says how far it is


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
      progress: True: a bar per run; False: a line after at most `SILENCE` seconds; None: a bar where standard error is a terminal.
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
    counts = all(measures.is_count(measure) for measure in table.measures)
    results, failures = {} if counts else collect(table, folder, every), {}
    contents = Contents(table, variant, every, results, failures)
    left = [cell for cell in chosen if cell.name not in results]
    spent: dict[tuple[str, str], list[float]] = {}
    for cell in every:
        if cell.name in results:
            spent.setdefault((cell.row, cell.column), []).append(results[cell.name].seconds)
    say(f"{len(chosen) - len(left)} of {len(chosen)} runs are finished, {len(left)} to do")
    files = write(contents, folder)
    bar = progress if progress is not None else sys.stderr.isatty()
    last_data: tuple[str, FederatedData] | None = None
    for place, cell in enumerate(left):
        say(f"{place + 1}/{len(left)}  {cell}{_forecast(left[place:], spent)}")
        began, stopped = time.monotonic(), False
        try:
            with _Heartbeat(folder, left[place:], f"{place + 1}/{len(left)}", spent, None if bar else say):
                wanted = json.dumps(plain(cell.config.data.to_dict()), sort_keys=True)
                if last_data is None or last_data[0] != wanted:
                    last_data = None  # the old data go before the new ones come
                    last_data = wanted, experiment.dataset(cell.config)
                if counts:
                    results[cell.name] = counted(table, cell, last_data[1])
                else:
                    stopped = experiment.execute(
                        cell.config, str(folder / "runs" / cell.name), bool(bar), data=last_data[1], console=lambda text: None
                    ).stopped
                    results[cell.name] = result_of(table, folder, cell, last_data[1])
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
        files = write(contents, folder)
        if stopped:
            raise KeyboardInterrupt(f"after {cell}; the same command goes on from there")
    say(f"{len(failures)} of {len(left)} runs failed" if failures else f"all {len(chosen)} runs are finished")
    say(f"tables   {folder / 'table.md'}")
    return Outcome(results, failures, files)


def _forget() -> None:
    """Lets go of the last run's arrays and programs, which hang together in circles."""
    jax.clear_caches()
    gc.collect()


def _guess(cell: Cell, spent: Mapping[tuple[str, str], Sequence[float]]) -> float | None:
    """Seconds that a cell will take, judged by those of the same row and column, else of the same row, else by all."""
    same = spent.get((cell.row, cell.column)) or [s for (row, _), found in spent.items() if row == cell.row for s in found]
    known = same or [seconds for found in spent.values() for seconds in found]
    return statistics.fmean(known) if known else None


def _forecast(left: Sequence[Cell], spent: Mapping[tuple[str, str], Sequence[float]]) -> str:
    """How long the cells will take; empty before one is finished."""
    guesses = [_guess(cell, spent) for cell in left]
    return _left(math.fsum(guess for guess in guesses if guess is not None)) if None not in guesses else ""


def _left(seconds: float) -> str:
    return f"  (about {report.readable_time(round(seconds))} left)"


class _Heartbeat:
    """Says how far a run is whenever `SILENCE` seconds have passed, from a thread of its own: it compiles and reads data, too."""

    def __init__(
        self,
        folder: Path,
        left: Sequence[Cell],
        number: str,
        spent: Mapping[tuple[str, str], Sequence[float]],
        say: Callable[[str], None] | None,
    ) -> None:
        """`left`: the cell that runs and those after it; `say`: None for silence."""
        self._cell, self._after, self._number, self._spent, self._say = left[0], left[1:], number, spent, say
        self._metrics = folder / "runs" / left[0].name / METRICS
        self._over = threading.Event()
        self._began = time.monotonic()
        self._first: tuple[float, int] | None = None  # when rounds were first seen, and how many
        self._thread = threading.Thread(target=self._talk, daemon=True)

    def _talk(self) -> None:
        while not self._over.wait(SILENCE):
            assert self._say is not None
            self._say(self._line())

    def _line(self) -> str:
        done, rounds, now = self._rounds(), self._cell.config.rounds, time.monotonic()
        if self._first is None and done:
            self._first = now, done
        rest = _guess(self._cell, self._spent)
        if rest is not None:
            rest = max(rest - (now - self._began), 0.0)
        if self._first is not None and done > self._first[1]:  # by the pace of this run, compiling left out
            rest = (now - self._first[0]) / (done - self._first[1]) * (rounds - done)
        here = (now - self._began) + (rest or 0.0)
        whole = None if rest is None else rest + math.fsum(_guess(cell, self._spent) or here for cell in self._after)
        ran = report.readable_time(round(now - self._began))
        return f"{self._number}  {self._cell}: round {done}/{rounds} after {ran}{'' if whole is None else _left(whole)}"

    def _rounds(self) -> int:
        """Rounds that the run has recorded."""
        try:
            with open(self._metrics, "rb") as file:
                return sum(line.endswith(b"\n") for line in file)
        except OSError:
            return 0

    def __enter__(self) -> Self:
        if self._say is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._say is not None:
            self._thread.join()
