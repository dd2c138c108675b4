"""Seconds from a command to its first round, for one or more checkouts in turns, cold and warm.

python -m tests.benchmarks.start . ../before --repeats=5

Each start is a separate process, ended when its first record is written. Cold: with an empty folder
for compiled programs; warm: with the folder that the cold start before it has filled. Ratios are to
the first checkout, per turn.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

COMMANDS = {
    "fedavg": ("README's first command", ("fedavg",)),
    "fedskc": (
        "FedSKC, ResNet-8 with 16 channels, on digits, one epoch",
        ("fedskc", '--config.models=("resnet8(width=16)",)', "--config.method.epochs=1"),
    ),
}
PATIENCE = 600.0


def started(checkout: Path, arguments: Sequence[str], programs: Path) -> tuple[float, float]:
    """Returns (seconds, processor seconds) until the first record of a run is on the disk."""
    with tempfile.TemporaryDirectory(prefix="fedjax-start-") as folder:
        command = [sys.executable, "-m", "fedjax_core", "run", *arguments, f"--workdir={folder}/run"]
        before, began = _children(), time.monotonic()
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        process = subprocess.Popen(
            [*command, f"--compilation_cache={programs}"], cwd=checkout, env=environment, stderr=subprocess.PIPE, text=True
        )
        metrics = Path(folder) / "run" / "metrics.jsonl"
        while not metrics.exists() or not metrics.stat().st_size:
            if process.poll() is not None or time.monotonic() - began > PATIENCE:
                process.kill()
                raise RuntimeError(f"{' '.join(command)} made no record: {process.communicate()[1][-500:]}")
            time.sleep(0.005)
        seconds = time.monotonic() - began
        process.kill()
        process.communicate()
    return seconds, _children() - before


def _children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def main(arguments: Sequence[str]) -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=lambda text: Path(text).resolve())
    parser.add_argument("--commands", default=",".join(COMMANDS), help=f"some of {', '.join(COMMANDS)}")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args(arguments)
    for name in given.commands.split(","):
        title, command = COMMANDS[name]
        found: dict[tuple[Path, str], list[tuple[float, float]]] = {}
        for turn in range(given.repeats):
            for checkout in given.checkouts if turn % 2 == 0 else given.checkouts[::-1]:
                programs = Path(tempfile.mkdtemp(prefix="fedjax-programs-"))
                try:
                    for state in ("cold", "warm"):
                        found.setdefault((checkout, state), []).append(started(checkout, command, programs))
                finally:
                    shutil.rmtree(programs)
        print(f"**{title}**, {given.repeats} turns; load {os.getloadavg()[0]:.1f}\n")  # noqa: T201
        print("| | s, median (quartiles) | ratio | CPU s | ratio |\n|---|---|---|---|---|")  # noqa: T201
        for state in ("cold", "warm"):
            for checkout in given.checkouts:
                mine, first = np.array(found[checkout, state]), np.array(found[given.checkouts[0], state])
                cells = [text for i in (0, 1) for text in (_spread(mine[:, i], ".1f"), _spread(mine[:, i] / first[:, i], ".2f"))]
                print(f"| {checkout.name}, {state} | {' | '.join(cells)} |")  # noqa: T201
        print()  # noqa: T201


def _spread(values: np.ndarray, form: str) -> str:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{middle:{form}} ({low:{form}}-{high:{form}})"


if __name__ == "__main__":
    main(sys.argv[1:])
