"""Records results of runs, and compares them after a change that must not change any number.

  python -m tests.golden_runs record DIR      # before the change
  python -m tests.golden_runs compare DIR     # after it: the same runs again, equal bit for bit

The runs are every config's smoke variant and one config each with privacy, a robust rule,
compression, data on disk, client states on disk, eight devices and two processes. `compare` also
resumes a finished and an interrupted work directory of the recording. Numbers depend on the
machine, so both commands run on one. Times are not compared.
"""

import argparse
import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRA = {  # name: (config, flags)
    "privacy": ("fedavg", ("--config.privacy.mechanism=gaussian", "--config.privacy.clip=1.0",
                           "--config.privacy.noise=0.5", "--config.privacy.delta=1e-5",
                           "--config.normalise=unit", "--config.method.weights=uniform")),
    "rule": ("fedavg", ("--config.aggregation.rule=median",)),
    "compression": ("fedavg", ("--config.compression.uplink=quantise(bits=4)",)),
    "data_on_disk": ("fedavg", ("--config.plan.data=disk",)),
    "states_on_disk": ("scaffold", ("--config.plan.hold=disk",)),
}  # fmt: skip
TIMES = ("seconds", "time", "memory")  # parts of names of values that depend on the machine


def make_flags(config: str, workdir: Path, flags: tuple[str, ...] = ()) -> list[str]:
    """Returns the command line of one smoke run."""
    return [f"--config={ROOT / 'configs' / config}.py:smoke", f"--workdir={workdir}", *flags]


def run_here(flags: list[str]) -> None:
    """Runs the main command in this process, so that imports are shared."""
    sys.argv = ["main", *flags]
    try:
        runpy.run_module("methods.main", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{' '.join(flags)} ended with status {end.code}") from None


def run_apart(*command_lines: list[str], devices: int = 1) -> None:
    """Runs the main command in separate processes, in parallel."""
    flags = f"--xla_force_host_platform_device_count={devices}" if devices > 1 else ""
    environment = os.environ | {"XLA_FLAGS": flags}
    started = [subprocess.Popen([sys.executable, "-m", "methods.main", *line], env=environment, cwd=ROOT) for line in command_lines]
    statuses = [process.wait() for process in started]
    if any(statuses):
        raise RuntimeError(f"{' '.join(command_lines[0])} failed")


def run_all(place: Path) -> None:
    """Runs all recorded configs, each in a folder of `place`; existing folders are kept."""
    names = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))
    for name in names:
        if name not in ("__init__", "base") and not (place / name).exists():
            run_here(make_flags(name, place / name))
    for name, (config, flags) in EXTRA.items():
        if not (place / name).exists():
            run_here(make_flags(config, place / name, flags))
    if not (place / "eight_devices").exists():
        run_apart(make_flags("fedavg", place / "eight_devices"), devices=8)
    if not (place / "two_processes").exists():
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        common = (f"--coordinator=127.0.0.1:{port}", "--processes=2")
        run_apart(*(make_flags("fedavg", place / "two_processes", (*common, f"--process={i}")) for i in (0, 1)))


def read_metrics(workdir: Path) -> list[dict[str, float]]:
    """Returns the records of a run without values that depend on the machine."""
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if not any(part in name for part in TIMES)} for record in records]


def find_differences(old: Path, new: Path) -> list[str]:
    """Returns a line per run whose records differ between two folders."""
    lines = []
    for workdir in sorted(path.parent for path in old.glob("*/metrics.jsonl")):
        before, after = read_metrics(workdir), read_metrics(new / workdir.name)
        if before == after:
            continue
        for a, b in zip(before, after, strict=False):
            names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
            if names:
                first = ", ".join(f"{name} {a.get(name)} -> {b.get(name)}" for name in names[:3])
                lines.append(f"{workdir.name}: round {a.get('round')}: {first}")
                break
        else:
            lines.append(f"{workdir.name}: {len(before)} records -> {len(after)}")
    return lines


def main() -> int:
    """Records or compares; returns 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.what == "record":
        run_all(folder / "runs")
        run_here(make_flags("fedavg", folder / "begun", ("--config.rounds=3",)))
        return 0
    again = folder / "again"
    shutil.rmtree(again, ignore_errors=True)
    run_all(again)
    lines = find_differences(folder / "runs", again)
    shutil.copytree(folder / "begun", again / "begun")
    run_here(make_flags("fedavg", again / "begun"))  # resumes up to all rounds
    resumed, whole = read_metrics(again / "begun"), read_metrics(folder / "runs" / "fedavg")
    resumed[2] = {name: value for name, value in resumed[2].items() if name in whole[2]}  # it was evaluated as the last round
    if resumed != whole:
        lines.append("begun: the resumed run differs from the one in one go")
    finished = shutil.copytree(folder / "runs" / "fedavg", again / "finished")
    run_here(make_flags("fedavg", finished))  # is finished
    print("\n".join(lines) or "all runs are equal")  # noqa: T201
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
