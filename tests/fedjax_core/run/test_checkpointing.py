"""What a run's directory says of earlier starts, where processes are several."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from fedjax_core import distributed
from fedjax_core import run as runs
from fedjax_core.engine import client_loop
from fedjax_core.engine.client_loop import Plan
from fedjax_core.engine.sharding.data_placement import Placement
from fedjax_core.run import checkpointing
from fedjax_core.storage.workdir import RUN, WorkDir
from tests import toy


def test_several_processes_take_up_the_chunk_alone(monkeypatch, tmp_path):
    """A run of four devices goes on with eight of two processes: on the first four one process would have none."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(distributed, "broadcast_from_process_0", lambda value: value)
    monkeypatch.setattr(distributed, "all_or_none", lambda what, step: step())
    monkeypatch.setattr(client_loop, "choose_plan", lambda places, **given: Plan(min(given["chunk"], places), given["devices"]))
    took, told = [], []
    simulation: Any = SimpleNamespace(spec=SimpleNamespace(plan=Plan(1, 8), sampler=SimpleNamespace(slots=40)))
    reporter: Any = SimpleNamespace(say=told.append)

    def use(plan):
        took.append(plan)
        simulation.spec.plan = plan

    simulation.use_plan = use
    with WorkDir.open(tmp_path / "run", {}) as workdir:
        workdir.record("plan", Plan(3, 4)._asdict())
        checkpointing.restore_plan(simulation, workdir, False, reporter)
    assert took == [Plan(3, 8)]
    assert "of 2 processes" in told[0]


def test_processes_may_differ_by_rounding(monkeypatch):
    """Machines calibrate noise to other last digits. Process 0 has the list, where the others have a tuple."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(distributed, "allgather", lambda numbers: np.array([[0], numbers]))
    monkeypatch.setattr(distributed, "broadcast_from_process_0", lambda value: {"noise": 0.5, "clients": [1, 2]})
    checkpointing.check_processes("run", {"noise": 0.5 * (1 + 1e-12), "clients": (1, 2)})
    with pytest.raises(ValueError, match=r"the run of process 1 .* \(noise: 0\.5 in process 0, 0\.6 here\); all processes need"):
        checkpointing.check_processes("run", {"noise": 0.6, "clients": (1, 2)})


def test_many_attackers_are_a_number_and_a_digest(tmp_path):
    """A directory that has all of them goes on, and one of other attackers does not."""
    few, many = ({"adversary": {"attack": "alie", "clients": list(range(number))}} for number in (50, 51))
    with WorkDir.open(tmp_path / "run", {}) as workdir:
        workdir.record("adversary", many["adversary"])
        checkpointing.check_settings(workdir, many)
        with pytest.raises(ValueError, match=r"other adversary \(adversary\.clients: .*; adversary\.clients\.number: 51 in"):
            checkpointing.check_settings(workdir, few)
    for record in (few, many):
        with WorkDir.open(tmp_path / str(len(record["adversary"]["clients"])), {}) as workdir:
            for _ in range(2):
                checkpointing.check_settings(workdir, record)
            found = workdir.get_record("adversary")
        assert found == few["adversary"] or found["clients"].keys() == {"number", "digest"}
        assert len(str(found)) < 300
    with WorkDir.open(tmp_path / "51", {}) as workdir, pytest.raises(ValueError, match="run with other adversary"):
        checkpointing.check_settings(workdir, {"adversary": {"attack": "alie", "clients": list(range(1, 52))}})


def test_long_lists_of_numbers_stay(tmp_path):
    """A run takes up its matrix of noise from them. A directory that has a digest goes on."""
    record = {"privacy": {"clip": 0.5, "coefficients": [1 / (1 + i) for i in range(60)]}}
    with WorkDir.open(tmp_path / "run", {}) as workdir:
        checkpointing.check_settings(workdir, record)
        assert workdir.get_record("privacy") == record["privacy"]
        workdir.record("privacy", checkpointing._shorten_lists(record["privacy"]))
        checkpointing.check_settings(workdir, record)
        checkpointing.check_settings(workdir, {"privacy": {**record["privacy"], "clip": 0.5 * (1 + 1e-15)}})  # of another machine
        other = {"privacy": {**record["privacy"], "clip": 0.25}}
        with pytest.raises(ValueError, match=r"other privacy \(privacy\.clip: 0\.5 in the directory, 0\.25 now\); take another"):
            checkpointing.check_settings(workdir, other)


def test_rows_that_every_round_takes_whole_are_said_to_lie_on_devices_several_times(tmp_path):
    told: list[str] = []
    reporter: Any = SimpleNamespace(say=told.append)
    with WorkDir.open(tmp_path / "run", {}) as workdir:
        for population in (1, 2):
            simulation: Any = SimpleNamespace(
                spec=SimpleNamespace(placement=Placement("host", ""), hold="device", population=population)
            )
            checkpointing.record_placement(simulation, workdir, reporter)
    assert ["several times" in line for line in told] == [True, False]


def test_what_the_writer_cannot_read_is_told_to_the_others(monkeypatch, tmp_path):
    seen: list[list[bool]] = []
    simulation: Any = SimpleNamespace(spec=SimpleNamespace(hold="device"))
    monkeypatch.setattr(distributed, "allgather", lambda numbers: seen.append(list(numbers)) or [numbers])
    with WorkDir.open(tmp_path / "run", {}) as workdir:
        (workdir.path / RUN).write_text("{")
        with pytest.raises(ValueError, match="run"):
            checkpointing.check_settings(workdir, {"convolutions": {}})
        assert seen == [[True]]
        with pytest.raises(ValueError, match="run"):
            checkpointing.check_same_hold(simulation, workdir.path)
    assert seen == [[True], [True]]


def test_a_run_goes_on_with_another_distance_between_its_evaluations(tmp_path):
    simulation, known = toy.simulate("fedavg"), {"progress": False, "console": lambda text: None}

    def scored(rounds, every):
        config = {"rounds": rounds, "evaluation": {"every": every}}
        settings = runs.RunSettings(seed=0, rounds=rounds, eval_every=every, **known)
        done = runs.run(simulation, str(tmp_path), config, settings)
        return done.history["test/global/accuracy"].rounds.tolist()

    assert scored(4, 2) == [2, 4]
    assert scored(7, 3) == [2, 4, 6, 7]
