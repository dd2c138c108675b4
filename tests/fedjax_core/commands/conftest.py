"""Runs that take no time, for tests of tables."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from fedjax_core import experiment
from fedjax_core.commands.tables import runner
from fedjax_core.reporting import reporter as report


@pytest.fixture
def fake(monkeypatch):
    """Runs that take no time: accuracies 0.4, 0.6, 0.8 + seed / 100, and the scores of `fake.more`; `fake.done` lists the cells,
    `fake.act` is called for each."""
    made = SimpleNamespace(done=[], data=[], more={}, act=lambda name: False)

    def execute(config, workdir, progress, *, data, console, draws):
        name = Path(workdir).name
        made.done.append(name.rpartition("--")[0])
        made.data.append(data)
        stopped = made.act(made.done[-1])
        Path(workdir).mkdir(parents=True)
        with report.Reporter(workdir, config.rounds, progress=False, tensorboard=False) as reporter:
            for i, accuracy in enumerate((0.4, 0.6, 0.8 + config.seed / 100), 1):
                reporter.log({"round": i, "seconds": 2.0, "compile_seconds": 1.5, "test/global/accuracy": accuracy} | made.more)
            reporter.note(bytes_down=2000.0, bytes_up=1500.0, peak_memory_bytes=1)
        return SimpleNamespace(stopped=bool(stopped))

    monkeypatch.setattr(experiment, "execute", execute)
    monkeypatch.setattr(runner, "_release_memory", lambda: None)
    return made
