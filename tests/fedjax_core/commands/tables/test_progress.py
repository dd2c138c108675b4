"""What a table says while it runs."""

import contextlib
import re
import threading
import time
from types import SimpleNamespace

from fedjax_core.commands import tables
from fedjax_core.commands.tables import progress, runner
from tests.fedjax_core.commands.small_tables import definition, run


def test_the_time_left_is_reported(tmp_path, fake, monkeypatch):
    times = iter(range(0, 10_000, 30))
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: float(next(times))))
    monkeypatch.setattr(runner, "RunBeat", lambda *_: contextlib.nullcontext())  # asks for the time, too
    _, said = run(tmp_path, seeds=[0])
    assert said[1] == "1/4  FedAvg / IID / seed 0"
    assert said[2] == "2/4  Uniform & co. / IID / seed 0  (about 1 min 30 s left)"
    assert said[4] == "4/4  Uniform & co. / Skewed / seed 0  (about 30 s left)"


def test_a_long_run_says_how_far_it_is(tmp_path, fake, monkeypatch):
    """Without a terminal a run would be silent until its end."""
    monkeypatch.setattr(progress, "SILENCE", 0.01)
    said: list[str] = []

    def act(name):
        del name
        before = len(said)
        start = time.monotonic()
        while len(said) < before + 2 and time.monotonic() - start < 60:
            time.sleep(0.005)

    fake.act = act
    tables.run(definition(), str(tmp_path), "smoke", only=["fedavg/iid", "uniform-co/iid"], seeds=[0], say=said.append)
    first = next(line for line in said if line.startswith("1/2  FedAvg / IID / seed 0: "))
    assert re.fullmatch(r"1/2  FedAvg / IID / seed 0: round 0/3 after \d+ s", first)
    second = next(line for line in said if line.startswith("2/2  Uniform & co. / IID / seed 0: "))
    assert re.fullmatch(r"2/2  Uniform & co\. / IID / seed 0: round 0/3 after \d+ s  \(about .* left\)", second)
    assert not [thread for thread in threading.enumerate() if "_talk" in thread.name], "they end with their runs"


def test_time_left_is_of_this_runs_pace_once_it_has_one(tmp_path, monkeypatch):
    (first, second, *_) = tables.build_cells(definition(), "smoke", [0])
    times = iter((0.0, 10.0, 20.0))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(times)))
    jobs = [progress.Job(cell, cell.config.rounds) for cell in (first, second)]
    beat = progress.RunBeat(tmp_path, jobs, "1/4", progress.Pace(), None)
    folder = tmp_path / "runs" / first.name
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("{}\n")
    assert beat.line() == f"1/4  {first}: round 1/3 after 10 s"
    (folder / "metrics.jsonl").write_text("{}\n{}\n")
    assert beat.line() == f"1/4  {first}: round 2/3 after 20 s  (about 40 s left)"  # 10 s here, 30 s for the other


def test_reading_many_finished_runs_is_not_silent(tmp_path, fake, monkeypatch):
    run(tmp_path, seeds=[0])
    assert run(tmp_path, seeds=[0])[1][0] == "4 of 4 runs are finished, 0 to do"
    monkeypatch.setattr(runner, "SILENCE", -1.0)
    _, said = run(tmp_path, seeds=[0])
    assert said[:2] == ["reading 1/4  FedAvg / IID / seed 0", "reading 2/4  Uniform & co. / IID / seed 0"]


def test_reading_and_writing_that_take_long_are_not_silent(tmp_path, fake, monkeypatch):
    run(tmp_path, seeds=[0])
    said: list[str] = []

    def slow(function, what):
        def waits(*arguments):
            start = time.monotonic()
            while not any(line.startswith(what) for line in said) and time.monotonic() - start < 60:
                time.sleep(0.005)
            return function(*arguments)

        return waits

    monkeypatch.setattr(progress, "SILENCE", 0.01)
    monkeypatch.setattr(runner, "read_result", slow(runner.read_result, "reading 1/4  FedAvg / IID / seed 0, after "))
    monkeypatch.setattr(runner, "write_tables", slow(runner.write_tables, "writing the tables, after "))
    began = time.monotonic()
    tables.run(definition(), str(tmp_path), "smoke", seeds=[0], say=said.append)
    assert time.monotonic() - began < 60, "both were said"
