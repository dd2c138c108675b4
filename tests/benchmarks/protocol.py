"""The protocol between the benchmark and a contender: JSON lines. Standard library only.

The contender is a separate process. It prepares and warms up, sends {"ready": ...}, and then waits
for numbers of rounds to run. So all contenders are alive at once and take turns, whatever drives
their own loops.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Gate:
    """The contender's end. All other output goes to standard error."""

    def __init__(self):
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(self, **what: Any) -> None:
        """Sends an answer."""
        self._out.write(json.dumps(what) + "\n")
        self._out.flush()

    def __iter__(self) -> Iterator[int]:
        """Yields the requested numbers of rounds; each needs one answer with `seconds`."""
        for line in sys.stdin:
            rounds = json.loads(line)["rounds"]
            if not rounds:
                return
            yield rounds


def serve(run: Any, **ready: Any) -> None:
    """Serves a contender: a function rounds -> anything to report, which runs them."""
    gate = Gate()
    gate.say(ready=True, **ready)
    for rounds in gate:
        start = time.perf_counter()
        more = run(rounds) or {}
        gate.say(seconds=(time.perf_counter() - start) / rounds, **more)


class Failed(RuntimeError):
    """A contender failed."""


class Contender:
    """The benchmark's end.

    Attributes:
      name: name in the report.
      ready: its answer after the warm-up.
    """

    def __init__(self, name: str, command: list[str], log: Path, *, patience: float = 1200.0, environment: dict | None = None):
        """Starts the contender and waits until it has warmed up.

        Args:
          name: name in the report.
          command: the process; it must use this protocol.
          log: file of its standard error.
          patience: seconds to wait for any answer.
          environment: further variables.

        Raises:
          Failed: it ended, or did not answer in time; the message has the end of its log.
        """
        self.name, self._log, self._patience = name, log, patience
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        start = time.perf_counter()
        self.ready = self._answer()
        self.ready["start_seconds"] = time.perf_counter() - start

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        there, _, _ = select.select([self._process.stdout], [], [], self._patience)
        line = self._process.stdout.readline() if there else ""
        if line:
            return json.loads(line)
        self.stop()
        said = [text for text in self._log.read_text(errors="replace").splitlines() if text.strip()]
        raise Failed(
            f"{self.name} " + ("ended" if there else f"did not answer in {self._patience:.0f} s") + ": " + " | ".join(said[-4:])
        )

    def measure(self, rounds: int) -> dict[str, Any]:
        """Runs a number of rounds; returns the answer, with "seconds" and "cpu_seconds" per
        round."""
        assert self._process.stdin is not None
        family = _tree(self._process.pid)
        before = sum(map(_cpu, family))
        self._process.stdin.write(json.dumps({"rounds": rounds}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return answer | {"cpu_seconds": (sum(map(_cpu, family)) - before) / rounds}

    def peak_memory(self) -> int:
        """Returns the sum over its processes of peak resident bytes; 0 without /proc."""
        return sum(_peak(pid) for pid in _tree(self._process.pid))

    def stop(self) -> None:
        """Ends it and all processes that it has started."""
        family = _tree(self._process.pid)
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"rounds": 0}) + "\n")
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            self._process.wait()


def _tree(root: int) -> list[int]:
    """Returns a process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(entry.read_text().rpartition(")")[2].split()[1]), []).append(int(entry.parent.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def _cpu(pid: int) -> float:
    """Returns the processor seconds of a process over all threads."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _peak(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
