"""A run with unseen clients: what is said, written down and loaded again; and what a table makes of it."""

import csv

import numpy as np
import pytest

from configs import centralized, fedper, local
from configs.tables.base import Column, Measure, Row, Table
from fedjax_core import experiment
from fedjax_core.commands import tables
from fedjax_core.experiment import input_normalization
from fedjax_core.storage.json_files import read_json

GAP = Measure("gap", ("test/personal/gap/accuracy",))
OWN = Measure("own", ("test/personal/own/accuracy/mean",))


def config(module, **data):
    made = module.get_config("smoke")
    made.rounds, made.evaluation.every, made.evaluation.scopes = 2, 2, ("own",)
    made.data.update({"unseen_clients": 2, "examples": 200, "clients": 6, "partition": "iid"} | data)
    made.models, made.plan.devices, made.cohort.fraction = ("mlp(widths=(8,))",), 1, 1.0
    return made


def test_a_table_has_the_gap_of_the_methods_that_have_one(tmp_path):
    """Two runs: Local has no model for an unseen client, runs without, and says why."""
    rows = Row("FedPer", lambda variant: config(fedper)), Row("Local", lambda variant: config(local))
    table = Table("Newcomers", rows, (Column("IID", {}),), (OWN, GAP), seeds=(0,))
    said: list[str] = []
    tables.run(table, str(tmp_path), "smoke", say=said.append)
    of_gap = (tmp_path / "table.md").read_text().split("## ")[2].splitlines()
    assert "| Local |  |" in of_gap
    runs = {name: next((tmp_path / "runs").glob(f"{name}--*")) for name in ("fedper", "local")}
    metrics = {name: read_json(run / "summary.json")["metrics"] for name, run in runs.items()}
    gap = metrics["fedper"]["test/personal/gap/accuracy"]["last"]
    assert f"| FedPer | {100 * gap:.2f} |" in of_gap
    seen, unseen = (metrics["fedper"][f"test/personal/{scope}/accuracy/mean"]["last"] for scope in ("own", "unseen"))
    assert gap == pytest.approx(seen - unseen)
    assert not [name for name in metrics["local"] if "unseen" in name or "gap" in name]

    _, sim, state = experiment.load(runs["fedper"])
    assert sim.evaluate(state).metrics["test/personal/unseen/accuracy/mean"] == pytest.approx(unseen)
    recorded = read_json(runs["fedper"] / "run.json")
    assert sim.spec.data.unseen is not None
    assert recorded["unseen"]["clients"] == sim.spec.data.unseen.ids.tolist()
    assert np.shape(recorded["unseen"]["label_table"]) == (2, 10)
    assert np.shape(recorded["partition"]["label_table"]) == (4, 10)


@pytest.mark.parametrize("clients", [6, 60])
def test_a_pooled_method_records_one_client_and_the_unseen_ones(tmp_path, clients):
    """Checks run.json, and label_table.csv, which is there for more than 50 clients."""
    made = config(centralized, clients=clients, unseen_clients=clients - 2)
    experiment.execute(made, str(tmp_path / "run"), progress=False, console=lambda text: None)
    recorded = read_json(tmp_path / "run" / "run.json")
    assert np.shape(recorded["partition"]["label_table"]) == (1, 10)
    if clients == 60:
        rows = list(csv.DictReader((tmp_path / "run" / "label_table.csv").read_text().splitlines()))
        assert sorted(int(row["client"]) for row in rows if row["part"] == "train") == list(range(59))
        assert rows[0]["of_partition"] == "0"


def test_a_measure_of_unseen_clients_needs_some():
    row = Row("FedPer", lambda variant: config(fedper, unseen_clients=None))
    table = Table("Newcomers", (row,), (Column("IID", {}),), (GAP,))
    with pytest.raises(ValueError, match=r"'test/personal/gap/accuracy' needs data.unseen_clients, such as 0.2"):
        tables.build_cells(table, "smoke")


def test_methods_that_cannot_serve_an_unseen_client_are_refused_if_it_was_asked_for(tmp_path):
    made = config(local)
    made.evaluation.scopes = ("own", "unseen")
    with pytest.raises(ValueError, match="but Local shares nothing that an unseen client could begin from"):
        experiment.execute(made, str(tmp_path / "run"), progress=False)
    assert not (tmp_path / "run").exists()
    said: list[str] = []
    made.evaluation.scopes = ("own",)
    experiment.execute(made, str(tmp_path / "run"), progress=False, console=said.append)
    assert "unseen clients are not scored: Local shares nothing that an unseen client could begin from" in said


def test_inputs_are_scaled_without_the_rows_of_unseen_clients(monkeypatch):
    """Other images of theirs give the same network."""
    made, seen = config(fedper), []
    monkeypatch.setattr(input_normalization, "find_scaling", lambda normalise, examples, file, rows, offset: seen.append(rows))
    sim = experiment.build(made)
    assert sim.spec.data.unseen is not None
    (rows,) = seen
    assert len(rows) == 200 - sim.spec.data.unseen.label_table.sum()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data.unseen_clients": 6},
            r"data.unseen_clients=6 must be a fraction in \(0, 1\), or a number below that of all clients, 6",
        ),
        ({"data.unseen_clients": -1}, "data.unseen_clients=-1 must be a fraction"),
        ({"cohort.size": 5}, "cohort.size=5 must be at most the number of clients that train, 4"),
        ({"task": "episodes(way=2, shot=1, query=1)"}, "data.unseen_clients=2 is for clients with labelled examples of their own"),
        ({"evaluation.newcomer_updates": 0}, "evaluation.newcomer_updates=0"),
        (
            {"evaluation.newcomer_updates": 3, "data.unseen_clients": None},
            "evaluation.newcomer_updates=3 is for unseen clients, and no client is unseen; set data.unseen_clients",
        ),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    made = config(fedper)
    made.update_from_flattened_dict(changes)
    with pytest.raises(ValueError, match=message):
        experiment.build(made)
