"""Two processes with `jax.distributed` on CPU compute what one computes; only process 0 touches the disk."""

import itertools
import socket
from pathlib import Path

import numpy as np
import pytest

from fedjax_core.storage.workdir import read_json
from tests.launch import Ended, Launcher
from tests.test_resume import CONFIGS, assert_close, leaves, metrics

ROUNDS = 4


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


def together(launcher: Launcher, *flags: str, processes: int = 2, of_second: tuple[str, ...] = ()) -> list[Ended]:
    """The same command in several processes. All but the first fail if they write a byte to any file, standard error included."""
    flags = *flags, f"--coordinator=127.0.0.1:{free_port()}", f"--processes={processes}"
    started = [
        launcher.start(
            *flags, *(of_second if i else ()), f"--process={i}", largest_file=0 if i else None, environment={"XLA_FLAGS": ""}
        )
        for i in range(processes)
    ]
    return [process.wait() for process in started]


@pytest.mark.parametrize(("name", "stops"), [("fedavg", [ROUNDS // 2, ROUNDS]), ("fedhe", [ROUNDS])], ids=["fedavg", "fedhe"])
def test_two_processes_agree_with_one(launcher, place, name, stops):
    """At once by one process; by two, which stop in between and resume."""
    both, one = place / f"both_{name}", place / f"one_{name}"
    flags = f"--config={place / name}.py", f"--config.rounds={ROUNDS}"
    assert launcher.run(*flags, f"--workdir={one}").status == 0
    for before, rounds in itertools.pairwise([0, *stops]):
        first, second = together(launcher, *flags, f"--workdir={both}", f"--config.rounds={rounds}")
        assert (first.status, second.status) == (0, 0), first.err
        assert "mean of last" in first.err
        assert (f"after round {before}" in first.err) == (before > 0)
    assert read_json(both / "environment.json")["processes"] == 2
    assert read_json(both / "run.json")["plan"]["devices"] == 2
    assert_close(both, one, ROUNDS)
    for mine, theirs in zip(metrics(both), metrics(one), strict=True):
        assert mine.keys() == theirs.keys()
        np.testing.assert_allclose(list(mine.values()), list(theirs.values()), atol=1e-4, rtol=1e-4)
    assert leaves(both, ROUNDS).keys() == leaves(one, ROUNDS).keys()


def test_a_cold_process_beside_a_warm_one(launcher, place):
    """The first waits for the second's compiling, so by their clocks they would not do the same number of rounds at once."""
    directory, rounds = place / "cold", 7
    flags = f"--config={place / 'fedavg'}.py", f"--workdir={directory}", f"--config.rounds={rounds}"
    first, second = together(launcher, *flags, f"--config.evaluation.every={rounds}", of_second=("--compilation_cache=",))
    assert (first.status, second.status) == (0, 0), first.err
    assert [record["round"] for record in metrics(directory)] == list(range(1, rounds + 1))


def test_an_error_of_one_process_ends_both(launcher, place):
    """What only process 0 meets, such as a directory that it cannot have, must not leave the other one waiting."""
    file = place / "file"
    file.write_text("mine")
    first, second = together(launcher, f"--config={place / 'fedavg'}.py", f"--workdir={file}")
    assert first.status == 1
    assert first.err == f"error: cannot make the run directory {file}: it is a file; give a directory\n"
    assert second.status != 0
    assert file.read_text() == "mine"
