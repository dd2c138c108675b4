"""The search of a table on real runs: diverging, killed, and to its end."""

import csv
import signal

from configs.tables.base import Row
from fedjax_core import experiment
from fedjax_core.commands import tables
from fedjax_core.reporting.summary import collect_history
from fedjax_core.storage.json_files import read_json, read_jsonl
from tests.fedjax_core.commands.tables.searches import BY, definition, get_config, line, run


def test_a_real_search_goes_on_bit_for_bit_and_survives_a_rate_that_diverges(tmp_path):
    """Two trials to the first round, the one that is left resumed to the second: what a run without a halt gives."""
    rows = (Row("A", get_config, space={"optimizer.lr": (0.3,)}),)
    few = {"rounds": 2, "plan.devices": 1, "data.examples": 300, "optimizer.lr": 1e30, "method.epochs": 1}
    table = definition({"trials": 2, "halving": 2}, rows=rows, changes=few)
    outcome, said = run(tmp_path / "a", table)
    assert not outcome.failures, said
    assert "| A | IID | 2 | optimizer.lr=0.3 |" in line(tmp_path / "a", "A")
    assert "1 diverged, its own settings among them" in line(tmp_path / "a", "A")
    (name,) = outcome.results
    (cell,) = (run for trial in tables.plan_searches(table, "smoke")["A", "IID"].trials for run in trial.cells if run.name == name)
    whole = experiment.execute(cell.config, str(tmp_path / "b"), False, console=lambda text: None)
    halted = collect_history(read_jsonl(tmp_path / "a" / "runs" / name / "metrics.jsonl"))
    for score in ("train/loss", BY, "test/global/accuracy"):
        assert halted[score].rounds.tolist() == whole.history[score].rounds.tolist() == [1, 2]
        assert halted[score].values.tolist() == whole.history[score].values.tolist()


def test_a_trial_whose_clients_are_all_left_out_has_diverged(tmp_path):
    """Under a rule: what is not finite is left out there, and with it everybody."""
    few = {"rounds": 1, "plan.devices": 1, "data.examples": 300, "optimizer.lr": 1e20, "method.epochs": 1}
    rows = (Row("A", get_config, space={"optimizer.lr": (0.3,)}),)
    table = definition({"trials": 2}, rows=rows, changes=few | {"aggregation.rule": "median"})
    outcome, said = run(tmp_path, table)
    assert not outcome.failures, said
    assert any("diverged, so it counts as the worst: A / IID / trial 0" in text for text in said)
    assert "| A | IID | 2 | optimizer.lr=0.3 |" in line(tmp_path, "A")


KILLED = """
from tests.fedjax_core.commands.tables import searches
from configs.tables.base import Row

def get_table(variant):
    few = {"rounds": 12, "plan.devices": 1, "data.examples": 300, "method.epochs": 1, "checkpoint.seconds": 0.0}
    few["evaluation.scopes"] = ("global",)
    return searches.definition({"trials": 3}, rows=(Row("A", searches.get_config, space=searches.RATES),), changes=few)
"""


def test_a_search_that_is_killed_goes_on_with_the_same_trials(launcher, tmp_path):
    """In its second trial: the first one is kept, the second resumed from its checkpoint, the third is what it would have been."""
    file, place = tmp_path / "search.py", tmp_path / "table"
    file.write_text(KILLED)
    flags = [f"--table={file}", f"--workdir={place}", "--variant=smoke"]
    (study,) = tables.plan_searches(tables.read_definition(str(file), "smoke"), "smoke").values()
    first, second, third = (place / "runs" / trial.cells[0].name for trial in study.trials)
    process = launcher.start(*flags, module="fedjax_core.commands.table")
    assert process.until(lambda: next(second.glob("checkpoints/0*/record.json"), None), "a checkpoint of the second trial")
    process.send(signal.SIGKILL)
    assert process.wait().status == -signal.SIGKILL
    assert not third.exists()
    written = lambda: {path: path.stat().st_mtime_ns for path in first.glob("*.*") if path.name != ".lock"}
    before = written()
    ended = launcher.run(*flags, module="fedjax_core.commands.table")
    assert ended.status == 0, ended.err
    assert "1 of 3 runs of the search" in ended.err
    assert {path: written()[path] for path in before} == before, "only figures are added, where the trial is the chosen one"
    assert {run.name for run in (place / "runs").iterdir()} == {first.name, second.name, third.name}
    for run_, trial in zip((first, second, third), study.trials, strict=True):
        assert read_json(run_ / "config.json")["optimizer"]["lr"] == trial.values["optimizer.lr"]
        assert [record["round"] for record in read_jsonl(run_ / "metrics.jsonl")] == list(range(1, 13))
    assert [len(read_json(run_ / "environment.json").get("resumed", [])) for run_ in (first, second, third)] == [0, 1, 0]
    (chosen,) = {cell["chosen_trial"] for cell in _records(place / "table.csv")}
    kept = [bool([*run_.glob("checkpoints/0*")]) for run_ in (first, second, third)]
    assert kept == [str(number) == chosen for number in range(3)], "checkpoints of the run that is the cell's are left alone"
    with open(place / "trials.csv", newline="") as opened:
        assert [float(row["optimizer.lr"]) for row in csv.DictReader(opened)] == [t.values["optimizer.lr"] for t in study.trials]


def _records(file):
    with open(file, newline="") as opened:
        return list(csv.DictReader(opened))
