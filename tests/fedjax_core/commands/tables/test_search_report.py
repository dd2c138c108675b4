"""What is said of a search: which settings were chosen, among how many."""

import csv
import re
from types import SimpleNamespace

from configs.tables.base import Row
from fedjax_core.atomic_files import write_text
from fedjax_core.commands.tables import formatting
from tests.fedjax_core.commands.tables.searches import definition, get_config, line, quality, run


def test_the_records_say_what_was_chosen(tmp_path, fake_search):
    rows = (Row("A", get_config, space={"optimizer.lr": (0.01, 0.02, 0.03, 0.2)}),)
    run(tmp_path, definition(rows=rows))
    with open(tmp_path / "table.csv", newline="") as file:
        (record,) = csv.DictReader(file)
    wanted = {"trials": "4", "diverged": "0", "validation": record["validation"]}
    assert {name: record[name] for name in wanted} == wanted
    lr = float(record["chosen"].split(":")[1].rstrip("}"))
    edge = f"optimizer.lr={lr} at the upper edge" if lr == 0.2 else ""
    assert record["at_edge"] == edge
    assert edge in line(tmp_path, "A")
    assert float(record["validation"]) >= float(record["validation_own"])


def test_latex_says_what_was_chosen(tmp_path, fake_search):
    rows = (Row("A & co.", get_config, space={"optimizer.lr": (0.01, 0.02, 0.2)}), Row("B", get_config))
    run(tmp_path, definition({"fewer": ("B",)}, rows=rows))
    tex = (tmp_path / "table.tex").read_text()
    best, own = (
        100 * quality(SimpleNamespace(optimizer=SimpleNamespace(lr=lr), method=SimpleNamespace(weights=""))) for lr in (0.2, 0.1)
    )
    chosen = rf"optimizer.lr=0.2 & {best:.2f} & {own:.2f} & +{best - own:.2f} & optimizer.lr=0.2 at the upper edge \\"
    assert rf"A \& co. & IID & 4 & {chosen}" in tex
    assert r"B & IID & 1 & not tuned &  &  &  &  \\" in tex
    score = formatting.describe_score("validation/global/accuracy")
    assert rf"Chosen by {score} in~\%, on validation examples alone." in " ".join(tex.split())
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 3


def test_how_trials_were_halved_is_said_as_it_was_done(tmp_path, fake_search):
    run(tmp_path, definition({"halving": 2, "trials": 4}))
    said = (
        "(random, seed 0) of as many rounds as the runs (the best alone go on, 2 after round 1, 1 after round 2, and the first in"
    )
    assert said in (tmp_path / "table.md").read_text()
    run(tmp_path, definition({"halving": 3, "trials": 2}))
    assert "(random, seed 0) of as many rounds as the runs, trained with seed 0" in (tmp_path / "table.md").read_text()
    run(tmp_path, definition(search=None, rows=(Row("A", get_config),)))
    assert not (tmp_path / "trials.csv").exists()


def test_a_damaged_summary_is_named_in_one_line(tmp_path, fake_search):
    run(tmp_path, only=["a"])
    (summary,) = {next((tmp_path / "runs").glob("a--*")) / "summary.json"}
    for text, said in (
        ("[]", "summary.json is a list, expected an object"),
        ('{"rounds": 4}', "summary.json has no facts"),
        ("{", "summary.json is not JSON"),
        ('{"rounds": 4, "facts": {}, "speed": 3}', r"speed of .*summary\.json is an int"),
    ):
        write_text(summary, text)
        outcome, _ = run(tmp_path, only=["a"])
        (why,) = outcome.failures.values()
        assert re.search(said, why)
        assert "\n" not in why
