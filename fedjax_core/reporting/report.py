"""What a run says while it runs, and what it says at the end.

A record is a flat dict of numbers, one per round, named by what they are: {"round": 12, "train/loss": 0.4,
"test/global/accuracy": 0.93, "test/personal/own/accuracy/mean": 0.95}. A round that was not evaluated has no scores. Some names
have a meaning here:

    round             rounds done, from 1
    seconds           wall time that the record stands for, with `compile_seconds`, the part of it spent compiling
    cohort            clients that took part in the round
    train/examples    examples they trained on, an example counted once an epoch

A name with a part "accuracy" is an accuracy, with a part "loss" a loss. Records go to metrics.jsonl at once, to TensorBoard
files, to a progress bar or to lines of text; at the end to metrics.csv and summary.json. metrics.jsonl is what all the others
are made from.
"""

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np

from fedjax_core.storage.workdir import (
    METRICS,
    JsonLines,
    WorkDir,
    explained,
    json_lines,
    plain,
    read_jsonl,
    write_csv,
    write_json,
    write_text,
)

with warnings.catch_warnings():  # without ipywidgets a notebook gets the bar of text, and a warning that it could be nicer
    warnings.simplefilter("ignore")
    from tqdm.auto import tqdm

CSV, SUMMARY, TENSORBOARD = "metrics.csv", "summary.json", "tensorboard"
HEADLINE = ("test/global/accuracy", "test/personal/own/accuracy/mean")  # preferred in this order
_COUNTS = {"round", "seconds", "compile_seconds", "cohort"}  # not scores


class Reporter:
    """Takes the records of one run to all places. A context manager; on a process that does not write it does nothing."""

    def __init__(
        self,
        workdir: WorkDir | str | os.PathLike,
        total_rounds: int,
        *,
        progress: bool | None = None,
        tensorboard: bool = True,
        headline: str | None = None,
        targets: Sequence[float] = (),
        last_k: int = 10,
        every: float = 1.0,
        console: Callable[[str], None] | None = None,
    ) -> None:
        """Writes nothing yet.

        Args:
          workdir: the run's directory.
          total_rounds: how many rounds the run has in all, for the bar.
          progress: True: a bar; False: neither bar nor lines; None: a bar on a terminal or in a notebook, elsewhere a line at
            evaluations.
          tensorboard: whether to write TensorBoard files.
          headline: the score that bar and lines show; None: the first of `HEADLINE` that a record has, or else its first
            accuracy on test data. Where a record has no such score nothing was evaluated.
          targets: accuracies; the summary says which round reached them first.
          last_k: over how many of the last evaluations the summary takes a mean.
          every: seconds between two lines, at least.
          console: takes a line of text; None: standard error, above the bar if there is one.
        """
        self._writer = workdir.writer if isinstance(workdir, WorkDir) else True
        self.path = workdir.path if isinstance(workdir, WorkDir) else Path(workdir)
        self.total_rounds = total_rounds
        self.targets, self.last_k = tuple(targets), last_k
        self._headline, self._every = headline, every
        self._console = console or say
        wants_bar = progress if progress is not None else sys.stderr.isatty() or _in_notebook()
        self._wants_bar, self._wants_lines = wants_bar and self._writer, progress is None and not wants_bar and self._writer
        self._wants_events = tensorboard
        self._lines: JsonLines | None = None
        self._events: _Events | None = None
        self._bar: Any = None
        self._facts: dict[str, Any] = {}
        self._round = 0
        self._said = -math.inf
        self._started = time.monotonic(), 0

    def resume(self, from_round: int) -> None:
        """Goes on after a checkpoint: what was logged after its round is cut, and will be logged again.

        Args:
          from_round: the checkpoint's round; 0 to start from nothing.
        """
        if not self._writer:
            return
        metrics = self.path / METRICS
        if metrics.exists():
            records = read_jsonl(metrics)
            kept = [record for record in records if record["round"] <= from_round]
            if len(kept) < len(records):
                write_text(metrics, json_lines(kept))
        self._open(from_round)

    def _open(self, from_round: int) -> None:
        self._round = from_round
        self._started = time.monotonic(), from_round
        self._lines = JsonLines(self.path / METRICS)
        if self._wants_events:
            self._events = _Events(self.path / TENSORBOARD, from_round)
        if self._wants_bar:
            self._bar = tqdm(total=self.total_rounds, initial=from_round, unit="round", dynamic_ncols=True)

    def log(self, *records: Mapping[str, Any]) -> None:
        """Takes one record or several. When it returns they are on the disk.

        Args:
          *records: in the order of their rounds.

        Raises:
          OSError: if they cannot be written; one line that names the file.
          ValueError: if a record has no round, or one that was logged before.
        """
        if not self._writer:
            return
        if self._lines is None:
            metrics = self.path / METRICS
            self._open(max((record["round"] for record in read_jsonl(metrics)), default=0) if metrics.exists() else 0)
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
        for record in rows:
            if self._events is not None:
                self._events.add(record)
            self._show(record)
        self._round = last

    def note(self, **facts: Any) -> None:
        """Adds facts to the summary and the closing table.

        Args:
          **facts: JSON values; `bytes_down`, `bytes_up` (per client and round), `compile_seconds` and `peak_memory_bytes` are
            known to `table`.
        """
        self._facts |= plain(facts)

    def say(self, text: str) -> None:
        """Shows a line of text, without tearing the bar."""
        if self._writer:
            self._console(text)

    def _show(self, record: Mapping[str, Any]) -> None:
        scores = [key for key in record if key.startswith("test/") and is_accuracy(key)]
        name = self._headline or next((key for key in [*HEADLINE, *scores] if key in record), None)
        score = f"{name} {_show(name, record[name])}" if name in record and name is not None else None
        if self._bar is not None:
            if score:
                self._bar.set_postfix_str(score, refresh=False)
            self._bar.update(record["round"] - self._bar.n)
        elif self._wants_lines and score:
            now, last = time.monotonic(), record["round"] >= self.total_rounds
            if last or now - self._said >= self._every:
                self._said = now
                start, first = self._started
                rate = (record["round"] - first) / max(now - start, 1e-9)
                loss = f"  train/loss {_show('loss', record['train/loss'])}" if "train/loss" in record else ""
                self._console(f"round {record['round']}/{self.total_rounds}  {score}{loss}  {rate:.3g} rounds/s")

    def close(self) -> dict[str, Any]:
        """Writes metrics.csv and summary.json from all that was ever logged, and closes everything; a second call repeats it.

        Returns:
          The summary: `summarise`'s, with the noted facts; empty on a process that does not write.

        Raises:
          OSError: if they cannot be written.
        """
        self._release()
        if not self._writer:
            return {}
        metrics = self.path / METRICS
        records = read_jsonl(metrics) if metrics.exists() else []
        summary = summarise(records, self.targets, self.last_k)
        summary |= {"total_rounds": self.total_rounds, "facts": self._facts}
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
        try:
            self.close()
        except OSError as error:  # on the way out with another error, which is the one to tell
            self.say(str(error))


def say(text: str) -> None:
    """Writes a line to standard error, above a bar if there is one."""
    tqdm.write(text, file=sys.stderr)


def fail(error: BaseException | str, status: int) -> int:
    """Says in one line why a command ends.

    Args:
      error: why.
      status: the exit status; 130 for an interruption.

    Returns:
      The status.
    """
    say(f"{'stopped' if status == 130 else 'error'}: {one_line(error)}")
    return status


class Parser(argparse.ArgumentParser):
    """One that raises a ValueError of one line for a wrong command line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; --help tells more")


class _Events:
    """TensorBoard's scalars, written in the caller's thread: tensorboardX's own writer waits for ever for a thread that a full
    disk has killed, and puts the machine's name into the file's. Imported when needed: it loads torch where there is one."""

    def __init__(self, directory: Path, from_round: int) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue] (made at import)
        from tensorboardX.record_writer import RecordWriter
        from tensorboardX.summary import scalar

        self._path, self._event, self._scalar = directory, Event, scalar
        with explained("write", directory):
            directory.mkdir(exist_ok=True)
            number = len(list(directory.glob("events.out.tfevents.*")))
            self._file = RecordWriter(str(directory / f"events.out.tfevents.{time.time():.0f}.{number}"))
            self._write(file_version="brain.Event:2")
            if number:  # TensorBoard then forgets what earlier files say from this step on
                self._write(step=from_round + 1, session_log=SessionLog(status=SessionLog.START))
            self._file.flush()
        self._flushed = time.monotonic()

    def _write(self, **event: Any) -> None:
        self._file.write(self._event(wall_time=time.time(), **event).SerializeToString())

    def add(self, record: Mapping[str, Any]) -> None:
        with explained("write", self._path):
            for name, value in record.items():
                if name != "round" and isinstance(value, (int, float)):
                    self._write(step=record["round"], summary=self._scalar(name, value))
            if time.monotonic() - self._flushed > 2:
                self._file.flush()
                self._flushed = time.monotonic()

    def close(self) -> None:
        with explained("write", self._path):
            self._file.flush()
            self._file.close()


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in getattr(shell, "config", ())


def is_accuracy(name: str) -> bool:
    """Whether a score of this name is an accuracy."""
    return "accuracy" in name.split("/")


def summarise(records: Sequence[Mapping[str, Any]], targets: Sequence[float] = (), last_k: int = 10) -> dict[str, Any]:
    """What to say about a run.

    Args:
      records: of the run, in the order of their rounds.
      targets: accuracies to reach.
      last_k: over how many of the last evaluations to take a mean.

    Returns:
      A dict of

      - "rounds": rounds done.
      - "metrics": per score "first", "last", "last_round", "evaluations", "mean_last_k", "k" (`last_k`, or fewer if so few);
        of an accuracy also "best", "best_round", "best_is" (what that number is: the highest over rounds, and for a test score
        one selected on test data) and "rounds_to": per target the first round with at least that accuracy, None if there is
        none.
      - "speed": "seconds", and "rounds_per_second", "clients_per_second", "examples_per_second", "compile_seconds" as far as
        the records tell; the rates leave the compiling out.
    """
    summary: dict[str, Any] = {"rounds": records[-1]["round"] if records else 0, "metrics": {}, "speed": _speed(records)}
    names = dict.fromkeys(name for record in records for name in record if name not in _COUNTS and name != "train/examples")
    for name in names:
        rounds = [record["round"] for record in records if _is_score(record.get(name))]
        values = [float(record[name]) for record in records if _is_score(record.get(name))]
        if not values:
            continue
        tail = values[-last_k:]
        entry: dict[str, Any] = {
            "first": values[0],
            "last": values[-1],
            "last_round": rounds[-1],
            "evaluations": len(values),
            "mean_last_k": math.fsum(tail) / len(tail) if all(map(math.isfinite, tail)) else math.nan,
            "k": len(tail),
        }
        if is_accuracy(name):
            best = max(range(len(values)), key=lambda i: -math.inf if math.isnan(values[i]) else values[i])
            entry["best"], entry["best_round"] = values[best], rounds[best]
            entry["best_is"] = "best over rounds" + (", selected on test data" if name.startswith("test/") else "")
            reached = {str(t): next((r for r, v in zip(rounds, values, strict=True) if v >= t), None) for t in targets}
            entry["rounds_to"] = reached
        summary["metrics"][name] = entry
    return summary


def _is_score(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _speed(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Rates over the records that tell their time."""
    counts = {"rounds": 0.0, "clients": 0.0, "examples": 0.0}
    seconds = compiling = 0.0
    before = 0
    for record in records:
        if "seconds" in record:
            seconds += record["seconds"]
            compiling += record.get("compile_seconds", 0.0)
            counts["rounds"] += record["round"] - before
            counts["clients"] += record.get("cohort", 0)
            counts["examples"] += record.get("train/examples", 0)
        before = record["round"]
    speed = {"seconds": seconds} if seconds else {}
    if compiling:
        speed["compile_seconds"] = compiling
    if seconds > compiling:
        speed |= {f"{name}_per_second": count / (seconds - compiling) for name, count in counts.items() if count}
    return speed


class Series(NamedTuple):
    """A score over the rounds that have it: two arrays of one length."""

    rounds: np.ndarray
    values: np.ndarray


def history(records: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    """A run's records by score.

    >>> history([{"round": 1, "train/loss": 2.0}, {"round": 2, "train/loss": 1.5, "test/global/accuracy": 0.75}])["train/loss"]
    Series(rounds=array([1, 2]), values=array([2. , 1.5]))
    """
    names = dict.fromkeys(name for record in records for name in record if name != "round")
    found = {name: [(record["round"], record[name]) for record in records if _is_score(record.get(name))] for name in names}
    return {name: Series(*map(np.array, zip(*pairs, strict=True))) for name, pairs in found.items() if pairs}


def one_line(error: BaseException | str) -> str:
    """What an error says, as one line."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror + (f": {error.filename}" if error.filename else "")
    return " ".join(text.split()) or type(error).__name__


def table(summary: Mapping[str, Any]) -> str:
    """The closing table: scores, rounds to reach the targets, then speed, traffic and memory as far as they are known.

    Args:
      summary: from `Reporter.close` or `summarise`.

    Returns:
      Lines of text without a last newline, at most about 100 characters wide for the usual names.
    """
    scores = {name: entry for name, entry in summary["metrics"].items() if is_accuracy(name) or _is_one_loss(name)}
    targets = list(dict.fromkeys(target for entry in scores.values() for target in entry.get("rounds_to", ())))
    span = max((entry["k"] for entry in scores.values()), default=0)
    rows = [["", "last", "best*", "round", f"mean of last {span}", *(f"to {100 * float(t):g} %" for t in targets)]]
    for name, entry in scores.items():
        tested = "best" in entry and name.startswith("test/")
        best = [_show(name, entry["best"]), str(entry["best_round"])] if tested else ["", ""]
        few = f" ({entry['k']})" if entry["k"] < span else ""
        reached = entry["rounds_to"] if tested else {}
        when = [("never" if reached[t] is None else str(reached[t])) if t in reached else "" for t in targets]
        rows.append([name, _show(name, entry["last"]), *best, _show(name, entry["mean_last_k"]) + few, *when])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
        if scores
    ]
    if any(name.startswith("test/") and "best" in entry for name, entry in scores.items()):
        lines.append("* best over rounds, selected on test data: not a result to report")
    return "\n".join(line.rstrip() for line in [*lines, *_costs(summary)])


def _is_one_loss(name: str) -> bool:
    """Whether a score is a loss of the whole run; how it spreads over clients is left to the files."""
    return "loss" in name.split("/") and name.rpartition("/")[2] in ("loss", "mean")


def _costs(summary: Mapping[str, Any]) -> list[str]:
    speed, facts = summary.get("speed", {}), summary.get("facts", {})
    parts = [f"{summary['rounds']} rounds"]
    if "seconds" in speed:
        parts[0] += f" in {readable_time(speed['seconds'])}"
    for what in ("rounds", "clients", "examples"):
        if f"{what}_per_second" in speed:
            parts.append(f"{_significant(speed[f'{what}_per_second'])} {what}/s")
    compiling = speed.get("compile_seconds", facts.get("compile_seconds"))
    if compiling is not None:
        parts.append(f"compiling {readable_time(compiling)}")
    lines = [f"speed    {', '.join(parts)}"]
    ways = [f"{readable_size(facts[f'bytes_{way}'])} {way}" for way in ("down", "up") if f"bytes_{way}" in facts]
    if ways:
        lines.append(f"traffic  {', '.join(ways)}, per client and round")
    if facts.get("peak_memory_bytes") is not None:
        lines.append(f"memory   {readable_size(facts['peak_memory_bytes'])} at most")
    return lines


def _show(name: str, value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{100 * value:.1f} %" if is_accuracy(name) else f"{value:.4g}"


def _significant(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def readable_time(seconds: float) -> str:
    """Such as "12.5 s" or "3 h 05 min"."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def readable_size(count: float) -> str:
    """Bytes, such as "1.2 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
