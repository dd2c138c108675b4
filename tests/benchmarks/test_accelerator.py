"""All accelerator pieces at toy size, and how calls end and resume."""

import json
import os
import subprocess
import sys
import time
import warnings

import pytest

from fedjax_core.storage.json_files import read_jsonl
from tests.benchmarks.accelerator import __main__ as accelerator
from tests.benchmarks.accelerator import doing, pieces
from tests.benchmarks.accelerator.pieces import Asked, Piece, Step


def test_every_piece_runs_at_toy_size_and_once(tmp_path, capsys):
    """In three calls: a single piece, all others, nothing left to do."""
    out = tmp_path / "out"
    calls = [["--only=rate"], [], []]
    states = []
    for more in calls:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # ml_collections loads files the old way
            assert accelerator.main([str(out), "--toy", "--cache=", *more]) == 0, capsys.readouterr().out
        states.append([line.split()[:3] for line in capsys.readouterr().out.splitlines()])
    names = [piece.name for piece in pieces.PIECES]
    assert states[0] == [["rate", "done", "1"]]
    assert [(name, state) for name, state, _ in states[1]] == [(name, "done") for name in names]
    assert states[2] == [[name, "done", "before"] for name in names]
    lines = read_jsonl(out / doing.RESULTS)
    assert {line["piece"] for line in lines if "step" in line} == set(names)
    assert len({(line["piece"], line.get("step"), line.get("run")) for line in lines}) == len(lines), "each once"
    of = {line["piece"]: line for line in lines if "step" in line}
    assert of["rate"]["gflops"] > 0
    assert of["published"]["seconds"][0] > 0
    assert of["fedit"]["tokens_per_second"] > 0
    runs = {line["run"].split("/")[0]: line for line in lines if "run" in line}
    assert {"pfl", "fedskc", "fedavg", "table8", "tuned", "alternation"} <= set(runs)
    assert runs["fedskc"]["rounds"] == 2
    assert runs["pfl"]["scores"]["test/global/accuracy"]["last"] >= 0
    assert (out / "table8" / "table.md").exists()
    assert not list(out.rglob("checkpoints")), "what is over needs none"


def test_without_data_pieces_are_skipped_and_what_is_wrong_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(doing, "_apart", lambda step, seconds, log, folder: (log.write_text("no device\n") and 1, ""))
    only = "--only=rate,pfl"
    assert accelerator.main([str(tmp_path), only]) == 1
    (rate,) = capsys.readouterr().out.splitlines()
    assert rate.startswith("rate       failed   tf32: no device (")
    assert not (tmp_path / doing.RESULTS).exists(), "another machine may have a device"
    assert accelerator.main([str(tmp_path), "--only=pfl"]) == 0
    assert capsys.readouterr().out == "pfl        skipped  it needs CIFAR-10: give --data=DIR\n"
    monkeypatch.setitem(pieces.NEEDED, "no_such_module.at_all", "no-such-package")
    assert accelerator.main([str(tmp_path), only]) == 2
    assert capsys.readouterr().out == "error: packages are missing: pip install no-such-package\n"
    for arguments, said in (
        (["--only=rates"], "there is no piece 'rates'; there are rate,"),
        (["--seconds=0", "--toy"], "at least 1,"),
        (["--seconds=214"], "--seconds=214 must be at least 215, for every step to begin"),
        (["--seconds=89", "--only=rate,pfl"], "at least 90,"),
    ):
        with pytest.raises(SystemExit) as ended:
            accelerator.main([str(tmp_path), *arguments])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


def test_cifar10_is_found_where_it_lies(tmp_path):
    assert pieces.cifar10(tmp_path) is None
    (tmp_path / "tfds" / "cifar10").mkdir(parents=True)
    assert pieces.cifar10(tmp_path) == ("tfds:cifar10", str(tmp_path / "tfds"))
    assert pieces.cifar10(tmp_path / "tfds") == ("tfds:cifar10", str(tmp_path / "tfds"))
    (tmp_path / "cifar-10-binary.tar.gz").touch()
    assert pieces.cifar10(tmp_path) == ("cifar10", str(tmp_path))
    steps = [step for piece in pieces.PIECES for step in piece.steps(Asked(tmp_path, ("cifar10", "DIR")))]
    assert len({(step.directory, step.name, step.arguments) for step in steps}) == len(steps)
    assert sum("--config.data.dir=DIR" in step.arguments or "--set=data.dir=DIR" in step.arguments for step in steps) == 29


def test_a_step_that_fails_is_tried_after_all_others_and_given_up(tmp_path, monkeypatch, capsys):
    made, tried = {"a": ("bad", "good"), "b": ("late",)}, []

    def apart(step, seconds, log, folder):
        tried.append(step.name)
        log.write_text("broken\n")
        return (1, "") if step.name == "bad" else (0, "{}")

    steps = lambda name: lambda asked: iter([Step(one, "m", (), 1) for one in made[name]])
    monkeypatch.setattr(accelerator, "PIECES", tuple(Piece(name, name, steps(name)) for name in made))
    monkeypatch.setattr(doing, "_apart", apart)
    assert accelerator.main([str(tmp_path)]) == 1
    assert tried == ["bad", "good", "late", "bad"]
    states = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert states == [["a", "again"], ["b", "done"], ["a", "failed"]]
    assert accelerator.main([str(tmp_path)]) == 1
    assert len(tried) == 4, "given up, in later calls too"
    assert ".log), given up after 2 tries\n" in capsys.readouterr().out
    lines = read_jsonl(tmp_path / doing.RESULTS)
    assert [(line["step"], "failed" in line) for line in lines] == [("bad", True), ("good", False), ("late", False), ("bad", True)]


def test_results_go_on_where_they_or_the_data_lie_elsewhere(tmp_path, monkeypatch, capsys):
    found = []
    monkeypatch.setattr(doing, "_apart", lambda step, seconds, log, folder: (found.append((folder, step)), (doing.STOPPED, ""))[1])
    for at in ("here", "there"):
        (tmp_path / at).mkdir()
        (tmp_path / at / "cifar-10-binary.tar.gz").touch()
        assert accelerator.main([str(tmp_path / "out"), "--only=pfl", f"--data={tmp_path / at}"]) == accelerator.MORE
        assert (tmp_path / "out" / "data").resolve() == tmp_path / at
    assert found[0] == found[1]
    assert found[0][0] == tmp_path / "out"
    assert "--set=data.dir=data" in found[0][1].arguments
    capsys.readouterr()
    (tmp_path / "full" / "data").mkdir(parents=True)
    assert accelerator.main([str(tmp_path / "full"), f"--data={tmp_path / 'here'}"]) == 2
    assert "full/data is in the way of a link to" in capsys.readouterr().out


def test_the_script_starts_beside_other_packages_of_these_names(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").write_text("raise SystemExit('another')\n")
    script, environment = doing.ROOT / "tests" / "benchmarks" / "accelerator.sh", {**os.environ, "PYTHON": sys.executable}
    ended = subprocess.run(["sh", script, "out", "--only=no"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "there is no piece 'no'" in ended.stderr


SLEEPS = """
import json, os, sys, time
print(json.dumps({"x": 1, "at": os.getcwd(), "own": os.getsid(0) == os.getpid()}), flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


def test_a_call_ends_in_time_and_the_next_one_goes_on(tmp_path, monkeypatch, capsys):
    """Steps in separate processes: a measurement, a failing one, a run that stops and resumes."""
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doing, "RESERVE", 0.2)
    monkeypatch.setattr(doing, "BEGINS", 0.3)
    monkeypatch.setattr(doing, "WHOLE", 0.5)
    measured, fails = Step("a", "sleeps", ("0", "0"), 0), Step("b", "sleeps", ("0", "3"), 0)
    long = Step("run", "sleeps", ("60", "0"), directory=tmp_path / "run")
    goes_on = [measured, long]

    def call(seconds, *steps, need=None):
        piece = Piece("x", "an x", lambda asked: iter(steps))
        return doing.Doing(Asked(tmp_path / "out"), time.monotonic() + seconds, print).piece(piece)

    began = time.monotonic()
    assert call(2.0, *goes_on) == "more"
    assert time.monotonic() - began < 30
    assert capsys.readouterr().out == "x          more     1 of 2 steps are done; an x\n"
    assert call(0.1, *goes_on) == "more", "too late for a run to begin"
    slow = Step("slow", "sleeps", ("60", "0"), 0)
    assert call(4.0, Step("d", "sleeps", ("2.2", "0"), 0), slow) == "more", "less than half a call was left for it"
    assert call(5.0, measured, long._replace(arguments=("0", "3"), name="r")) == "again"
    assert call(5.0, Step("c", "sleeps", ("0", "0"), 100)) == "more", "a measurement that may take longer does not begin"
    assert call(5.0, measured, fails) == "again"
    assert call(1.0, slow) == "again", "a whole call was too short for it"
    assert "slow: not measured in " in capsys.readouterr().out
    assert call(5.0, measured, long._replace(arguments=("0", "0"))) == "done"
    assert call(0.0, *goes_on) == "done"
    lines = read_jsonl(tmp_path / "out" / doing.RESULTS)
    assert [(line["step"], line.get("x"), "failed" in line) for line in lines] == [
        ("a", 1, False),
        ("d", 1, False),
        ("r", None, True),
        ("b", None, True),
        ("slow", None, True),
        ("run", None, False),
    ]
    assert (lines[0]["at"], lines[0]["own"]) == (str(tmp_path / "out"), True)


def test_a_measurement_prints_one_line_or_fails_in_one(capsys):
    from tests.benchmarks.accelerator import steps

    assert steps.main([json.dumps({"what": "rate", "toy": False, "dtype": "tf32", "cache": ""})]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "jax sees no accelerator here; --toy tries the pieces on a CPU" in said.err
    assert sys.modules["jax"].default_backend() == "cpu"


def test_lanes_are_timed_from_the_start(tmp_path, monkeypatch):
    """A call that was ended left finished runs, which would take no time."""
    from tests.benchmarks.accelerator import steps

    folder = tmp_path / "lanes1"
    (folder / "runs").mkdir(parents=True)

    def run(table, place, *given, **options):
        raise ValueError(f"{os.path.exists(place)}")

    monkeypatch.setattr(steps.tables, "run", run)
    with pytest.raises(ValueError, match="False"):
        steps.lanes(True, 1, str(folder))
