"""Rounds to a target as a measure of tables: what they are of known curves, and how they stand beside published numbers."""

import csv
import dataclasses
import math

import numpy as np
import pytest

from configs.tables.base import Measure, Paper
from fedjax_core.commands import tables
from fedjax_core.commands.tables import formatting, measures
from fedjax_core.commands.tables.results import Summary
from fedjax_core.reporting.rounds_to_target import interpolate_crossing
from fedjax_core.reporting.summary import summarize_records
from tests.fedjax_core.commands.small_tables import GLOBAL, definition, run


def to(target: float) -> Measure:
    return Measure(f"to {target}", GLOBAL.scores, f"rounds_to(target={target})")


@pytest.mark.parametrize(
    ("rounds", "values", "target", "wanted"),
    [
        ([10, 20], [0.9, 1.0], 0.97, 17.0),
        ([10, 20, 30], [0.9, 0.8, 1.0], 0.95, 25.0),  # from the best so far, not from the dip
        ([10, 20, 30], [0.9, math.nan, 1.0], 0.95, 20.0),  # what is not finite is no evaluation
        ([10, 20, 30], [0.9, 0.96, 0.5], 0.96, 20.0),  # reached, whatever comes later
        ([10, 20], [0.98, 0.99], 0.97, 10.0),
        ([10, 20], [0.9, 0.96], 0.97, math.inf),
        ([], [], 0.97, math.inf),
    ],
)
def test_known_curves(rounds, values, target, wanted):
    assert interpolate_crossing(rounds, values, target) == pytest.approx(wanted)
    assert interpolate_crossing(rounds, [1 - v for v in values], 1 - target, larger=False) == pytest.approx(wanted)


def test_a_score_that_is_the_target_reaches_it():
    """342 of 360 are 0.949999988 in float32."""
    value = float(np.float32(342) / np.float32(360))
    assert interpolate_crossing([10, 20], [0.9, value], 0.95) == 20.0
    assert interpolate_crossing([10], [value], 0.95) == 10.0
    (entry,) = summarize_records([{"round": 10, "test/global/accuracy": value}], (0.95, 0.951))["metrics"].values()
    assert entry["rounds_to"] == {"0.95": 10, "0.951": None}


def test_the_numbers_of_a_table(tmp_path, fake):
    del fake
    paper = {"FedAvg": {"IID": 5.0, "Skewed": Paper(math.inf)}, "Uniform & co.": {"IID": 2.5, "Skewed": None}}
    run(tmp_path, definition(measures=(to(0.7),), paper=paper, source="Table 1", against="FedAvg", targets=()))
    text = (tmp_path / "table.md").read_text()
    each = [2 + 0.1 / (0.2 + seed / 100) for seed in range(3)]
    mean = f"{sum(each) / 3:.4g} ± 0.02274"
    assert f"| FedAvg | {mean} [5, x0.50] | {mean} [never] |" in text
    assert f"| Uniform & co. | {mean} [2.5, x0.99] | {mean} |" in text
    assert "How many times fewer rounds than FedAvg." in text
    assert "| Uniform & co. | 1x [2x] | 1x |" in text
    assert "or of rounds to a target ours over it: Table 1." in text
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["paper"] for row in rows] == ["5.0", "never", "2.5", ""]
    assert [float(rows[0][f"seed_{seed}"]) for seed in range(3)] == pytest.approx(each)
    assert r"\quad paper, ratio & 5, x0.50 & never \\" in (tmp_path / "table.tex").read_text()


def test_seconds_to_a_target(tmp_path, fake):
    """As rounds, read off the simulated time of the evaluations; without such time there are none."""
    fake.more = {"simulated_seconds_total": 60.0}
    seconds = Measure("time to 0.7", GLOBAL.scores, "seconds_to(target=0.7)")
    run(tmp_path / "timed", definition(measures=(seconds,), targets=(), against="FedAvg"))
    text = (tmp_path / "timed" / "table.md").read_text()
    assert "| FedAvg | 60 ± 0 | 60 ± 0 |" in text
    assert "Simulated seconds until `test/global/accuracy` crosses 0.7" in text
    assert "How many times less time than FedAvg." in text
    minutes = dataclasses.replace(seconds, label="minutes to 0.7", unit=60)
    run(tmp_path / "minutes", definition(measures=(minutes,), targets=()))
    text = (tmp_path / "minutes" / "table.md").read_text()
    assert "| FedAvg | 1 ± 0 | 1 ± 0 |" in text
    assert "Simulated seconds until `test/global/accuracy` crosses 0.7, in units of 60 simulated seconds: of each" in text
    assert "% minutes to 0.7, in units of 60 simulated seconds" in (tmp_path / "minutes" / "table.tex").read_text()
    assert measures.describe_unit(dataclasses.replace(to(0.7), unit=1000)) == ", in units of 1000 rounds"
    fake.more = {}
    outcome, _ = run(tmp_path / "plain", definition(measures=(seconds,), targets=()), only=["fedavg/iid"], seeds=[0])
    assert list(outcome.failures.values()) == ["the run has no simulated time, for it ran without devices.profile"]


def test_targets_that_some_seeds_do_not_reach(tmp_path, fake):
    """They are counted, their mean is of the others, and such a cell is not the best."""
    del fake
    run(tmp_path, definition(measures=(to(0.805), to(0.9)), targets=()), only=["fedavg"])
    some, none = (tmp_path / "table.md").read_text().split("## to 0.9")
    assert "| FedAvg | 2.954 (2 of 3) | 2.954 (2 of 3) |" in some
    assert "| FedAvg | never | never |" in none
    assert "**" not in some + none
    with open(tmp_path / "table.csv", newline="") as file:
        assert next(iter(csv.DictReader(file)))["seed_0"] == "never"


def test_speed_ups_are_of_cells_that_all_seeds_reach():
    of = lambda *rounds: Summary(len(rounds), rounds[0], 0.0, None, dict(enumerate(rounds)), (), False)
    assert formatting.format_speedup(of(2.0, 2.0), of(5.0, 5.0)) == "2.5x"
    assert formatting.format_speedup(of(2.0, math.inf), of(5.0, 5.0)) == ""
    assert formatting.format_speedup(of(2.0, 2.0), of(5.0, math.inf)) == ""
    assert formatting.format_speedup(of(2.0, 2.0), of(5.0)) == formatting.format_speedup(of(2.0), of(5.0, 5.0)) == "", (
        "of other seeds"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"statistic": "rounds_to"}, "needs the option 'target'"),
        ({"statistic": "rounds_to(target='high')"}, "target='high' must be"),
        ({"statistic": "rounds_too(target=0.9)"}, "unknown statistic of measure 'x' 'rounds_too'.*Did you mean 'rounds_to'"),
        ({"statistic": "rounds_to(target=0.9)", "scores": ("server/norm",)}, "is of accuracies or losses"),
        ({"statistic": "rounds_to(target=97)"}, r"target=97 must be in \[0, 1\], as accuracies do"),
        ({"statistic": "rounds_to(target=0.9)", "percent": True}, "not shown in per cent"),
    ],
)
def test_wrong_ones_end_before_anything_runs(tmp_path, changes, said):
    measure = Measure(**({"label": "x", "scores": GLOBAL.scores} | changes))
    with pytest.raises((ValueError, TypeError), match=said):
        run(tmp_path / "table", definition(measures=(measure,)))
    assert not (tmp_path / "table").exists()


def test_runs_that_end_elsewhere_have_other_directories():
    texts = [f"test/global/accuracy >= {value}" for value in (0.8, 0.9)]
    names = {tables.build_cells(definition(changes={"evaluation.until": text}), "smoke")[0].name for text in texts}
    assert len(names) == 2
    select = {"evaluation.select": "validation/global/accuracy", "data.validation": 0.2}
    ends = [{"evaluation.patience": number} for number in (2, 20, None)]
    names = {tables.build_cells(definition(changes=select | end), "smoke")[0].name for end in ends}
    assert len(names | {tables.build_cells(definition(changes=select), "smoke")[0].name}) == 3, "none is as if it were not there"


def test_only_rounds_may_never_be_reached():
    wrong = definition(paper={"FedAvg": {"IID": math.inf, "Skewed": None}, "Uniform & co.": None}, source="Table 1")
    with pytest.raises(ValueError, match="inf is not a number"):
        tables.build_cells(wrong, "smoke")
