"""The loop of a run: the trace of one round, processes whose clocks differ, interrupted evaluations, several seeds."""

import contextlib
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from configs import fedavg
from fedjax_core import distributed, experiment
from fedjax_core.engine.simulator import Diverged
from fedjax_core.run import Interrupted, RunSettings, checkpointing, loop, training_run
from fedjax_core.run.training_run import TrainingRun
from fedjax_core.storage.json_files import read_json, read_jsonl, write_json

ROOT = Path(__file__).parents[3]


class Heard:
    rounds: ClassVar[list[int]] = []

    def round(self, record):
        self.rounds.append(record["round"])


def test_one_round_is_traced_and_nothing_else_changes(tmp_path: Path):
    """The profiler has a process of its own: after thousands of programs it may end the one that it is in."""
    command = [sys.executable, "-m", "methods.main", "--config=configs/fedavg.py:smoke", f"--workdir={tmp_path / 'traced'}"]
    options = ["--config.rounds=3", "--config.profile=True", f"--config.callbacks=('{__name__}:Heard',)"]
    subprocess.run([*command, *options], cwd=ROOT, check=True, capture_output=True, timeout=300)
    (trace,) = (tmp_path / "traced").glob("profile/**/*.xplane.pb")
    assert trace.stat().st_size > 1000
    config = fedavg.get_config("smoke")
    config.rounds = 3
    config.callbacks = (f"{__name__}:Heard",)
    experiment.execute(config, str(tmp_path / "plain"), progress=False)
    assert not list((tmp_path / "plain").glob("profile/**/*.xplane.pb"))
    traced, plain = (read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("traced", "plain"))
    assert len(plain) == 3
    losses = [[record["train/loss"] for record in records] for records in (traced, plain)]
    np.testing.assert_allclose(*losses, rtol=1e-5)  # programs for a user's process are optimised further
    assert Heard.rounds == [1, 2, 3]


class AskedAtOnce:
    def start(self, started):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("asked", [False, True])
def test_a_run_that_diverges_says_whether_a_signal_came(tmp_path: Path, asked):
    config = fedavg.get_config("smoke")
    config.optimizer.lr = 1e30
    config.callbacks = (f"{__name__}:AskedAtOnce",) if asked else ()
    with pytest.raises(Diverged) as found:
        experiment.execute(config, str(tmp_path), progress=False)
    assert found.value.stopped is asked


class Process(threading.local):
    """Each thread is a process: which one, and what its clock says."""

    number = 0
    clock = 0.0


@pytest.mark.parametrize("draw", range(2))
def test_processes_whose_clocks_differ_do_the_same(monkeypatch, draw):
    """The first is cold, the second warm, and no round takes as long as another: both dispatch the same rounds at once, and write
    checkpoints after the same ones, those that the first alone would choose."""
    cold, warm = np.random.default_rng(draw).lognormal((-1.5, -4.0), 1.0, (200, 2)).T * training_run.DISPATCH_SECONDS
    cold[0] += 30.0
    here, meeting, told = Process(), threading.Barrier(2), [None, None]

    def seen(numbers):
        told[here.number] = numbers
        meeting.wait(30)
        every = np.asarray(told, np.int64)
        meeting.wait(30)
        return every

    def of_process(number: int) -> tuple[list[int], list[int]]:
        here.number, here.clock, dispatched, saved = number, 0.0, [], []
        callbacks: Any = SimpleNamespace(failed=None, stop_reason="", rounds=lambda *given: None)
        quiet: Any = SimpleNamespace(
            **{"reason": "", "exhausted_reason": "", "is_requested": False, "writer": True},
            **dict.fromkeys(("log", "update", "warn_if_undefined"), lambda *given: None),
        )
        settings = RunSettings(seed=0, rounds=60, eval_every=20, checkpoint_seconds=2.0)
        checkpoints: Any = SimpleNamespace(saved=saved)
        run = TrainingRun(quiet, quiet, settings, quiet, 0, checkpoints, quiet, quiet, quiet, callbacks, quiet)
        for stop_round in run.round_boundaries():
            n, pace = stop_round - run.done, (cold, warm)[number][run.done]
            dispatched.append(n)
            here.clock += n * pace
            records: list[Any] = [{"round": run.done + i} for i in range(1, n + 1)]
            run.log(run.accept_rounds((quiet, records), n * pace, 0.0))
            run.checkpoint_if_due()
        return dispatched, saved

    monkeypatch.setattr(checkpointing, "record_plan", lambda *given: None)
    monkeypatch.setattr(
        checkpointing, "save_checkpoint", lambda sim, checkpoints, state, done, before: checkpoints.saved.append(done)
    )
    monkeypatch.setattr(training_run, "time", SimpleNamespace(monotonic=lambda: here.clock))
    with monkeypatch.context() as each_by_itself:
        each_by_itself.setattr(distributed, "allgather", lambda numbers: np.asarray(numbers, np.int64)[None])
        alone = [of_process(number) for number in range(2)]
    assert alone[0] != alone[1]
    monkeypatch.setattr(distributed, "allgather", seen)
    with ThreadPoolExecutor(2) as processes:
        first, second = processes.map(of_process, range(2))
    assert first == second == alone[0]
    assert sum(first[0]) == 60


def test_a_resume_that_is_refused_changes_nothing(tmp_path: Path):
    config = fedavg.get_config("smoke")
    config.models, config.rounds = ("mlp(widths=(4,))",), 1
    experiment.execute(config, str(tmp_path), progress=False)
    recorded = read_json(tmp_path / "run.json")
    recorded["partition"]["hash"] = "0" * 64
    write_json(tmp_path / "run.json", recorded)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    config.rounds = 2
    with pytest.raises(ValueError, match="holds a run on other data"):
        experiment.execute(config, str(tmp_path), progress=False)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"} == before


class Scored:
    rounds: ClassVar[list[int]] = []

    def evaluation(self, record):
        self.rounds.append(record["round"])


@pytest.mark.parametrize("last", [False, True], ids=["in between", "of the last round"])
def test_an_evaluation_that_takes_long_says_so_and_can_be_stopped(tmp_path: Path, monkeypatch, last):
    """The same command goes on with it: nothing is lost, and nothing differs from a run that was left alone."""
    monkeypatch.setattr(training_run, "DISPATCH_SECONDS", 0.0)
    monkeypatch.setattr(training_run, "PROGRESS_SECONDS", 0.0)
    config = fedavg.get_config("smoke")
    config.rounds, config.evaluation.every = 2 if last else 4, 2
    config.callbacks = (f"{__name__}:Scored",)
    said: list[str] = []

    def stopping(text: str) -> None:
        said.append(text)
        if text.startswith("evaluation after round 2: ") and sum(one.startswith("evaluation") for one in said) == 1:
            signal.raise_signal(signal.SIGTERM)

    Scored.rounds.clear()
    with pytest.raises(Interrupted, match=r"^in the evaluation after round 2; the same command resumes with it$"):
        experiment.execute(config, str(tmp_path / "stopped"), progress=False, console=stopping)
    assert [record["round"] for record in read_jsonl(tmp_path / "stopped" / "metrics.jsonl")] == [1, 2]
    assert Scored.rounds == []
    finished = experiment.execute(config, str(tmp_path / "stopped"), progress=False)
    assert Scored.rounds == list(range(2, config.rounds + 1, 2))
    alone = experiment.execute(config, str(tmp_path / "alone"), progress=False)
    records = [read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("stopped", "alone")]
    times = ("seconds", "compile_seconds")
    one, other = ([{k: v for k, v in record.items() if k not in times} for record in run] for run in records)
    assert one == other
    assert (tmp_path / "stopped" / "clients.csv").read_text() == (tmp_path / "alone" / "clients.csv").read_text()
    for series in zip(finished.history["test/global/accuracy"], alone.history["test/global/accuracy"], strict=True):
        np.testing.assert_array_equal(*series)


class FakeRun:
    """A run of `run_seeds` that pauses at a round, and writes down what it gets."""

    simulator, state = None, None

    def __init__(self, heard: dict[str, Any], name: str, stops: tuple[int, ...]):
        self.heard, self.name, self.stops, self.done = heard, name, stops, 0

    is_over = property(lambda self: self.done == self.stops[-1])
    scores_clients_in = lambda self, round_num: False

    def next_stop(self):
        return min(stop for stop in self.stops if stop > self.done)

    def accept_rounds(self, result, seconds, compile_seconds):
        self.heard.setdefault(self.name, []).append((result, seconds, compile_seconds))
        self.done += result
        return [{"round": self.done}]

    complete = lambda self, records: None
    finish = lambda self: self.name


def seeds(monkeypatch, heard: dict[str, Any], runs: dict[str, tuple], advance: Any) -> Any:
    """What `run_seeds` returns of fake runs: by name their stops, and the error by which they close."""

    @contextlib.contextmanager
    def open_run(name, stops, closing, settings, stop):
        try:
            yield FakeRun(heard, name, stops)
        except BaseException as error:
            heard[name] = error
            if closing is not None:
                raise closing from None
            raise

    monkeypatch.setattr(loop, "open_run", open_run)
    seed_runs: Any = [(name, *given, None) for name, given in runs.items()]
    vmapped: Any = SimpleNamespace(advance_seeds=advance)
    return loop.run_seeds(seed_runs, vmapped)


def test_a_second_signal_ends_each_seed_as_it_would_alone(monkeypatch):
    """Also the seed after one that fails as it ends."""
    heard: dict[str, Any] = {}

    def advance(*given):
        raise KeyboardInterrupt

    runs = {"a": ((1,), None), "b": ((1,), OSError("no space left")), "c": ((1,), None)}
    with pytest.raises(KeyboardInterrupt):
        seeds(monkeypatch, heard, runs, advance)
    assert {name: type(error) for name, error in heard.items()} == dict.fromkeys("abc", KeyboardInterrupt)


def test_seeds_train_together_to_the_next_stop_of_any(monkeypatch):
    heard: dict[str, Any] = {}
    monkeypatch.setattr(loop, "measure_time", lambda work: (work(), 20.0, 10.0))
    runs = {"a": ((1,), None), "b": ((3, 10), None), "c": ((10,), None)}
    outcomes = seeds(monkeypatch, heard, runs, lambda together, n, scored: [n] * len(together))
    assert outcomes == ["a", "b", "c"]
    rounds = {name: [n for n, *_ in calls] for name, calls in heard.items()}
    assert rounds == {"a": [1], "b": [1, 2, 7], "c": [1, 2, 7]}
    assert heard["a"] == [(1, 20.0, 10.0)]


def test_a_seed_that_fails_lets_the_others_go_on(monkeypatch):
    heard: dict[str, Any] = {}
    error = ValueError("of one seed")
    results = lambda together, n, scored: [error, n] if len(together) == 2 else [n]
    outcomes = seeds(monkeypatch, heard, {"a": ((2,), None), "b": ((1, 2), None)}, results)
    assert outcomes == [error, "b"]
    assert heard["a"] is error
    assert [n for n, *_ in heard["b"]] == [1, 1]
