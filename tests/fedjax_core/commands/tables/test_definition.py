"""Wrong definitions of tables: each ends before anything runs."""

import pytest

from configs.tables.base import Column, Measure, Row
from fedjax_core.commands import table
from fedjax_core.reporting import console
from tests.fedjax_core.commands.small_tables import GLOBAL, definition, get_config, run

FIRST = "configs/tables/first.py"

IID = {"IID": 1.0, "Skewed": 2.0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(rows=()), "the table has no rows"),
        (dict(rows=(Row("A b", get_config), Row("a-B", get_config))), "rows 'A b' and 'a-B' have one name, 'a-b'"),
        (dict(columns=(Column("x", {}), Column("x", {}))), "columns 'x' and 'x' have one name"),
        (dict(rows=(Row("?", get_config),)), "row '\\?' has no letter or digit"),
        (dict(rows=(Row("x", get_config, {"method": {"name": "fedavgg"}}),)), "x / IID: unknown method 'fedavgg'.* 'fedavg'\\?"),
        (dict(changes={"optimizer.lrr": 1.0}), "the config has no field optimizer.lrr. Did you mean 'optimizer.lr'\\?"),
        (dict(changes={"optimiser.lr": 1.0}), "no field optimiser.lr. Did you mean 'optimizer.lr'"),
        (dict(changes={"method.weight": "uniform"}), "method 'fedavg' has no option 'weight'.*'weights'"),
        (dict(changes={"rounds": "many"}), "rounds='many'"),
        (dict(changes={"models": ("mpl",)}), "unknown model 'mpl'.*'mlp'"),
        (dict(columns=(Column("x", {"data.partition": "dirichlt(alpha=1)"}),)), "x: unknown partition 'dirichlt'.*'dirichlet'"),
        (dict(changes={"data.source": "cifar"}), "unknown data set 'cifar'"),
        (dict(cells={("FedAvg", "IDD"): {}}), "unknown column in cells 'IDD'.*'IID'"),
        (dict(paper={"FedAvgg": IID}), "unknown row in paper 'FedAvgg'.*'FedAvg'"),
        (dict(paper={"FedAvg": {"IDD": 1.0}}), "unknown column in paper 'IDD'.*'IID'"),
        (dict(paper={"FedAvg": IID}, source="T"), "row 'Uniform & co.' is missing; write None"),
        (dict(paper={"FedAvg": {"IID": 1.0}, "Uniform & co.": None}, source="T"), "'FedAvg' / 'Skewed' is missing; write None"),
        (dict(paper={"FedAvg": IID, "Uniform & co.": None}), "say which table of which paper 1.0 is from"),
        (dict(paper={"FedAvg": {"IID": "80", "Skewed": None}, "Uniform & co.": None}, source="T"), "'80' is not a number"),
        (dict(measures=(Measure("x", GLOBAL.scores, "final"),)), "unknown statistic of measure 'x' 'final'.*last"),
        (dict(measures=(Measure("x", "test/global/accuracy"),)), "scores='test.*' must be a tuple"),
        (dict(measures=(Measure("x", ("test/accuracy",)),)), "'test/accuracy' is no name of a score"),
        (dict(measures=(Measure("x", ("test/personal/all/accuracy/mean",)),)), "measure 'x' needs 'all' in evaluation.scopes"),
        (dict(measures=(Measure("x", ("test/global/acuracy",)),)), "unknown score in .* of measure 'x' 'acuracy'.*'accuracy'"),
        (dict(measures=(Measure("x", ("test/personal/own/loss/maen",)),)), "unknown statistic in .* 'maen'.*'mean'"),
        (dict(measures=(Measure("x", GLOBAL.scores, "selected"),)), "measure 'x' is of the selected round; set evaluation.select"),
        (dict(measures=(Measure("x", ("validation/global/loss",)),)), "'validation/global/loss' needs data.validation"),
        (dict(measures=(Measure("x", ("test/global/gap/accuracy",)),)), "needs data.unseen_clients"),
        (
            dict(
                measures=(Measure("x", ("test/global/gap/accuracy",)),),
                changes={"data.unseen_clients": 1, "evaluation.scopes": ("global",)},
            ),
            "measure 'x' needs 'own' in evaluation.scopes",
        ),
        (
            dict(measures=(Measure("x", ("test/global/loss",), "best"),)),
            "best round is known of accuracies and R2 alone, found '.*loss'",
        ),
        (dict(measures=(Measure("x", ("analysis:prob",)),)), "unknown analysis 'prob'.*'probe'"),
        (dict(measures=(Measure("x", GLOBAL.scores, better="higher"),)), "unknown better of measure 'x' 'higher'.*larger"),
        (dict(targets=(80,)), "target 80 is not an accuracy"),
        (dict(seeds=(0, 0)), "each once"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),  # no addresses: workers must agree
)
def test_a_wrong_definition_ends_before_anything_runs(tmp_path, fake, changes, said):
    with pytest.raises((ValueError, TypeError), match=said) as caught:
        run(tmp_path / "table", definition(**changes))
    assert "\n" not in console.one_line(caught.value)
    assert not fake.done
    assert not (tmp_path / "table").exists()


def test_files_that_define_no_table(tmp_path, capsys, fake):
    (tmp_path / "a.py").write_text("def get_table(variant):\n    return Tabel()\n")
    (tmp_path / "b.py").write_text("def get_table(variant):\n    return {}\n")
    (tmp_path / "c.py").write_text("x = 1\n")
    for name, said in {"none.py": "there is no table", "a.py": "'Tabel' is not defined", "b.py": "", "c.py": "get_table"}.items():
        assert table.main([f"--table={tmp_path / name}", f"--workdir={tmp_path / 'w'}"]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
        assert said in lines[0]
    for flags, said in {
        (f"--table={FIRST}",): "--workdir",
        (f"--table={FIRST}", "--workdir=w", "--seeds=a"): "--seeds=a: ",
    }.items():
        assert table.main(list(flags)) == 2
        assert said in capsys.readouterr().err
    assert table.main([f"--table={FIRST}", f"--workdir={tmp_path / 'w'}", "--variant=huge"]) == 2
    assert "'huge' is not one of paper, small, smoke" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()
    assert not fake.done
