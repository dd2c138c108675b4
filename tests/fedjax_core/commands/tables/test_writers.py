"""The numbers of a written table."""

import csv
import dataclasses
import math

import pytest

from configs.tables.base import Column, Latex, Measure, Paper, Row
from fedjax_core.commands import tables
from fedjax_core.commands.tables import formatting, measures, writers
from tests.fedjax_core.commands.small_tables import GLOBAL, definition, get_config, run

PAPER = {"FedAvg": {"IID": 80.5, "Skewed": Paper(82.0, 0.25, "Table 9")}, "Uniform & co.": None}


def test_numbers_of_the_table(tmp_path, fake):
    run(tmp_path, definition(paper=PAPER, source="Table 2 of Them"))
    text = (tmp_path / "table.md").read_text()
    assert "| FedAvg | 81.00 ± 1.00 [80.50, +0.50] | 81.00 ± 1.00 [82.00 ± 0.25, -1.00] |" in text
    assert "| Uniform & co. | 81.00 ± 1.00 | 81.00 ± 1.00 |" in text
    assert "Table 2 of Them; Table 9" in text
    assert "| FedAvg | IID | 2 | never | 0.5 | 2 kB | 1.5 kB |" in text
    with open(tmp_path / "table.csv", newline="") as file:
        row = next(iter(csv.DictReader(file)))
    wanted = {"n": 3, "mean": 81, "std": 1, "paper": 80.5, "difference": 0.5, "seed_0": 80, "seed_2": 82, "seconds_per_round": 0.5}
    assert {key: round(float(row[key]), 6) for key in wanted} == wanted
    assert (row["rounds_to_0.5"], row["rounds_to_0.9"], row["source"]) == ("2", "never", "Table 2 of Them")
    tex = (tmp_path / "table.tex").read_text()
    assert r"FedAvg & 81.00 $\pm$ 1.00 & 81.00 $\pm$ 1.00 \\" in tex
    assert r"\quad paper, difference & 80.50, +0.50 & 82.00 $\pm$ 0.25, $-$1.00 \\" in tex
    assert r"Uniform \& co." in tex
    assert "Paper: Table 2 of Them; Table 9." in tex
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == tex.count(r"\midrule")


def test_another_setting_than_the_papers_is_said_beside_its_values(tmp_path, fake):
    columns = (Column("IID", {"data.partition": "iid"}), Column("Few", {"data.examples": 1200, "models": ("mlp(widths=(8,))",)}))
    paper = {"FedAvg": {"IID": 80.5, "Few": 82.0}, "Uniform & co.": None}
    table = definition(paper=paper, source="Table 2", columns=columns, changes={"rounds": 7})
    run(tmp_path, table)
    text, tex = (tmp_path / "table.md").read_text(), (tmp_path / "table.tex").read_text()
    whole, few = "IID: digits; 7 rounds; mlp(widths=(4,))", "Few: digits; 1,200 examples; 7 rounds; mlp(widths=(8,))"
    assert f"It is of the paper's setting, ours of variant `smoke`:\n\n- {whole}\n- {few}\n" in text
    assert f"Ours, variant smoke: {few}." in tex
    cells = tables.build_cells(table, "paper", [0])
    assert tables.Contents(table, "paper", cells, {}, {}).settings == []


def test_statistics_and_few_seeds(tmp_path, fake):
    measures = (
        Measure("best", GLOBAL.scores, "best"),
        Measure("mean", ("test/personal/own/accuracy/mean", *GLOBAL.scores), "mean_of_last"),
    )
    table = definition(measures=measures, changes={"evaluation.last_k": 2})
    run(tmp_path, table, seeds=[0])
    run(tmp_path, table, only=["fedavg/iid"], seeds=[0, 2])
    text = (tmp_path / "table.md").read_text()
    best, mean = text.split("## mean")
    assert "| FedAvg | **81.00** ± 1.41 | 80.00 (n=1) |" in best
    assert "| FedAvg | **70.50** ± 0.71 | 70.00 (n=1) |" in mean
    assert "All cells hold `test/global/accuracy`." in mean
    assert "best over rounds, selected on test data" in best
    validated = (Measure("best", ("validation/global/accuracy",), "best"),)
    run(tmp_path / "other", definition(measures=validated, changes={"data.validation": 0.2}), seeds=[0])
    assert "`validation/global/accuracy`, best over rounds, in %." in (tmp_path / "other" / "table.md").read_text()


def contents(values: dict[str, dict[int, float]], scores: dict[str, str], **changes) -> tables.Contents:
    """One column, a row for each label: its values by seed, and the score that they are of."""
    table = definition(
        rows=tuple(Row(label, get_config) for label in values), columns=(Column("IID", {}),), seeds=(0, 1), **changes
    )
    every = tables.build_cells(table, "smoke")
    label = table.measures[0].label
    results = {
        cell.name: tables.Result({label: values[cell.row][cell.seed]}, {label: scores[cell.row]}, {}, 1.0, 1.0, 0.0, 0.0)
        for cell in every
        if cell.seed in values[cell.row]
    }
    return tables.Contents(table, "smoke", every, results, {})


def test_a_cell_says_which_of_the_scores_it_holds():
    own = "test/personal/own/accuracy/mean"
    measure = Measure("accuracy", (*GLOBAL.scores, own))
    found = contents({"A": {0: 0.5}, "B": {0: 0.75}}, {"A": GLOBAL.scores[0], "B": own}, measures=(measure,))
    text = tables.render_markdown(found)
    assert "A cell's letter says which: (a) `test/global/accuracy`, (b) `test/personal/own/accuracy/mean`." in text
    assert "| A | 50.00 (n=1) (a) |\n| B | **75.00** (n=1) (b) |" in text
    tex = writers.render_latex(found)
    assert r"B & \textbf{75.00} (n=1)$^{b}$ \\" in tex
    assert "(a) test accuracy (global model, all test data), (b) test accuracy (personal models, own test rows)." in tex
    assert "test/" not in tex
    assert [row["score"] for row in writers.make_records(found)] == [GLOBAL.scores[0], own]


def test_the_best_of_a_column_is_bold():
    """Means that look alike are best together; where all do, none is. Of a loss the lowest is best, of a count none."""
    values = {"A": {0: 0.9, 1: 0.7}, "B": {0: 0.800001, 1: 0.8}, "C": {0: 0.1, 1: 0.3}}
    names = dict.fromkeys(values, GLOBAL.scores[0])
    text = tables.render_markdown(contents(values, names))
    assert "| A | **80.00** ± 14.14 |\n| B | **80.00** ± 0.00 |\n| C | 20.00 ± 14.14 |" in text
    assert "mean ± sample standard deviation over seeds 0, 1" in text
    assert "Bold: the highest mean of the column." in text
    losses = Measure("loss", ("train/loss",))
    text = tables.render_markdown(contents(values, names, measures=(losses,), targets=()))
    assert "| C | **0.2** ± 0.1414 |" in text
    assert text.count("**") == 2
    assert "**" not in tables.render_markdown(contents({"A": {0: 0.5}, "B": {0: 0.5}}, names))
    assert "**" not in tables.render_markdown(contents({"A": {0: 0.5}}, names))
    for name, better in {"analysis:trained": "neither", "analysis:probe": "larger", "server/norm": "neither"}.items():
        assert measures.better_direction(Measure("x", (name,))) == better
    assert measures.better_direction(dataclasses.replace(losses, better="neither")) == "neither"
    tex = writers.render_latex(contents(values, names))
    assert r"A & \textbf{80.00} $\pm$ 14.14 \\" in tex
    assert r"Mean $\pm$ sample standard deviation over seeds 0, 1." in tex


def test_what_is_not_finite_has_no_difference_to_the_paper():
    values = {"A": {0: math.nan}, "B": {0: 0.5}}
    paper = {"A": {"IID": 90.0}, "B": {"IID": 80.0}}
    found = contents(values, dict.fromkeys(values, GLOBAL.scores[0]), paper=paper, source="Table 1")
    text = tables.render_markdown(found)
    assert "| A | nan (n=1) [90.00] |" in text
    assert "| B | 50.00 (n=1) [80.00, -30.00] |" in text


def test_many_rounds_are_written_out():
    assert [formatting.format_rounds(each) for each in ([1234, 1300, None], [1000], [99, 100], [7])] == [
        "1,267 (2 of 3)",
        "1,000",
        "99.5",
        "7",
    ]
    found = contents({"A": {0: 0.5, 1: 0.5}}, {"A": GLOBAL.scores[0]})
    results = {name: one._replace(reached={0.5: 1234}, seconds_per_round=1500.0) for name, one in found.results.items()}
    found = dataclasses.replace(found, results=results)
    assert "| A | IID | 1,234 | | 1,500 |" in tables.render_markdown(found).replace("|  |", "| |")
    assert writers.make_records(found)[0]["rounds_to_0.5"] == "1234"


def test_a_label_is_no_option_of_the_line_above():
    labels = ("[A]", "*D", "B [C]")
    tex = writers.render_latex(contents({label: {0: 0.5} for label in labels}, dict.fromkeys(labels, GLOBAL.scores[0])))
    lines = tex.splitlines()
    assert [line.partition(" &")[0] for line in lines if line.endswith(r"(n=1) \\")] == ["{}[A]", "{}*D", "B [C]"]


def test_notes_of_latex_wrap_below_the_tabular(tmp_path, fake):
    one_column = (definition().columns[0],)
    run(tmp_path, definition(note="A long note with `code` & signs. " * 9, against="FedAvg", columns=one_column))
    tex = (tmp_path / "table.tex").read_text()
    assert r"\multicolumn" not in tex
    below = tex.partition(r"\end{tabular}")[2].partition(r"\end{minipage}")[0]
    assert below.startswith("\n\\par\\smallskip\n\\noindent\\begin{minipage}{\\linewidth}\n\\footnotesize")
    assert r"Mean $\pm$ sample standard deviation over seeds 0, 1, 2." in below
    assert "Test accuracy (global model, all test data), last round" in below
    assert r"A long note with code \& signs." in below
    assert r"hold the true mean in about 75~\% of the cases, not in 95~\%" in below
    assert r"Uniform \& co. & 1.5 [1, 2]; +0.00 [+0.00, +0.00] \\" in tex
    assert r"\begin{table}" not in tex


def test_latex_in_environments(tmp_path, fake):
    """With caption and label; what is to be set is checked."""
    run(tmp_path / "a", definition(latex=Latex()), seeds=[0])
    tex = (tmp_path / "a" / "table.tex").read_text()
    opening = "\\begin{table}[t]\n\\centering\n\\caption{Small}\n\\label{tab:small}\n\\begin{tabular}{lrr}\n\\toprule\n"
    assert opening in tex
    assert r"\caption{Small: rounds, time, traffic}" in tex
    assert tex.count(r"\begin{table}") == tex.count(r"\end{table}") == tex.count(r"\end{tabular}")
    measures = (GLOBAL, Measure("best & first", GLOBAL.scores, "best"))
    latex_of = Latex("table*", r"Accuracy in $\%$.", "tab:x", "h!")
    run(tmp_path / "b", definition(latex=latex_of, measures=measures), seeds=[0])
    tex = (tmp_path / "b" / "table.tex").read_text()
    assert "\\begin{table*}[h!]\n\\centering\n\\caption{Accuracy in $\\%$: global}\n\\label{tab:x-global}\n" in tex
    assert "\\caption{Accuracy in $\\%$: best \\& first}\n\\label{tab:x-best-first}\n" in tex
    for wrong in ({"environment": "figure"}, {"label": "tab:a b"}, {"caption": 3}):
        (field,) = wrong
        with pytest.raises(ValueError, match=f"^latex: {field}="):
            tables.build_cells(definition(latex=Latex(**wrong)), "smoke")
    with pytest.raises(ValueError, match=r"latex='table' must be Latex\(...\) or None"):
        tables.build_cells(definition(latex="table"), "smoke")


def test_numbers_below_0_have_a_minus_in_latex():
    measure = Measure("R2", ("test/global/r2",))
    tex = writers.render_latex(
        contents({"A": {0: -0.5, 1: -0.25}, "B-1": {0: 0.5, 1: 0.5}}, {"A": "x", "B-1": "x"}, measures=(measure,), targets=())
    )
    assert r"A & $-$0.375 $\pm$" in tex
    assert r"B-1 & \textbf{0.5}" in tex
