"""The table command on real runs: killed, interrupted, and to its end."""

import dataclasses
import signal
from types import SimpleNamespace

import jax
import pytest

from configs.tables import first
from configs.tables.base import Measure
from fedjax_core import experiment
from fedjax_core.commands import table as command
from fedjax_core.commands import tables
from fedjax_core.commands.analyses import scalar_metrics
from fedjax_core.run import checkpointing
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import read_json, read_jsonl
from tests.fedjax_core.commands.small_tables import GLOBAL, definition, get_config, run


def test_counts_are_beside_accuracies(tmp_path):
    """Of a run that trains, from the same shapes."""
    measures = (GLOBAL, Measure("trained", ("analysis:trained",)), Measure("sent", ("analysis:up(total=True)",), unit=2**10))
    made = definition(measures=measures, changes={"plan.devices": 1, "rounds": 1, "evaluation.every": 1}, targets=())
    outcome, said = run(tmp_path, made, only=["fedavg/iid"], seeds=[0])
    assert not outcome.failures, said
    (result,) = outcome.results.values()
    assert result.values["trained"] == 64 * 4 + 4 + 4 * 10 + 10
    assert result.values["sent"] == 4 * result.values["trained"]
    for text, said in (("trained(group=1)", "group=1 must be in"), ("trainde", "Did you mean 'trained'")):
        with pytest.raises(ValueError, match=said):
            scalar_metrics.make_metric(text)(next((tmp_path / "runs").iterdir()), None)
    with pytest.raises(ValueError, match="unit=1024 of what is shown in per cent"):
        tables.build_cells(definition(measures=(Measure("x", GLOBAL.scores, unit=1024),)), "smoke")


def test_the_first_table_runs_and_leaves_nothing_in_memory(tmp_path):
    before = len(jax.live_arrays())
    defined = dataclasses.replace(first.get_table("smoke"), changes=first.get_table("smoke").changes | {"plan.devices": 1})
    rows = ["FedAvg (samples)", "FedHe", "Local", "Centralized"]  # one model for all, two with one per client, a pooled method
    outcome, said = run(tmp_path, defined, only=[f"{row}/Dirichlet(0.5)" for row in rows], seeds=[0])
    assert not outcome.failures, said
    assert len(outcome.results) == len(rows)
    for result in outcome.results.values():
        assert set(result.values) == {"own test rows", "whole test set"}
        assert all(0.1 < value <= 1 for value in result.values.values())
        assert result.seconds_per_round > 0
    assert (tmp_path / "table.md").read_text().count("Dirichlet(0.5) |") == 2 * 2 + len(rows), (
        "of two measures, their intervals, and costs"
    )
    assert len(jax.live_arrays()) <= before


ENDLESS = """
from configs import fedavg
from configs.tables.base import Column, Measure, Row, Table

def get_table(variant):
    changes = {"models": ("mlp(widths=(4,))",), "data.clients": 4, "checkpoint.seconds": 0.0, "evaluation.every": 1}
    rows = Row("short", fedavg.get_config, {"rounds": 2}), Row("long", fedavg.get_config, {"rounds": ROUNDS})
    columns = (Column("iid", {"data.partition": "iid"}),)
    return Table("Two", rows, columns, (Measure("x", ("test/global/accuracy",)),), (0,), changes, differ=("rounds",))
"""


def test_a_table_that_is_killed_and_interrupted_goes_on(launcher, tmp_path):
    file = tmp_path / "two.py"
    file.write_text(ENDLESS.replace("ROUNDS", "80"))
    flags = [f"--table={file}", f"--workdir={tmp_path / 'table'}", "--variant=smoke"]
    module, runs = "fedjax_core.commands.table", tmp_path / "table" / "runs"

    def last_checkpoint() -> int:
        return max((int(path.parent.name) for path in runs.glob("long--*/checkpoints/0*/record.json")), default=0)

    for number, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        done, process = last_checkpoint(), launcher.start(*flags, module=module)
        assert process.until(lambda done=done: last_checkpoint() > done, "a checkpoint")
        process.send(number)
        ended = process.wait()
        assert ended.status == status, ended.err
        assert "1 of 2 runs are finished." in (tmp_path / "table" / "table.md").read_text()
    short, long = (next(runs.glob(f"{row}--*")) for row in ("short", "long"))
    before = {path: path.stat().st_mtime_ns for path in short.rglob("*")}
    ended = launcher.run(*flags, module=module)
    assert ended.status == 0, ended.err
    assert "1 of 2 runs are finished, 1 to do" in ended.err
    assert {path: path.stat().st_mtime_ns for path in short.rglob("*")} == before
    assert [record["round"] for record in read_jsonl(long / "metrics.jsonl")] == list(range(1, 81))
    assert len(read_json(long / "environment.json")["resumed"]) == 2
    assert " runs are finished." not in (tmp_path / "table" / "table.md").read_text()


def test_an_interrupted_notebook_cell_leaves_a_run_that_goes_on(tmp_path):
    """The signal arrives in this very process, in the first round."""
    config = get_config("smoke")
    config.plan.devices, config.evaluation.every = 1, 1
    interrupts = lambda text: signal.raise_signal(signal.SIGINT) if text.startswith("digits") else None
    with pytest.raises(KeyboardInterrupt, match="after round 1; the same command resumes"):
        experiment.execute(config, str(tmp_path / "a"), False, console=interrupts)
    said: list[str] = []
    resumed = experiment.execute(config, str(tmp_path / "a"), False, console=said.append)
    assert any("after round 1" in text for text in said)
    whole = experiment.execute(config, str(tmp_path / "b"), False, console=said.append)
    for name in ("train/loss", "test/global/accuracy"):
        assert resumed.history[name].rounds.tolist() == [1, 2, 3]
        assert resumed.history[name].values.tolist() == whole.history[name].values.tolist()


def test_a_run_that_an_error_ends_after_its_last_round_is_resumed(tmp_path, monkeypatch):
    """The disk is full when its last checkpoint is written: all rounds are recorded, and the state after them is lost."""
    changes = {"evaluation.every": 1, "checkpoint.seconds": 0.0, "plan.devices": 1}
    table = definition(seeds=(0,), changes=changes)
    save = checkpointing.save_checkpoint

    def full(simulation, checkpoints, state, done, before):
        if done == 3:
            raise OSError(28, "No space left on device")
        return save(simulation, checkpoints, state, done, before)

    monkeypatch.setattr(checkpointing, "save_checkpoint", full)
    outcome, _ = run(tmp_path, table, only=["fedavg/iid"])
    assert (outcome.results, list(outcome.failures.values())) == ({}, ["No space left on device"])
    assert len(list((tmp_path / "runs").glob("*.error.txt"))) == 1
    monkeypatch.setattr(checkpointing, "save_checkpoint", save)
    outcome, said = run(tmp_path, table, only=["fedavg/iid"])
    assert said[0] == "0 of 1 runs are finished, 1 to do"
    assert (len(outcome.results), outcome.failures) == (1, {})
    (place,) = (tmp_path / "runs").iterdir()
    assert Checkpoints(place / "checkpoints").latest() == 3


def test_every_only_counts(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(tables, "run", lambda *of, only, **more: asked.append(only) or SimpleNamespace(failures={}))
    line = ["first", f"--workdir={tmp_path}", "--compilation_cache=", "--only=scaffold", "--only=local,fedhe"]
    assert command.main(line) == 0
    assert asked == [["scaffold", "local", "fedhe"]]
