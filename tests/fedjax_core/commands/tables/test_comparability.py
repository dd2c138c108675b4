"""Tables whose rows differ in more than their methods say so, or are refused."""

import pytest

from configs import ditto, fedavg, fedproto, fedrep, pfedpt, scaffold
from configs.tables.base import LogUniform, Row
from fedjax_core import experiment
from fedjax_core.commands import tables
from fedjax_core.commands.tables import comparability
from fedjax_core.storage.json_files import flatten, to_json_values
from tests.fedjax_core.commands.small_tables import GLOBAL, definition, get_config, run

FEDAVG = Row("FedAvg", get_config)
UNLIKE = {  # kind: changes of one row, and what is said of it
    "cohort": ({"cohort.fraction": 1.0}, "cohort: 2 of 4 clients a round (FedAvg); 4 of 4 clients"),
    "rounds": ({"rounds": 4}, "rounds: rounds=3 (FedAvg); rounds=4 (Other)"),
    "epochs": ({"method.epochs": 1}, "local epochs: 5 (FedAvg); 1 (Other)"),
    "batch": ({"method.batch": 8}, "batch: 32 (FedAvg); 8 (Other)"),
    "network": ({"models": ("mlp(widths=(8,))",)}, "network: models=('mlp(widths=(4,))',) (FedAvg)"),
    "optimizer": ({"optimizer.lr": 0.2}, "optimiser: optimizer.lr=0.1 (FedAvg); optimizer.lr=0.2"),
    "data": ({"data.examples": 200}, "data: data.examples=None (FedAvg); data.examples=200 (Other)"),
    "evaluation": ({"evaluation.clients": 2}, "evaluation: evaluation.clients=None (FedAvg); evaluation.clients=2 (Other)"),
}


def cells(**changes):
    return tables.build_cells(definition(**changes), "smoke", [0])


@pytest.mark.parametrize("kind", UNLIKE)
def test_rows_that_are_unlike_are_refused_unless_the_definition_says_so(kind):
    changes, said = UNLIKE[kind]
    rows = (FEDAVG, Row("Other", get_config, changes))
    with pytest.raises(ValueError, match=r"^rows differ in") as error:
        cells(rows=rows)
    assert said in str(error.value)
    assert f"Table(differ=('{kind}',))" in str(error.value)
    assert "\n" not in str(error.value)
    assert len(cells(rows=rows, differ=(kind,))) == 4
    assert len(cells(rows=rows, cells={("FedAvg", c): changes for c in ("IID", "Skewed")})) == 4


def test_a_kind_of_difference_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match=r"unknown kind in differ 'cohorts'.*Did you mean 'cohort'"):
        cells(differ=("cohorts",))


def test_differences_are_in_the_head_of_the_table_and_on_the_console(tmp_path, fake):
    rows = (FEDAVG, Row("Other", get_config, {"cohort.size": 4, "optimizer.momentum": 0.9}))
    table = definition(rows=rows, differ=("cohort", "optimizer"))
    _, said = run(tmp_path, table, seeds=[0])
    wanted = "cohort: 2 of 4 clients a round (FedAvg); 4 of 4 clients a round (Other)"
    assert f"rows differ in {wanted}" in said
    head = (tmp_path / "table.md").read_text().partition("## ")[0]
    assert f"- {wanted}\n" in head
    assert "- optimiser: optimizer.momentum=None (FedAvg); optimizer.momentum=0.9 (Other)" in head
    tex = (tmp_path / "table.tex").read_text()
    assert r"Rows differ in cohort: 2 of 4 clients a round (FedAvg); 4 of 4" in tex


def test_a_difference_of_one_column_names_it():
    changed = {("FedAvg", "IID"): {"method.batch": 8}}
    with pytest.raises(ValueError, match=r"batch \(on IID\): 8 \(FedAvg\); 32 \(Uniform & co.\)"):
        cells(cells=changed)


def test_a_place_on_the_command_line_names_its_difference():
    of_row = tables.apply_settings(definition(), ["fedavg:optimizer.lr=0.5"])
    assert of_row.differ == ("optimizer",)
    assert len(tables.build_cells(of_row, "smoke", [0])) == 4
    of_column = tables.apply_settings(definition(), ["/iid:optimizer.lr=0.5", "rounds=4"])
    assert of_column.differ == ()
    assert len(tables.build_cells(of_column, "smoke", [0])) == 4


def test_what_a_search_chooses_for_all_rows_is_no_difference():
    rates = {"optimizer.lr": LogUniform(0.01, 1.0)}
    other = Row("Other", get_config, {"optimizer.lr": 0.5}, rates)
    found = lambda rows: comparability.find_differences(
        definition(rows=rows), {(row.label, c): _config(row) for row in rows for c in ("IID", "Skewed")}
    )
    assert found((Row("FedAvg", get_config, space=rates), other)) == []
    (difference,) = found((FEDAVG, other))
    assert difference.text == "optimizer.lr=0.1 (FedAvg); optimizer.lr chosen by the search (Other)"
    (difference,) = found((FEDAVG, Row("Other", get_config, space={"clients.epochs": (1, 3)})))
    assert str(difference) == "local epochs: clients.epochs=None (FedAvg); clients.epochs chosen by the search (Other)"


def _config(row):
    config = row.config("smoke")
    with config.unlocked():
        for field, value in row.changes.items():
            config.update_from_flattened_dict({field: value})
    return config


def test_epochs_of_phases_are_added_and_defaults_count():
    rows = [Row("FedRep", fedrep.get_config), Row("pFedPT", pfedpt.get_config)]
    rows += [FEDAVG, Row("Ditto", ditto.get_config)]
    for row in rows:
        options = comparability.read_method_options(row.config("small"))
        assert comparability._count_local_epochs(options, {}) == 5, row.label
    assert comparability._count_local_epochs(options, {"method.epochs": (1, 5)}) == "chosen by the search"


def test_small_configs_of_one_network_are_compared_without_a_word(tmp_path):
    rows = tuple(Row(module.__name__, module.get_config) for module in (fedavg, ditto, fedrep, scaffold, pfedpt))
    own = GLOBAL.__class__("own", ("test/personal/own/accuracy/mean", "test/global/own/accuracy/mean"))
    for variant in ("small", "smoke"):
        assert tables.build_cells(definition(rows=rows, measures=(own,)), variant, [0])
    with pytest.raises(ValueError, match=r"rows differ in network: models=\('mlp',\)"):
        tables.build_cells(definition(rows=(*rows, Row("FedProto", fedproto.get_config)), measures=(own,)), "small", [0])


def test_no_number_of_clients_is_that_of_the_default():
    """None is 20 but for natural clients."""

    def get_twenty(variant="small"):
        config = fedavg.get_config(variant)
        config.data.clients = 20
        return config

    for kind in ("cohort", "data"):
        configs = [experiment.complete_config(make("small")) for make in (fedavg.get_config, get_twenty)]
        settings = [comparability._read_settings(kind, flatten(to_json_values(config)), {}, {}) for config in configs]
        assert settings[0] == settings[1]
