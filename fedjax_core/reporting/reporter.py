"""Reports of a run: records by round, progress, and the summary at the end.

A record is a flat dict of numbers: "round" (from 1), "seconds" (with `compile_seconds`), "cohort"
(clients that took part), "train/examples" (counted once per epoch) and scores, whose names say
what they are (`score_labels.py`). Records are written to metrics.jsonl at once, to TensorBoard
files, and to a progress bar or lines of text; metrics.csv and summary.json are made at the end.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from fedjax_core.atomic_files import write_csv, write_text
from fedjax_core.reporting import client_scores
from fedjax_core.reporting.console import readable_time, say, tqdm
from fedjax_core.reporting.loggers import TensorBoardWriter
from fedjax_core.reporting.metrics_log import CSV, read_records, restore_records
from fedjax_core.reporting.score_labels import is_headline
from fedjax_core.reporting.summary import format_score, format_significant, summarize_records
from fedjax_core.storage.json_files import JsonLinesFile, format_json_lines, to_json_values, write_json
from fedjax_core.storage.workdir import METRICS, WorkDir

SUMMARY, TENSORBOARD = "summary.json", "tensorboard"
ENDED = "peak_memory_bytes"  # a fact that only the summary of a run without error has
HEADLINE = ("test/global/accuracy", "test/personal/own/accuracy/mean")  # in order of preference, before other accuracies and R2
LINE_SECONDS = 1.0  # at least, between two lines of text


class Reporter:
    """Writes the records of one run to all outputs; a process that does not write does nothing."""

    def __init__(
        self,
        workdir: WorkDir | str | os.PathLike,
        total_rounds: int,
        *,
        progress: bool | None = None,
        tensorboard: bool = True,
        targets: Sequence[float] = (),
        last_k: int = 10,
        select: str | None = None,
        console: Callable[[str], None] | None = None,
    ) -> None:
        """Writes nothing yet.

        Args:
          progress: True: a bar; False: neither bar nor lines; None: a bar on a terminal or in a
            notebook without `console`, else a line per evaluation.
          tensorboard: whether to write TensorBoard files.
          targets: accuracies; the summary has the first round that reaches each.
          last_k: number of last evaluations that the summary averages.
          select: the score whose best round the summary reports.
          console: prints a line of text; None: to standard error, above the bar if there is one.
        """
        self._writer = workdir.writer if isinstance(workdir, WorkDir) else True
        self.path = workdir.path if isinstance(workdir, WorkDir) else Path(workdir)
        self.total_rounds = total_rounds
        self.targets, self.last_k, self.select = tuple(targets), last_k, select
        self._console = console or say
        wants_bar = progress if progress is not None else console is None and (sys.stderr.isatty() or _in_notebook())
        self._wants_bar, self._wants_lines = wants_bar and self._writer, progress is None and not wants_bar and self._writer
        self._wants_events = tensorboard
        self._opened = False
        self._lines: JsonLinesFile | None = None
        self._events: TensorBoardWriter | None = None
        self._bar: Any = None
        self._facts: dict[str, Any] = {}
        self._round = 0
        self._last_line = -math.inf
        self._started = time.monotonic(), 0

    def resume(self, from_round: int) -> None:
        """Resumes after a checkpoint: later records are deleted and will be logged again.

        Args:
          from_round: round of the checkpoint; 0: from nothing.

        Raises:
          ValueError: metrics.jsonl and metrics.csv together lack a round up to there.
        """
        if not self._writer:
            return
        restore_records(self.path, from_round, self.say)
        self._open(from_round)

    def _open(self, from_round: int) -> None:
        self._round = from_round
        self._started = time.monotonic(), from_round
        self._lines = JsonLinesFile(self.path / METRICS)
        self._opened = True
        if self._wants_bar:
            self._bar = tqdm(total=self.total_rounds, initial=from_round, unit="round", dynamic_ncols=True)

    def log(self, *records: Mapping[str, Any]) -> None:
        """Logs records; they are on the disk when it returns.

        Args:
          *records: ordered by round.

        Raises:
          ValueError: a record has no round, or one that is not later than those before.
        """
        if not self._writer:
            return
        if self._lines is None:
            metrics = self.path / METRICS
            self._open(max((record["round"] for record in read_records(metrics)), default=0) if metrics.exists() else 0)
        assert self._lines is not None
        rows = [{name: value.item() if hasattr(value, "item") else value for name, value in r.items()} for r in records]
        last = self._round
        for record in rows:
            if not isinstance(record.get("round"), int) or record["round"] <= last:
                raise ValueError(
                    f"a record of round {record.get('round')} cannot follow round {last} in {self.path / METRICS}; "
                    "rounds go up, and resume(from_round) cuts what a run that goes back logged before"
                )
            last = record["round"]
        self._lines.append(*rows)
        if self._wants_events and self._events is None:  # created with the first record, because its import is slow
            self._events = TensorBoardWriter(self.path / TENSORBOARD, self._started[1])
        for record in rows:
            if self._events is not None:
                self._events.add(record)
            self._show(record)
        self._round = last

    def add_scores(self, scores: Mapping[str, Any]) -> None:
        """Adds scores to the last record, of a round that was not evaluated when it was trained."""
        if not self._writer:
            return
        file = self.path / METRICS
        *before, last = read_records(file)
        if self._lines is not None:
            self._lines.close()
        record = last | dict(scores)
        write_text(file, format_json_lines([*before, record]))
        self._lines = JsonLinesFile(file)
        if self._wants_events and self._events is None:
            self._events = TensorBoardWriter(self.path / TENSORBOARD, self._round)
        if self._events is not None:
            self._events.add({"round": last["round"], **scores})
        self._show(record)

    def note(self, **facts: Any) -> None:
        """Adds facts to the summary and the closing table.

        Args:
          **facts: JSON values; the table shows `bytes_down`, `bytes_up` (per client and round),
            `compile_seconds` and `peak_memory_bytes`.
        """
        self._facts |= to_json_values(facts)

    def say(self, text: str) -> None:
        """Prints a line of text above the bar."""
        if self._writer:
            self._console(text)

    def _show(self, record: Mapping[str, Any]) -> None:
        """Shows a record in the bar, or in a line of text if it was evaluated."""
        scores = [key for key in record if key.startswith("test/") and is_headline(key)]
        name = next((key for key in [*HEADLINE, *scores] if key in record), None)  # None: it was not evaluated
        score = None if name is None else f"{name} {format_score(name, record[name])}"
        if self._bar is not None:
            if score:
                self._bar.set_postfix_str(score, refresh=False)
            self._bar.update(record["round"] - self._bar.n)
        elif self._wants_lines and score:
            now, is_last = time.monotonic(), record["round"] >= self.total_rounds
            if is_last or now - self._last_line >= LINE_SECONDS:
                self._last_line = now
                self._console(self._format_line(record, score, now))

    def _format_line(self, record: Mapping[str, Any], score: str, now: float) -> str:
        start, first = self._started
        spent, left = now - start, self.total_rounds - record["round"]
        rate = (record["round"] - first) / max(spent, 1e-9)
        times = readable_time(spent) + (f", about {readable_time(left / rate)} left" if left > 0 and rate > 0 else "")
        loss = f"  train/loss {format_score('loss', record['train/loss'])}" if "train/loss" in record else ""
        speed = f"{format_significant(rate)} rounds/s"
        return f"round {record['round']}/{self.total_rounds}  {score}{loss}  {speed}  {times}"

    def close(self) -> dict[str, Any]:
        """Writes metrics.csv and summary.json from all records; may be called again.

        Returns:
          The summary: that of `summarize_records`, with the noted facts and the distribution of scores over
          clients; {} on a process that does not write.
        """
        self._release()
        if not self._writer:
            return {}
        metrics = self.path / METRICS
        records = read_records(metrics) if metrics.exists() else []
        summary = summarize_records(records, self.targets, self.last_k, self.select)
        summary |= {"total_rounds": self.total_rounds, "facts": self._facts}
        summary |= client_scores.summarize_spread(self.path, summary["rounds"], summary.get("selected", {}).get("round"))
        write_csv(self.path / CSV, records, ["round"])
        write_json(self.path / SUMMARY, summary)
        return summary

    def _release(self) -> None:
        for part in (self._bar, self._events, self._lines):
            if part is not None:
                part.close()
        self._bar = self._events = self._lines = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
            return
        if not self._opened:  # nothing was logged: the files of an earlier start stay
            return
        try:
            self.close()
        except OSError as error:  # another error is already being raised
            self.say(str(error))


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in getattr(shell, "config", ())
