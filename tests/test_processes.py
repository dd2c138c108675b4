"""Two processes with `jax.distributed` compute the results of one; only process 0 writes."""

import itertools
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.safetensors_files import read_tensors
from tests.launch import Ended, Launcher, Process
from tests.test_resume import CONFIGS, assert_close, leaves, lines, metrics

ROUNDS = 4
OTHER = " has other values than that of process 0 ({}); all processes need the same config and files\n"
COMPLETE = " (the run itself is complete)"
SCORES = "--config.evaluation.scores=('macro_f1', 'auroc')"  # sums over clients and devices are arrays


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("processes")
    for name, text in CONFIGS.items():
        (place / f"{name}.py").write_text(text)
    return place


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def cluster_port() -> int:
    """Returns a port that jax uses on Slurm and Open MPI."""
    for port in range(61_440, 65_536):
        with socket.socket() as listening:
            try:
                listening.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no free port")


def told_by_flags(port: int, number: int, of: int) -> tuple[tuple[str, ...], dict[str, str]]:
    return (f"--coordinator=127.0.0.1:{port}", f"--processes={of}", f"--process={number}"), {}


def told_by_slurm(port: int, number: int, of: int) -> tuple[tuple[str, ...], dict[str, str]]:
    variables = {"JOB_ID": port - 61_440, "STEP_NODELIST": "127.0.0.1", "NTASKS": of, "PROCID": number, "LOCALID": number}
    return ("--distributed",), {f"SLURM_{name}": str(value) for name, value in variables.items()}


def told_by_open_mpi(port: int, number: int, of: int) -> tuple[tuple[str, ...], dict[str, str]]:
    variables = {"WORLD_SIZE": of, "WORLD_RANK": number, "WORLD_LOCAL_RANK": number}
    where = {"OMPI_MCA_orte_hnp_uri": f"{(port - 61_440) * 2**12}.0;tcp://127.0.0.1:1"}
    return ("--distributed",), where | {f"OMPI_COMM_{name}": str(value) for name, value in variables.items()}


def begin(
    launcher: Launcher,
    *flags: str,
    of_second: tuple[str, ...] = (),
    told=told_by_flags,
    largest: int | None = 0,
    devices: int = 1,
    homes: tuple[Path, ...] = (),
) -> list[Process]:
    """Starts the same command in two processes, connected by the variables in `told`, each in its home if given.

    The second fails if it writes more than `largest` bytes to any file, including standard error.
    """
    there = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}" if devices > 1 else ""}
    port, started = free_port() if told is told_by_flags else cluster_port(), []
    for i in range(2):
        of_cluster, environment = told(port, i, 2)
        environment |= {"HOME": str(homes[i])} if homes else {}
        own = *flags, *(of_second if i else ()), *of_cluster
        started.append(launcher.start(*own, largest_file=largest if i else None, environment=there | environment))
    return started


def together(launcher: Launcher, *flags: str, **options: Any) -> list[Ended]:
    """Runs `begin` and returns how the processes ended."""
    return [process.wait() for process in begin(launcher, *flags, **options)]


def last_line(ended: Ended) -> str:
    return ended.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "stops", "told", "more"),
    [
        ("fedavg", [(2, ROUNDS // 2, 2), (2, ROUNDS, 1)], told_by_slurm, ("--config.plan.data=host", SCORES)),
        ("fedhe", [(2, 2, 1), (1, 3, 1), (2, ROUNDS, 2)], told_by_open_mpi, ("--config.plan.hold=disk", SCORES)),
    ],
    ids=["fedavg, rows on the host", "fedhe, states on the disk"],
)
def test_two_processes_agree_with_one(launcher, place, name, stops, told, more):
    """One process; two processes that stop and resume, also in one process; sharded networks.

    Networks are sharded over two devices per process. Examples off the devices go to the devices of
    their clients. Client states off the devices are stored and written by both processes; otherwise
    the second writes nothing.
    """
    both, one = place / f"both_{name}", place / f"one_{name}"
    held = "--config.plan.hold=disk" in more
    flags, largest = (f"--config={place / name}.py", f"--config.rounds={ROUNDS}", *more), None if held else 0
    assert launcher.run(*flags, f"--workdir={one}").status == 0
    for (_, before, _), (processes, rounds, model) in itertools.pairwise([(0, 0, 1), *stops]):
        mine = *flags, f"--workdir={both}", f"--config.rounds={rounds}", *([f"--config.plan.model={model}"] if model > 1 else [])
        pair = {"told": told, "largest": largest, "devices": model}
        first, *others = together(launcher, *mine, **pair) if processes > 1 else [launcher.run(*mine)]
        assert [ended.status for ended in (first, *others)] == [0] * processes, first.err
        assert "mean of last" in first.err
        assert (f"after round {before}" in first.err) == (before > 0)
    assert read_json(both / "environment.json")["processes"] == 2
    assert {name.split("/")[-1 if name.count("/") == 2 else 3] for name in metrics(both)[-1] if "test/" in name} >= {
        "macro_f1",
        "auroc",
    }
    plan = read_json(both / "run.json")["plan"]
    assert (plan["devices"], plan["model"]) == (2 * stops[-1][-1], stops[-1][-1])
    assert_close(both, one, ROUNDS)
    for mine, theirs in zip(metrics(both), metrics(one), strict=True):
        assert mine.keys() >= theirs.keys()  # the last round before a stop is evaluated
        np.testing.assert_allclose([mine[name] for name in theirs], list(theirs.values()), atol=1e-4, rtol=1e-4)
    assert leaves(both, ROUNDS).keys() == leaves(one, ROUNDS).keys()
    parts = sorted((both / "checkpoints").glob(f"{ROUNDS:08d}*/parts/*.safetensors"))
    assert {file.stem.partition("-")[2] for file in parts} - {""} == ({"0000", "0001"} if held else set())
    for file in [file for file in parts if "-" in file.stem]:
        (places,) = [rows for part, rows in read_tensors(file)[0].items() if part.endswith("places")]
        assert set((places % 2).tolist()) == {int(file.stem.partition("-")[2])}


def test_a_cold_process_beside_a_warm_one(launcher, place):
    """By their own clocks, they would dispatch different numbers of rounds."""
    directory, rounds = place / "cold", 7
    flags = f"--config={place / 'fedavg'}.py", f"--workdir={directory}", f"--config.rounds={rounds}"
    cold = (f"--compilation_cache={place / 'empty'}",)
    first, second = together(launcher, *flags, f"--config.evaluation.every={rounds}", of_second=cold)
    assert (first.status, second.status) == (0, 0), first.err
    assert [record["round"] for record in metrics(directory)] == list(range(1, rounds + 1))


def test_a_process_of_another_config_ends_both(launcher, place):
    """A run may go on with other rounds; processes that train together may not have others, or one waits for the rest."""
    flags = f"--config={place / 'fedavg'}.py", f"--workdir={place / 'rounds'}", "--config.rounds=2"
    first, second = together(launcher, *flags, of_second=("--config.rounds=3",), largest=None)
    assert (first.status, first.err) == (1, "error: the config of process 1" + OTHER.format("its own message says which"))
    assert second.status != 0
    assert second.err in ("", "error: the config of process 1" + OTHER.format("rounds: 2 in process 0, 3 here"))
    assert not (place / "rounds").exists()


@pytest.mark.parametrize("resumes", [False, True])
def test_a_process_of_another_file_ends_both(launcher, place, resumes):
    """Two machines may have different files of one name: each process would train by its own."""
    homes = place / "this", place / "other"
    for rate, home in zip((0.1, 0.3), homes, strict=True):
        home.mkdir(exist_ok=True)
        (home / "rates.csv").write_text("lr\n" + f"{rate}\n" * 20)
    directory = place / f"files{resumes}"
    flags = f"--config={place / 'fedavg'}.py", f"--workdir={directory}", "--config.clients.lr=from_csv(path='~/rates.csv')"
    if resumes:
        ended = launcher.run(*flags, "--config.rounds=2", environment={"HOME": str(homes[0])})
        assert ended.status == 0, ended.err
    first, second = together(launcher, *flags, "--config.rounds=4", homes=homes, largest=None)
    assert (first.status, first.err) == (1, "error: the run of process 1" + OTHER.format("its own message says which"))
    assert second.status != 0
    assert lines(directory) == (2 if resumes else 0)


def test_an_error_of_one_process_ends_both(launcher, place):
    """An error that only process 0 raises must not leave the other waiting."""
    file = place / "file"
    file.write_text("mine")
    first, second = together(launcher, f"--config={place / 'fedavg'}.py", f"--workdir={file}", largest=None)
    assert first.status == 1
    assert first.err == f"error: cannot make the run directory {file}: it is a file; give a directory\n"
    assert (second.status, last_line(second)) == (1, "error: process 0 could not open the run directory")
    assert file.read_text() == "mine"


def test_an_error_of_all_processes_is_said_by_each(launcher, place):
    """Process 0 ends last: without it, jax aborts the others in the middle of their own error."""
    flags = f"--config={place / 'fedavg'}.py", f"--workdir={place / 'few'}", "--config.plan.devices=1"
    said = "error: plan.devices=1 leaves 1 of 2 processes without a device; leave it out to take all 2"
    assert [(ended.status, last_line(ended)) for ended in together(launcher, *flags, largest=None)] == [(1, said)] * 2


def test_processes_without_a_common_directory_are_refused(launcher, place):
    """A run on disks of their own would train, and could not be resumed."""
    homes = place / "mine", place / "yours"
    for home in homes:
        home.mkdir()
    first, second = together(launcher, f"--config={place / 'fedavg'}.py", "--workdir=~/run", homes=homes, largest=None)
    said = (
        "/run of process 1 is not that of process 0; all processes need the same work directory, on a file system that they share"
    )
    assert (first.status, last_line(first)) == (1, f"error: {homes[0]}{said}")
    assert (second.status, last_line(second)) == (1, f"error: {homes[1]}{said}")
    assert not (homes[1] / "run").exists()


@pytest.mark.parametrize(
    ("method", "when"),
    [("start(self, started)", ""), ("round(self, record)", " (the last checkpoint is of round 1)"), ("end(self, ended)", COMPLETE)],
)
def test_a_callback_that_fails_in_the_first_process_leaves_its_traceback(launcher, place, method, when):
    """The second ends with a line: what it raises would take the place of the traceback."""
    directory = place / f"callback_{method[:3]}"
    file = place / f"{directory.name}.py"
    file.write_text(f"class Mine:\n    def {method}:\n        raise KeyError('mine')\n")
    flags = f"--config={place / 'fedavg'}.py", f"--workdir={directory}", f"--config.callbacks=('{file}:Mine',)", "--config.rounds=1"
    first, second = together(launcher, *flags, largest=None)
    assert (first.status, second.status) == (1, 1)
    assert re.search(r"KeyError: 'mine'.*; the traceback is in \S+/error\.txt\n$", first.err)
    assert last_line(second) == f"error: a callback failed in process 0{when}"
    assert "KeyError: 'mine'" in (directory / "error.txt").read_text()


def test_an_error_of_one_process_in_one_seed_ends_both(launcher, place):
    """The first process must not begin the next seed while the second waits for it in this one."""
    directory = place / "seeds"
    directory.mkdir()
    (directory / "seed0").write_text("mine")
    first, second = together(launcher, f"--config={place / 'fedavg'}.py", f"--workdir={directory}", "--seeds=0,1")
    assert first.status == 1
    assert f"cannot make the run directory {directory / 'seed0'}: it is a file" in first.err
    assert second.status != 0
    assert not (directory / "seed1").exists()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_signal_before_the_run_ends_a_process(launcher, place, number, status):
    """A process that reads data has joined the others, and must not wait for them."""
    (place / "slow.py").write_text(
        "import sys, time\n\ndef load():\n    print('reads', file=sys.stderr, flush=True)\n    time.sleep(100)\n"
    )
    flags = f"--config={place / 'fedavg'}.py", f"--workdir={place / 'early'}", f"--config.data.source={place / 'slow.py'}:load"
    other, stopped = begin(launcher, *flags, largest=None)
    assert stopped.until(lambda: "reads" in stopped.err, "the reading of data"), stopped.err
    stopped.send(number)
    sent = time.monotonic()
    assert stopped.wait().status == status
    assert time.monotonic() - sent < 10
    other.send(signal.SIGKILL)
    other.wait()


@pytest.mark.parametrize("dies", [0, 1])
def test_a_process_that_dies_ends_the_other_and_the_run_goes_on(launcher, place, dies):
    """Either process is killed between two checkpoints, which are written every second round.

    Process 0 coordinates and writes. Both are then restarted, until one of them is stopped.
    """
    directory = place / f"died{dies}"
    flags = f"--config={place / 'fedavg'}.py", f"--workdir={directory}"
    long = *flags, "--config.rounds=100000", "--config.evaluation.every=2"
    both = begin(launcher, *long)
    assert both[1].until(lambda: any((directory / "checkpoints").glob("0*")), "a checkpoint")
    both[dies].send(signal.SIGKILL)
    killed = time.monotonic()
    other = both[1 - dies].wait()
    assert other.status not in (0, 130)
    if dies == 1:  # without the coordinator, jax ends the others
        assert other.err.splitlines()[-1].startswith("error: another process of this run has ended, or is out of reach; ")
    assert time.monotonic() - killed < 60
    assert both[dies].wait().status == -signal.SIGKILL
    done = len(metrics(directory))
    first, second = begin(launcher, *long, largest=None)  # the second logs that it stops
    assert first.until(lambda: lines(directory) > done, "a round beyond")
    second.send(signal.SIGTERM)
    ended = first.wait()
    assert (ended.status, second.wait().status) == (130, 130), ended.err
    assert "the same command resumes from there" in ended.err
    rounds = [record["round"] for record in metrics(directory)]
    assert rounds == list(range(1, len(rounds) + 1))
    assert any((directory / "checkpoints").glob(f"{len(rounds):08d}*"))


def test_without_a_cluster_the_message_says_what_to_give(launcher, place):
    ended = launcher.run(f"--config={place / 'fedavg'}.py", f"--workdir={place / 'none'}", "--distributed")
    assert ended.status == 1
    assert ended.err == (
        "error: --distributed found no Slurm, Open MPI, Cloud TPU or Kubernetes that started this process; "
        "give --coordinator=HOST:PORT, --processes and --process in place of --distributed\n"
    )
