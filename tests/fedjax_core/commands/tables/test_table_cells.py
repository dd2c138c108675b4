"""Cells: what their configs and their names are made of."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from configs import fedit, fedprox, promptfl
from configs.tables.base import Column, Measure, Row
from fedjax_core import code_fingerprint, experiment
from fedjax_core.commands import tables
from tests.fedjax_core.commands.small_tables import definition, get_config

OWN = Measure("own", ("test/personal/own/accuracy/mean", "test/global/own/accuracy/mean"))


def test_what_a_name_depends_on():
    def name(**changes):
        return tables.build_cells(definition(changes=changes), "smoke", [0])[0].name

    plain = name()
    same = {"plan.devices": 1, "checkpoint.seconds": 1.0, "evaluation.last_k": 3}
    assert name(**same) == plain
    assert name(**{"data.long_tail": None}) == plain
    assert name(**{"evaluation.batch": 256}) == plain  # what None was before
    assert name(**{"evaluation.batch": 1000}) != plain

    def of_before(variant: str) -> Any:
        config = get_config(variant)
        for group in ("adversary", "compression", "aggregation", "privacy"):
            del config[group]
        return config

    assert tables.build_cells(definition(rows=(Row("FedAvg", of_before),)), "smoke", [0])[0].name == plain
    for changes in ({"rounds": 4}, {"optimizer.lr": 0.2}, {"data.seed": 1}, {"method.weights": "uniform"}):
        assert name(**changes) != plain
    seeds = [cell.config.data.seed for cell in tables.build_cells(definition(new_partitions=True), "smoke", [0, 3])]
    assert seeds == [0] * 4 + [3] * 4


def test_code_of_ones_own_is_in_the_name_of_its_cells_alone(tmp_path):
    mine = tmp_path / "mine.py"
    rows = (definition().rows[0], Row("Mine", get_config, {"loss": f"{mine}:loss"}))

    def names(code: str) -> list[str]:
        mine.write_text(f"def loss(logits, y, mask):\n    {code}\n")
        return [cell.name for cell in tables.build_cells(definition(rows=rows), "smoke", [0])[:2]]

    before, changed, again = names("return 0.0"), names("return 1.0"), names("return 0.0")
    assert before[0] == changed[0] == tables.build_cells(definition(), "smoke", [0])[0].name
    assert before[1] != changed[1]
    assert before == again


def test_files_of_devices_and_of_settings_by_client_are_in_the_name(tmp_path):
    for field in ("devices.profile", "clients.epochs"):
        file = tmp_path / f"{field}.csv"
        names = []
        for text in ("1", "2", "1"):
            file.write_text(text)
            changes = {field: f"from_csv(path={str(file)!r})"}
            names.append(tables.build_cells(definition(changes=changes), "smoke", [0])[0].name)
        assert names[0] == names[2] != names[1]


def test_files_of_the_method_are_in_the_name(tmp_path):
    file, names = tmp_path / "links.csv", []
    changes = {"method.name": "dfedavg", "method.topology": "graph", "method.matrix": str(file)}
    for text in ("0,1\n1,0", "1,1\n1,1", "0,1\n1,0"):
        file.write_text(text)
        rows = (dataclasses.replace(definition().rows[0], changes=changes),)
        names.append(tables.build_cells(definition(rows=rows), "smoke", [0])[0].name)
    assert names[0] == names[2] != names[1]


def test_what_networks_begin_from_is_in_the_name(tmp_path):
    file = tmp_path / "backbone.safetensors"

    def name() -> str:
        return tables.build_cells(definition(changes={"weights": str(file)}), "smoke", [0])[0].name

    missing, names = name(), []
    for content in (b"one", b"other", b"one"):
        file.write_bytes(content)
        names.append(name())
    assert names[0] == names[2]
    assert len({missing, *names}) == 3


@pytest.mark.parametrize("model", ["clip", "pretrained"])
def test_the_files_of_a_pretrained_model_are_in_the_name(tmp_path, model):
    folder, found = tmp_path / "model", []
    folder.mkdir()
    for content in ("one", "other", "one"):
        (folder / "model.safetensors").write_text(content)
        resolved = experiment.resolve(language_config(model, folder))
        assert experiment.existing_input_files(resolved) == [folder / "model.safetensors"]
        found.append(list(code_fingerprint.hash_files(experiment.existing_input_files(resolved)).values()))
    assert found[0] == found[2] != found[1]


def language_config(model: str, folder: Path) -> Any:
    if model == "clip":
        made = promptfl.get_config("smoke")
        made.models = (f"clip(folder='{folder}')",)
        return made
    made = fedit.get_config("paper")
    made.models = (f"pretrained(folder='{folder}')",)
    return made


def test_rows_may_share_one_config():
    one = get_config("smoke")
    rows = (Row("a", lambda variant: one), Row("b", lambda variant: one, {"optimizer.lr": 0.5}))
    before = one.to_dict()
    found = tables.build_cells(definition(rows=rows, differ=("optimizer",)), "smoke", [0, 1])
    assert [(c.config.seed, c.config.data.partition, c.config.optimizer.lr) for c in found if c.seed == 0] == [
        (0, partition, lr) for partition in ("iid", "dirichlet(alpha=0.3)") for lr in (before["optimizer"]["lr"], 0.5)
    ]
    assert one.to_dict() == before


def test_changes_apply_from_the_table_to_the_cell():
    changed = definition(
        changes={"optimizer.lr": 0.01, "rounds": 7},
        columns=(Column("a", {"optimizer.lr": 0.02}), Column("b", {})),
        rows=(Row("r", get_config, {"rounds": 8}), Row("s", get_config)),
        cells={("r", "a"): {"rounds": 9, "method.batch": 5}},
        differ=("rounds", "batch"),
    )
    found = {
        (c.row, c.column): (c.config.optimizer.lr, c.config.rounds, c.config.method.batch)
        for c in tables.build_cells(changed, "smoke", [0])
    }
    assert found == {("r", "a"): (0.02, 9, 5), ("s", "a"): (0.02, 7, 32), ("r", "b"): (0.01, 8, 32), ("s", "b"): (0.01, 7, 32)}


def test_a_setting_on_the_command_line_is_of_all_runs():
    changed = tables.apply_settings(
        definition(cells={("FedAvg", "IID"): {"rounds": 2}}), ["optimizer.lr=0.5", "data.source=tfds:cifar10", "rounds=4"]
    )
    for cell in tables.build_cells(changed, "smoke", [0]):
        assert (cell.config.optimizer.lr, cell.config.data.source, cell.config.rounds) == (0.5, "tfds:cifar10", 4)
    assert tables.apply_settings(definition(), []) == definition()
    with pytest.raises(ValueError, match="--set=rounds is not of the form FIELD=VALUE"):
        tables.apply_settings(definition(), ["rounds"])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("rounds=abc", "rounds='abc' must be an int, at least 1"),
        ("rounds=3.0", "rounds=3.0 must be an int, at least 1"),
        ("evaluation.scopes=globl", r"evaluation.scopes=\('globl',\) must be a tuple, each one of 'global'"),
    ],
)
def test_a_setting_that_its_field_does_not_take(setting, said):
    with pytest.raises(ValueError, match=said):
        tables.build_cells(tables.apply_settings(definition(), [setting]), "smoke", [0])


def test_one_name_is_a_tuple_of_one():
    changed = tables.apply_settings(definition(), ["models=cnn", "evaluation.scopes=global"])
    config = tables.build_cells(changed, "smoke", [0])[0].config
    assert (config.models, config.evaluation.scopes) == (("cnn",), ("global",))


def test_a_fraction_of_clients_is_not_hidden_by_their_number():
    sized = definition(changes={"cohort.size": 2})
    with pytest.raises(ValueError, match=r"cohort.fraction=0.5 has no effect beside cohort.size=2; set cohort.size=None, too"):
        tables.build_cells(tables.apply_settings(sized, ["cohort.fraction=0.5"]), "smoke", [0])
    both = tables.apply_settings(sized, ["cohort.fraction=0.5", "cohort.size=None"])
    assert tables.build_cells(both, "smoke", [0])[0].config.cohort.size is None
    later = definition(changes={"cohort.fraction": 0.5}, rows=(Row("a", get_config, {"cohort.size": 2}),))
    assert tables.build_cells(later, "smoke", [0])[0].config.cohort.size == 2


def test_a_setting_may_be_of_a_part_of_the_table():
    found = tables.apply_settings(definition(), ["rounds=7", "/iid:rounds=8", "fedavg/IID:data.source=tfds:cifar10"])
    for cell in tables.build_cells(found, "smoke", [0]):
        assert cell.config.rounds == (8 if cell.column == "IID" else 7)
        assert (cell.config.data.source == "tfds:cifar10") == ((cell.row, cell.column) == ("FedAvg", "IID"))
    wrong = {"/idd:rounds=8": "unknown column 'idd'", ":rounds=8": "is not of the form", "a:=1": "is not of the form"}
    for setting, said in wrong.items():
        with pytest.raises(ValueError, match=f"--set={setting}.*{said}"):
            tables.apply_settings(definition(), [setting])


@pytest.mark.parametrize(
    ("setting", "cells"),
    [
        ("FedProx (mu=0.1):rounds=8", {("FedProx (mu=0.1)", "IID"), ("FedProx (mu=0.1)", "alpha=0.1,b")}),
        ("mu=1:rounds=8", {("mu=1", "IID"), ("mu=1", "alpha=0.1,b")}),
        ("mu=1,FedProx (mu=0.1)/iid:rounds=8", {("mu=1", "IID"), ("mu=1", "alpha=0.1,b"), ("FedProx (mu=0.1)", "IID")}),
        ("/alpha=0.1,b:rounds=8", {("mu=1", "alpha=0.1,b"), ("FedProx (mu=0.1)", "alpha=0.1,b")}),
        ("mu-1/iid, /iid:rounds=8", {("mu=1", "IID"), ("FedProx (mu=0.1)", "IID")}),
    ],
)
def test_the_place_of_a_setting_may_have_equals_signs_and_commas(setting, cells):
    labels = ("mu=1", "FedProx (mu=0.1)")
    table = definition(
        rows=tuple(Row(label, get_config) for label in labels), columns=(Column("IID", {}), Column("alpha=0.1,b", {}))
    )
    assert tables.apply_settings(table, [setting]).cells == {cell: {"rounds": 8} for cell in cells}
    for value in ("tfds:cifar10", "npz:a=b", "mu=1:x"):
        found = tables.apply_settings(table, [f"/iid:data.dir={value}", f"mu=1:data.dir={value}", f"data.dir={value}"])
        assert [*found.cells.values()] == [{"data.dir": value}] * 4
    for wrong, said in {
        "mu=1,x:rounds=8": "no field mu",
        "nobody (a=1):rounds=8": "unknown row",
        " :rounds=8": "unknown row ''",
    }.items():
        with pytest.raises(ValueError, match=said):
            tables.build_cells(tables.apply_settings(table, [wrong]), "smoke", [0])


def test_columns_of_several_sources_are_not_given_one():
    """They would keep their names, and the paper's numbers beside them."""
    two = definition(columns=tuple(Column(name, {"data.source": name.lower()}) for name in ("MNIST", "CIFAR10", "Digits")))
    with pytest.raises(ValueError, match=r"'mnist' for column 'MNIST' and 'cifar10' for 'CIFAR10'.*--set=/mnist:data.source"):
        tables.apply_settings(two, ["data.source=tfds:cifar10"])
    with pytest.raises(ValueError, match="for column 'MNIST' and"):
        tables.apply_settings(two, ["/*i*:data.source=tfds:cifar10"])
    with pytest.raises(ValueError, match=r"'iid' for column 'IID' and .* for 'Skewed'.*--set=/iid:data.partition="):
        tables.apply_settings(definition(), ["data.partition=iid"])
    found = tables.build_cells(tables.apply_settings(two, ["/cifar10:data.source=tfds:cifar10"]), "smoke", [0])
    assert {c.column: c.config.data.source for c in found} == {"MNIST": "mnist", "CIFAR10": "tfds:cifar10", "Digits": "digits"}


def test_the_table_says_what_was_changed_on_the_command_line():
    changed = tables.apply_settings(
        definition(note="A note."), ["data.dir=x", "rounds=7", "/iid:method.epochs=2", "plan.devices=1"]
    )
    assert changed.note == "A note. Changed on the command line: rounds=7; /iid:method.epochs=2."
    assert tables.apply_settings(definition(), ["data.dir=x"]).note == definition().note


@pytest.mark.parametrize("setting", ["seed=5", "fedavg:seed=5", "evaluation.targets=(0.9,)"])
def test_what_a_table_sets_itself_is_not_taken(setting):
    with pytest.raises(ValueError, match=r"FedAvg / IID: .* would have no effect; a table has (seeds|targets) of its own"):
        tables.build_cells(tables.apply_settings(definition(), [setting]), "smoke", [0])


def test_another_method_drops_the_options_of_the_old_one_as_the_command_line_does(tmp_path):
    """What both have of epochs, batch and weights is kept; what a change names counts, wherever it stands."""
    file = tmp_path / "mine.py"
    file.write_text("from methods.fedavg import fedavg\n\ndef mine(task, *, optimizer, batch: int = 7, strength: float = 1.0):\n")
    file.write_text(file.read_text() + "    return fedavg(task, optimizer=optimizer, batch=batch)\n")
    name = f"{file}:mine"
    row = Row("X", fedprox.get_config, {"method.name": name})
    (cell,) = tables.build_cells(definition(rows=(row,), columns=(Column("IID", {}),)), "smoke", [0])
    assert cell.config.method.to_dict() == {"name": name, "batch": 32}
    options = {"method.name": "ditto", "method.lam": 0.5}
    rows = (Row("FedProx", fedprox.get_config), Row("Ditto", fedprox.get_config, options))
    table = definition(rows=rows, changes={"method.epochs": 2}, measures=(OWN,))
    cell = tables.build_cells(table, "smoke", [0])[1]
    assert cell.config.method.to_dict() == {"name": "ditto", "epochs": 2, "batch": 32, "lam": 0.5}
    line = experiment.switch_method(config := fedprox.get_config("smoke"), {"name": "ditto", "lam": 0.5, "epochs": 2})
    assert line
    assert config.method.to_dict() == cell.config.method.to_dict()
    with pytest.raises(ValueError, match="X / IID: method 'ditto' has no option 'mu'"):
        tables.build_cells(definition(rows=(Row("X", fedprox.get_config, options | {"method.mu": 1.0}),)), "smoke", [0])
