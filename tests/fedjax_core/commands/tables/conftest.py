"""Runs that take no time, for tests of searches."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from fedjax_core import experiment
from fedjax_core.commands.tables import runner
from fedjax_core.reporting import reporter as report
from fedjax_core.storage.json_files import read_jsonl
from tests.fedjax_core.commands.tables.searches import BY, quality


@pytest.fixture
def fake_search(monkeypatch):
    """Runs that take no time and go on where they were.

    Its `done`: (row, rate, rounds) of each; its `drawn`: whether each draws figures; its `act` is
    called before.
    """
    made = SimpleNamespace(done=[], drawn=[], score=quality, act=lambda name, config: None)

    def execute(config, workdir, progress, *, data, console, draws):
        del progress, data, console
        place = Path(workdir)
        made.done.append((place.name.partition("--")[0], config.optimizer.lr, config.rounds))
        made.drawn.append(draws)
        made.act(place.name, config)
        place.mkdir(parents=True, exist_ok=True)
        there = len(read_jsonl(place / "metrics.jsonl")) if (place / "metrics.jsonl").exists() else 0
        options = {"progress": False, "tensorboard": False, "select": config.evaluation.get("select")}
        with report.Reporter(workdir, config.rounds, **options) as reporter:
            reporter.resume(there)
            for i in range(there + 1, config.rounds + 1):
                score = made.score(config)
                reporter.log(
                    {"round": i, "seconds": 2.0, "test/global/accuracy": score, BY: score, "validation/global/loss": -score}
                )
            reporter.note(bytes_down=2000.0, bytes_up=1500.0, peak_memory_bytes=1)
        return SimpleNamespace(stopped=False)

    monkeypatch.setattr(experiment, "execute", execute)
    monkeypatch.setattr(experiment, "dataset", lambda config: None)
    monkeypatch.setattr(runner, "_release_memory", lambda: None)
    return made
