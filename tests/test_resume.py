"""A run that is killed at any moment and resumed equals an uninterrupted one, bit for bit."""

import functools
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import read_json, read_jsonl

ROUNDS = 12
CONFIGS = {  # a checkpoint every second round
    "fedavg": """
from configs import base

def get_config():
    config = base.get_config("smoke")
    config.models = ("mlp(widths=(16,))",)
    config.method = dict(name="fedavg", epochs=1, batch=32)
    config.rounds, config.evaluation.every, config.checkpoint.seconds = 12, 2, 0.0
    return config
""",
    "fedhe": """
from configs import base

def get_config():
    config = base.get_config("smoke")
    config.models = ("mlp(widths=(16,))", "mlp(widths=(12, 12))")
    config.method = dict(name="fedhe", epochs=1, batch=32)
    config.evaluation.scopes = ("own",)
    config.dropout = 0.2
    config.rounds, config.evaluation.every, config.checkpoint.seconds = 12, 2, 0.0
    return config
""",
    "fedbuff": """
from configs import base

def get_config():
    config = base.get_config("smoke")
    config.models = ("mlp(widths=(16,))",)
    config.method = dict(name="fedavg", epochs=1, batch=32, weights="uniform")
    config.schedule = "fedbuff(buffer=2)"
    config.devices.profile = "lognormal(examples_per_second=20, sigma=1.0)"
    config.rounds, config.evaluation.every, config.checkpoint.seconds = 12, 2, 0.0
    return config
""",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("resume")
    for name, text in CONFIGS.items():
        (place / f"{name}.py").write_text(text)
    return place


@pytest.fixture(scope="module")
def command(place):
    """Returns the flags of the command line for a config, a directory and further flags."""
    return lambda name, directory, *flags: (f"--config={place / name}.py", f"--workdir={place / directory}", *flags)


@pytest.fixture(scope="module")
def alone(launcher, command, place):
    """Returns the directory of an uninterrupted run of a config; each runs once."""
    made = {}

    def run(name: str, *flags: str) -> Path:
        key = name, flags
        if key not in made:
            ended = launcher.run(*command(name, f"alone{len(made)}", *flags))
            assert ended.status == 0, ended.err
            made[key] = place / f"alone{len(made)}"
        return made[key]

    return run


def leaves(directory: Path, rounds: int = ROUNDS) -> dict[str, np.ndarray]:
    """Returns the arrays of the last checkpoint, which is that of the last round."""
    checkpoints = Checkpoints(directory / "checkpoints")
    assert checkpoints.latest() == rounds
    (place,) = [p for p in (directory / "checkpoints").iterdir() if p.name.split("-")[0] == f"{rounds:08d}"]
    like = {entry["path"]: np.zeros(entry["shape"], entry["dtype"]) for entry in read_json(place / "leaves.json")}
    kept: dict[str, dict[int, np.ndarray]] = {}
    for part in checkpoints.read_parts(rounds):  # client states, once per write
        (places,) = [rows for name, rows in part.items() if name.endswith("/places")]
        for name, rows in part.items():
            kept.setdefault(name, {}).update(zip(places.tolist(), rows, strict=True))
    return checkpoints.restore(rounds, like)[0] | {
        name: np.stack([rows[place] for place in sorted(rows)]) for name, rows in kept.items()
    }


def metrics(directory: Path) -> list[dict[str, Any]]:
    times = {"seconds", "compile_seconds"}
    return [{k: v for k, v in record.items() if k not in times} for record in read_jsonl(directory / "metrics.jsonl")]


def assert_same(one: Path, other: Path, rounds: int = ROUNDS) -> None:
    mine, theirs = leaves(one, rounds), leaves(other, rounds)
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name, strict=True)
    assert metrics(one) == metrics(other)


def assert_close(one: Path, other: Path, rounds: int = ROUNDS) -> None:
    mine, theirs = leaves(one, rounds), leaves(other, rounds)
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_allclose(mine[name], theirs[name], atol=1e-5, rtol=1e-5, err_msg=name)
    assert [record["round"] for record in metrics(one)] == [record["round"] for record in metrics(other)]


def lines(directory: Path) -> int:
    file = directory / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def checkpoints(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory / "checkpoints"))
    except FileNotFoundError:
        return set()


MOMENTS = {  # (directory, initial numbers of lines and checkpoints) -> whether the moment has come
    "before the first round": lambda directory, lines_before, saved: (directory / "config.json").exists(),
    "after some rounds": lambda directory, lines_before, saved: lines(directory) > lines_before,
    "while it writes a checkpoint": lambda directory, lines_before, saved: any(
        name.startswith(".unfinished") for name in checkpoints(directory) - saved
    ),
    "after a checkpoint": lambda directory, lines_before, saved: any(n[0] != "." for n in checkpoints(directory) - saved),
}


@pytest.mark.parametrize(
    ("name", "flags", "moments"),
    [
        ("fedavg", (), list(MOMENTS)),
        (
            "fedhe",
            ("--config.plan.hold=disk", "--config.plan.data=disk"),
            ["while it writes a checkpoint", "after a checkpoint"],
        ),
        ("fedbuff", (), ["after some rounds", "after a checkpoint"]),
    ],
    ids=["fedavg", "fedhe, states and data on the disk", "fedbuff, clients in flight"],
)
def test_killed_at_any_moment_it_ends_bit_for_bit_the_same(launcher, command, alone, place, name, flags, moments):
    directory = place / f"killed{len(list(place.iterdir()))}"
    kills = 0
    for moment in moments:
        come = functools.partial(MOMENTS[moment], directory, lines(directory), checkpoints(directory))
        process = launcher.start(*command(name, directory, *flags))
        if process.until(come, moment):
            process.send(signal.SIGKILL)
        kills += process.wait().status == -signal.SIGKILL
    assert kills >= min(2, len(moments))  # a finished run cannot be killed: a late moment may not come
    ended = launcher.run(*command(name, directory, *flags))
    assert ended.status == 0, ended.err
    assert_same(directory, alone(name, *flags))
    assert len(read_json(directory / "environment.json")["resumed"]) >= kills


@pytest.mark.parametrize(("number", "where"), [(signal.SIGINT, "host"), (signal.SIGTERM, "device")], ids=["SIGINT", "SIGTERM"])
def test_interrupted_it_writes_a_checkpoint_and_says_how_to_go_on(launcher, command, alone, place, number, where):
    """Also while a thread prepares the examples of later rounds."""
    directory = place / f"interrupted{number}"
    flags = command("fedavg", directory, "--config.checkpoint.seconds=1e9", f"--config.plan.data={where}")
    process = launcher.start(*flags)
    assert process.until(lambda: lines(directory) >= 1, "a round")
    process.send(number)
    ended = process.wait()
    assert ended.status == 130, ended.err
    (said,) = [line for line in ended.err.splitlines() if line.startswith("stopped")]
    assert said == ended.err.splitlines()[-1]
    (saved,) = checkpoints(directory)
    assert f"after round {int(saved)}; the same command resumes from there" in said
    assert "Traceback" not in ended.err
    ended = launcher.run(*flags)
    assert ended.status == 0, ended.err
    assert f"after round {int(saved)}" in ended.err
    assert_same(directory, alone("fedavg"))


def test_rounds_can_be_extended(launcher, command, alone, place):
    """Also with two architectures on the device, bit for bit."""
    directory = place / "extended"
    assert launcher.run(*command("fedhe", directory, "--config.rounds=4")).status == 0
    assert len(metrics(directory)) == 4
    ended = launcher.run(*command("fedhe", directory))
    assert ended.status == 0, ended.err
    assert "after round 4" in ended.err
    assert_same(directory, alone("fedhe"))
    assert read_json(directory / "config.json")["rounds"] == ROUNDS


def test_a_finished_run_called_again_changes_no_result(launcher, command, place, alone):
    directory = alone("fedavg")

    def results() -> dict[str, bytes]:
        names = [directory / n for n in ("metrics.jsonl", "metrics.csv", "config.json", "run.json", "accuracy.csv")]
        return {str(p): p.read_bytes() for p in [*names, *(directory / "checkpoints").rglob("*")] if p.is_file()}

    before, scores = results(), read_json(directory / "summary.json")["metrics"]
    assert len(before) > 8
    ended = launcher.run(*command("fedavg", directory))
    assert ended.status == 0, ended.err
    assert results() == before
    assert read_json(directory / "summary.json")["metrics"] == scores
    assert "mean of last" in ended.err


def devices(number: int) -> dict[str, str]:
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={number}"}


@pytest.fixture(scope="module")
def on_two_devices(launcher, command, place) -> tuple[Path, Path]:
    """Returns the directories of a whole run on two devices, and of its first half."""
    straight, half = place / "two", place / "half of two"
    assert launcher.run(*command("fedavg", straight), environment=devices(2)).status == 0
    assert launcher.run(*command("fedavg", half, "--config.rounds=6"), environment=devices(2)).status == 0
    return straight, half


def test_the_recorded_plan_is_taken_up_again(launcher, command, place, on_two_devices):
    """Two devices first; four, the default then, keep the plan and so every bit."""
    straight, resumed = on_two_devices[0], shutil.copytree(on_two_devices[1], place / "resumed")
    plan = read_json(straight / "run.json")["plan"]
    assert plan["devices"] == 2
    ended = launcher.run(*command("fedavg", resumed), environment=devices(4))
    assert ended.status == 0, ended.err
    assert read_json(resumed / "run.json")["plan"] == plan
    assert "plan was" not in ended.err
    assert_same(resumed, straight)


def test_fewer_devices_are_said_aloud_and_agree_to_rounding(launcher, command, place, on_two_devices):
    straight, resumed = on_two_devices[0], shutil.copytree(on_two_devices[1], place / "two then one")
    ended = launcher.run(*command("fedavg", resumed), environment=devices(1))
    assert ended.status == 0, ended.err
    assert "the client loop's plan was Plan(chunk=1, devices=2, model=1), it is Plan(chunk=1, devices=1, model=1) now" in ended.err
    assert read_json(resumed / "run.json")["plan"] == {"chunk": 1, "devices": 1, "model": 1}
    assert_close(resumed, straight)


def test_a_plan_that_is_asked_for_wins_and_is_said_aloud(launcher, command, place, on_two_devices):
    straight, resumed = on_two_devices[0], shutil.copytree(on_two_devices[1], place / "asked")
    ended = launcher.run(*command("fedavg", resumed, "--config.plan.devices=1", "--config.plan.chunk=3"), environment=devices(2))
    assert ended.status == 0, ended.err
    assert "it is Plan(chunk=3, devices=1, model=1) now (as asked)" in ended.err
    assert_close(resumed, straight)
