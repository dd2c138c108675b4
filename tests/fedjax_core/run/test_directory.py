"""What a run's directory says of earlier starts, where processes are several."""

from types import SimpleNamespace
from typing import Any

import jax
import pytest

from fedjax_core.engine import parallel, together
from fedjax_core.engine.parallel import Plan
from fedjax_core.run import directory
from fedjax_core.storage.workdir import RUN, WorkDir


def test_several_processes_take_up_the_chunk_alone(monkeypatch, tmp_path):
    """A run of four devices goes on with eight of two processes: on the first four one process would have none."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(together, "said", lambda value: value)
    monkeypatch.setattr(together, "all_or_none", lambda what, step: step())
    monkeypatch.setattr(parallel, "choose", lambda places, **given: Plan(min(given["chunk"], places), given["devices"]))
    took, told = [], []
    simulation: Any = SimpleNamespace(plan=Plan(1, 8), places=40)
    reporter: Any = SimpleNamespace(say=told.append)

    def use(plan):
        took.append(plan)
        simulation.plan = plan

    simulation.use = use
    with WorkDir.open(tmp_path / "run", {}) as workdir:
        workdir.record("plan", Plan(3, 4)._asdict())
        directory.take_up_plan(simulation, workdir, False, reporter)
    assert took == [Plan(3, 8)]
    assert "of 2 processes" in told[0]


def test_what_the_writer_cannot_read_is_told_to_the_others(monkeypatch, tmp_path):
    seen: list[list[bool]] = []
    simulation: Any = SimpleNamespace(hold="device")
    monkeypatch.setattr(together, "seen", lambda numbers: seen.append(list(numbers)) or [numbers])
    with WorkDir.open(tmp_path / "run", {}) as workdir:
        (workdir.path / RUN).write_text("{")
        with pytest.raises(ValueError, match="run"):
            directory.same_settings(workdir, {"convolutions": {}})
        assert seen == [[True]]
        with pytest.raises(ValueError, match="run"):
            directory.same_hold(simulation, workdir.path)
    assert seen == [[True], [True]]
