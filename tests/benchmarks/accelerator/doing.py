"""Runs pieces step by step, each in a separate process, and records the results."""

import contextlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedjax_core.atomic_files import write_text
from fedjax_core.reporting.reporter import SUMMARY
from fedjax_core.run import signals
from fedjax_core.storage.json_files import JsonLinesFile, read_json, read_jsonl
from fedjax_core.storage.workdir import CHECKPOINTS
from tests.benchmarks.accelerator.pieces import BEGINS, LONGEST, Asked, Piece, Step

RESULTS = "results.jsonl"
STOPPED = 130
RESERVE = 45.0  # seconds before the end at which a run is asked to stop, which it does after a round
TRIES = 2  # per failing step
WHOLE = 0.9  # fraction of a call; later calls are not much longer
ROOT = Path(__file__).resolve().parents[3]
_SUMMARY = {"rounds": int, "metrics": {str: dict}, "speed": dict}


class Doing:
    """A call.

    Attributes:
      asked: its settings.
    """

    def __init__(self, asked: Asked, until: float, say: Callable[[str], None]):
        """Prepares a call that ends at `until`, by `time.monotonic`; `say` prints a line."""
        self.asked, self._until, self._say = asked, until, say
        self._enough = min(LONGEST, WHOLE * (until - time.monotonic()))  # a longer step has failed
        for folder in ("done", "logs"):
            (asked.out / folder).mkdir(parents=True, exist_ok=True)
        there = read_jsonl(asked.out / RESULTS) if (asked.out / RESULTS).exists() else []
        self._known = {(line["piece"], line["step"]) for line in there if "step" in line and "failed" not in line}
        self._failed: dict[tuple[str, str], list[str]] = {}
        for line in there:
            if "failed" in line:
                self._failed.setdefault((line["piece"], line["step"]), []).append(line["failed"])
        self._runs = {line["run"] for line in there if "run" in line}

    def piece(self, piece: Piece, again: bool = False) -> str:
        """Runs the rest of a piece while time is left, and prints a line with the outcome.

        Args:
          piece: the piece.
          again: whether failed steps are retried, after all others are over.

        Returns: "done", "more", "again" (failed steps are to be retried), "failed" or "skipped".
        """
        marker = self.asked.out / "done" / piece.name
        if marker.exists():
            return self._told(piece, "done", "before")
        if piece.data and self.asked.data is None and not self.asked.toy:
            return self._told(piece, "skipped", "it needs CIFAR-10: give --data=DIR")
        began, steps, failed, tries = time.monotonic(), list(piece.steps(self.asked)), [], []
        for step in steps:
            key = (piece.name, step.name)
            if key in self._known:
                continue
            before = self._failed.get(key, [])
            end = self._step(piece, step) if not before or (again and len(before) < TRIES) else before[-1]
            if end == "more":
                done = sum((piece.name, one.name) in self._known for one in steps)
                return self._told(piece, "more", f"{done} of {len(steps)} steps are done; {piece.says}")
            if end:
                tries.append(TRIES if piece.gate else len(self._failed[key]))
                given_up = f", given up after {TRIES} tries" if tries[-1] >= TRIES and not piece.gate else ""
                failed.append(f"{step.name}: {end}{given_up}")
        if failed:
            return self._told(piece, "failed" if min(tries) >= TRIES else "again", "; ".join(failed))
        for folder in (self.asked.out / piece.name).rglob(CHECKPOINTS):
            shutil.rmtree(folder)
        write_text(marker, f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n")
        return self._told(piece, "done", f"{len(steps)} steps, {time.monotonic() - began:.0f} s in this call")

    def _told(self, piece: Piece, state: str, why: str) -> str:
        self._say(f"{piece.name:10} {state:8} {why}")
        return state

    def _step(self, piece: Piece, step: Step) -> str:
        """Runs a step; returns "" if it is over, "more" if not, else the reason of its failure."""
        left = self._until - time.monotonic()
        if left < (step.seconds if step.directory is None else BEGINS) and not self.asked.toy:
            return "more"
        began, log = time.monotonic(), self.asked.out / "logs" / f"{piece.name}-{_plain(step.name)}.log"
        status, said = self._here(step, log) if self.asked.toy else _apart(step, left, log, self.asked.out)
        if status == STOPPED and (step.directory is not None or left < self._enough):
            return "more"
        if status:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            why = f"{lines[-1][:200] if lines else f'exit status {status}'} ({log})"
            if not piece.gate:
                self._write({"piece": piece.name, "step": step.name, "failed": why})
                self._failed.setdefault((piece.name, step.name), []).append(why)
            return why
        found: dict[str, Any] = {} if step.directory is not None else json.loads(said.splitlines()[-1])
        line = {"piece": piece.name, "step": step.name, **found, "wall_seconds": round(time.monotonic() - began, 1)}
        self._write(*([] if step.directory is None else self._of_runs(piece, step.directory)), line)
        self._known.add((piece.name, step.name))
        return ""

    def _of_runs(self, piece: Piece, directory: Path) -> list[dict[str, Any]]:
        """Returns a line per new run in a directory: rounds, speed, last and best of each score."""
        found = []
        for file in sorted(directory.rglob(SUMMARY)):
            run, said = str(file.parent.relative_to(self.asked.out)), read_json(file, _SUMMARY)
            if run not in self._runs:
                scores = {name: {key: of[key] for key in ("last", "best") if key in of} for name, of in said["metrics"].items()}
                found.append({"piece": piece.name, "run": run, "rounds": said["rounds"], "speed": said["speed"], "scores": scores})
                self._runs.add(run)
        return found

    def _write(self, *lines: dict[str, Any]) -> None:
        file = JsonLinesFile(self.asked.out / RESULTS)
        try:
            file.append(*lines)
        finally:
            file.close()

    def _here(self, step: Step, log: Path) -> tuple[int, str]:
        """Runs a step in this process; returns (exit status, standard output)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = importlib.import_module(step.module).main(list(step.arguments))
        write_text(log, err.getvalue())
        return status, out.getvalue()


def _plain(name: str) -> str:
    """Returns a name as a file name."""
    return "".join(c if c.isalnum() else "-" for c in name)


def _apart(step: Step, seconds: float, log: Path, folder: Path) -> tuple[int, str]:
    """Runs a step in a separate process with a time limit; returns (exit status, standard output).

    A run or a table is asked to end in time; then its status is that of an interruption, as it is
    if the process had to be killed or a measurement did not end in time. It runs in `folder` and in
    its own session: Ctrl-C in a terminal reaches it only through this process, once.
    """
    goes_on, process = step.directory is not None, None
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with open(log, "w") as errors, signals.raise_on_signal():
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", step.module, *step.arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": paths},
                start_new_session=True,
            )
            said, _ = process.communicate(timeout=max(seconds - RESERVE, 1.0) if goes_on else min(seconds, LONGEST))
            return process.returncode, said
        except subprocess.TimeoutExpired:
            well = _stop(process)
            if not goes_on:
                errors.write(f"not measured in {min(seconds, LONGEST):.0f} s\n")
            return (0 if goes_on and well else STOPPED), ""
        finally:
            _stop(process)


def _stop(process: subprocess.Popen | None) -> bool:
    """Ends a process, by force on a second signal; returns whether its status is 0."""
    if process is None:
        return False
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=0.75 * RESERVE)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    return process.returncode == 0
