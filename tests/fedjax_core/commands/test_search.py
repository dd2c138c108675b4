"""The search of a table: what is drawn, run and kept, which trial is chosen, what is said. Most runs here are made up."""

import csv
import dataclasses
import math
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs import fedavg
from configs.tables.base import Column, LogUniform, Measure, Row, Search, Table, Uniform
from fedjax_core import experiment
from fedjax_core.commands import table as command
from fedjax_core.commands import tables
from fedjax_core.commands.tables import running, search, spaces, trials
from fedjax_core.engine.simulation import Diverged
from fedjax_core.reporting import report
from fedjax_core.storage.files import write_text
from fedjax_core.storage.json_files import json_lines, read_json, read_jsonl, write_json

BY = "validation/global/accuracy"
RATES = {"optimizer.lr": LogUniform(0.01, 1.0)}


def get_config(variant: str) -> Any:
    config = fedavg.get_config(variant)
    config.rounds, config.evaluation.every, config.data.clients, config.models = 4, 1, 4, ("mlp(widths=(4,))",)
    config.data.validation = 0.2
    return config


def definition(of: dict[str, Any] | None = None, **changes) -> Table:
    """Two rows, one column, one seed, a random search of four trials."""
    made = Table(
        title="Small",
        rows=(Row("A", get_config, space=RATES), Row("B", get_config, {"method.weights": "uniform"}, RATES)),
        columns=(Column("IID", {"data.partition": "iid"}),),
        measures=(Measure("global", ("test/global/accuracy",)),),
        seeds=(0,),
        search=dataclasses.replace(Search(BY, 4), **(of or {})),
    )
    return dataclasses.replace(made, **changes)


def quality(config: Any) -> float:
    """Of a setting: the best rate is 0.3, and uniform weights are worse."""
    return 0.9 - abs(math.log10(config.optimizer.lr / 0.3)) / 10 - (0.05 if config.method.weights == "uniform" else 0)


@pytest.fixture
def fake(monkeypatch):
    """Runs that take no time and go on where they were; `fake.done`: (row, rate, rounds) of each; `fake.act` is called before."""
    made = SimpleNamespace(done=[], score=quality, act=lambda name, config: None)

    def execute(config, workdir, progress, *, data, console):
        del progress, data, console
        place = Path(workdir)
        made.done.append((place.name.partition("--")[0], config.optimizer.lr, config.rounds))
        made.act(place.name, config)
        place.mkdir(parents=True, exist_ok=True)
        there = len(read_jsonl(place / "metrics.jsonl")) if (place / "metrics.jsonl").exists() else 0
        with report.Reporter(workdir, config.rounds, progress=False, select=config.evaluation.get("select")) as reporter:
            reporter.resume(there)
            for i in range(there + 1, config.rounds + 1):
                score = made.score(config)
                reporter.log(
                    {"round": i, "seconds": 2.0, "test/global/accuracy": score, BY: score, "validation/global/loss": -score}
                )
            reporter.note(bytes_down=2000.0, bytes_up=1500.0)
        return SimpleNamespace(stopped=False)

    monkeypatch.setattr(experiment, "execute", execute)
    monkeypatch.setattr(experiment, "dataset", lambda config: None)
    monkeypatch.setattr(running, "_forget", lambda: None)
    return made


def run(directory, table=None, **options) -> tuple[tables.Outcome, list[str]]:
    said: list[str] = []
    return tables.run(table or definition(), str(directory), "smoke", say=said.append, **options), said


def line(directory, row: str, heading: str = "## Search") -> str:
    """A row of a part of table.md."""
    text = (directory / "table.md").read_text().split(heading)[1]
    return next(found for found in text.splitlines() if found.startswith(f"| {row} |"))


def rates(table: Table | None = None, row: str = "A") -> list[float]:
    return [t.values["optimizer.lr"] for t in tables.plan(table or definition(), "smoke")[row, "IID"].trials]


# ------------------------------------------------------------------------------------------------ what is tried


def test_draws_follow_from_the_seed_the_trial_and_the_field():
    """More trials, other fields and other rows leave them as they are; all rows have the same rates."""
    space = {"optimizer.lr": LogUniform(1e-3, 1.0), "method.mu": Uniform(2.0, 3.0), "method.k": ("a", "b", None)}
    few, many = (spaces.settings(space, "random", 0, number, {}) for number in (5, 200))
    assert many[:5] == few
    assert [p["optimizer.lr"] for p in spaces.settings({"optimizer.lr": space["optimizer.lr"]}, "random", 0, 5, {})] == [
        p["optimizer.lr"] for p in few
    ]
    assert spaces.settings(space, "random", 1, 5, {}) != few
    assert rates(row="A") == rates(row="B")
    assert rates()[0] == 0.1, "the row's own"
    logs = [math.log10(p["optimizer.lr"]) for p in many]
    assert min(logs) >= -3
    assert max(logs) <= 0
    assert abs(sum(logs) / 200 + 1.5) < 0.2, "all magnitudes alike"
    assert abs(sum(p["method.mu"] for p in many) / 200 - 2.5) < 0.07
    assert {p["method.k"] for p in many} == {"a", "b", None}
    assert all(float(f"{p['method.mu']:.4g}") == p["method.mu"] for p in many), "what is shown is what was tried"


@pytest.mark.parametrize("sampler", search.SAMPLERS)
def test_points_are_all_different_and_never_the_rows_own(sampler):
    space = {"a": (1, 2, 3), "b": (True, False)}
    found = spaces.settings(space, sampler, 0, 99, {"a": 2.0, "b": True})
    assert len(found) == 5
    assert len({str(point) for point in found}) == 5
    assert {"a": 2, "b": True} not in found
    assert spaces.settings(space, sampler, 0, 3, {"a": 2, "b": True}) == found[:3]
    assert len(spaces.settings(space, sampler, 0, 99, {"a": 4, "b": True})) == 6
    assert spaces.settings(space, sampler, 5, 5, {"a": 2, "b": True}) != found


def test_values_at_the_edge():
    space = {"r": LogUniform(0.01, 1.0), "u": Uniform(0, 1), "t": (1, 2, 4), "two": (1, 2), "name": ("a", "b", "c")}
    middle = {"r": 0.1, "u": 0.5, "t": 2, "two": 1, "name": "a"}
    assert spaces.edges(space, middle) == []
    for change, said in {
        ("r", 0.9): "r=0.9 at the upper edge",
        ("r", 0.015): "r=0.015 at the lower edge",
        ("r", 2.0): "r=2.0 beyond the upper edge",
        ("r", 0): "r=0 beyond the lower edge",
        ("u", 0.05): "u=0.05 at the lower edge",
        ("t", 4): "t=4 at the upper edge",
        ("t", 0.5): "t=0.5 beyond the lower edge",
    }.items():
        assert spaces.edges(space, middle | dict([change])) == [said]


def test_rungs_lie_where_runs_are_scored_anyway():
    assert search.rungs(9, 50, 10, 3) == (search.Rung(10, 9), search.Rung(20, 3), search.Rung(50, 1))
    assert search.rungs(8, 2, 1, 2) == (search.Rung(1, 8), search.Rung(2, 1)), "halts that come together cut once"
    assert search.rungs(2, 7, 5, 3) == (search.Rung(7, 2),)


# ------------------------------------------------------------------------------------------------ what is run


def test_trials_come_first_and_the_best_one_is_the_cells_run(tmp_path, fake):
    outcome, said = run(tmp_path)
    tried = rates()
    assert fake.done == [(row, rate, 4) for row in ("a", "b") for rate in tried], "cells of seed 0 are the trials that were chosen"
    best = max(tried, key=lambda rate: -abs(math.log10(rate / 0.3)))
    assert best != tried[0]
    assert said[0] == "0 of 8 runs of the search and 0 of 2 runs are finished, 10 to do"
    assert said[1] == "1/10  A / IID / trial 0 / seed 0"
    assert said[-2] == "all 2 runs are finished"
    assert sorted(r.values["global"] for r in outcome.results.values()) == pytest.approx(
        [quality(SimpleNamespace(optimizer=SimpleNamespace(lr=best), method=SimpleNamespace(weights=w))) for w in ("uniform", "")]
    )
    run(tmp_path)
    assert len(fake.done) == 8, "all is found finished"
    run(tmp_path, definition(seeds=(0, 7)))
    assert fake.done[8:] == [("a", best, 4), ("b", best, 4)]
    more = definition({"trials": 6})
    assert rates(more)[:4] == tried
    run(tmp_path, more, only=["a"])
    assert [done[:2] for done in fake.done[10:12]] == [("a", rate) for rate in rates(more)[4:]]


def test_shorter_trials_are_other_runs_and_other_tables_find_them(tmp_path, fake):
    short = definition({"rounds": 2, "seeds": (5, 6)})
    run(tmp_path, short)
    assert [done[2] for done in fake.done] == [2] * 16 + [4] * 2
    alone = dataclasses.replace(short, rows=short.rows[:1], seeds=(0, 1), measures=(*short.measures, Measure("l", (BY,))))
    run(tmp_path, alone)
    assert len(fake.done) == 19, "one new seed"


def test_only_searches_what_it_names(tmp_path, fake):
    two = definition(
        columns=(Column("IID", {"data.partition": "iid"}), Column("Skewed", {"data.partition": "dirichlet(alpha=1.0)"}))
    )
    run(tmp_path, two, only=["b/skewed"])
    assert {done[0] for done in fake.done} == {"b"}
    assert len(fake.done) == 4
    assert "| A | IID | 4 | 0 of 4 runs |" in (tmp_path / "table.md").read_text()
    run(tmp_path, two)
    assert len(fake.done) == 16


@pytest.mark.parametrize("at", [1, 6, 9, 13])
def test_interrupted_anywhere_it_goes_on_and_ends_the_same(tmp_path, fake, at):
    """Stopped before its nth run: no run is done twice, and the table is that of an uninterrupted one."""
    of = {"trials": 4, "halving": 2, "seeds": (0, 1)}
    run(tmp_path / "whole", definition(of, seeds=(0, 3)), only=["a"])
    whole, fake.done = fake.done, []

    def act(name, config):
        if len(fake.done) == at:
            fake.act = lambda name, config: None
            fake.done.pop()
            raise KeyboardInterrupt

    fake.act = act
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", definition(of, seeds=(0, 3)), only=["a"])
    run(tmp_path / "parts", definition(of, seeds=(0, 3)), only=["a"])
    assert fake.done == whole
    for name in ("table.md", "table.csv", "trials.csv"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_halving_runs_all_a_little_and_the_best_to_the_end(tmp_path, fake):
    """Rungs of 1, 2 and 4 rounds with 4, 2 and 1 trials; trial 0 goes along, for it tells what tuning was worth."""
    table = definition({"halving": 2, "trials": 4})
    _, said = run(tmp_path, table, only=["a"])
    tried = rates(table)
    better = sorted(tried, key=lambda rate: abs(math.log10(rate / 0.3)))
    assert tried[0] not in better[:2]
    assert fake.done[:4] == [("a", rate, 1) for rate in tried]
    assert fake.done[4:7] == [("a", rate, 2) for rate in tried if rate in (*better[:2], tried[0])]
    assert fake.done[7:] == [("a", rate, 4) for rate in tried if rate in (better[0], tried[0])]
    assert said[0].startswith("0 of 9 runs of the search")
    own, best = (
        quality(SimpleNamespace(optimizer=SimpleNamespace(lr=lr), method=SimpleNamespace(weights=""))) for lr in (0.1, better[0])
    )
    assert f"| 4 | optimizer.lr={better[0]} | {100 * best:.2f} | {100 * own:.2f} | +{100 * (best - own):.2f} |" in line(
        tmp_path, "A"
    )
    with open(tmp_path / "trials.csv", newline="") as file:
        found = [row for row in csv.DictReader(file) if row["row"] == "A"]
    assert sorted(int(row["rounds"]) for row in found) == [1, 2, 4, 4]
    assert [float(row["optimizer.lr"]) for row in found if row["chosen"] == "1"] == [better[0]]


def test_halving_in_lanes_does_each_rung_once(tmp_path, fake, monkeypatch):
    """Two trials at a time: the same runs as one after the other, though trial 0 goes on in every rung."""

    def execute_all(runs, progress, *, data, say):
        assert progress is False, "no two bars at once"
        fake.together.append([one.config.rounds for one in runs])
        return [experiment.execute(one.config, one.workdir, False, data=data, console=one.console) for one in runs]

    def act(name, config):
        assert len(fake.done) <= 9, "a run is done again and again"

    fake.together, fake.act = [], act
    monkeypatch.setattr(experiment, "execute_all", execute_all)
    table = definition({"halving": 2, "trials": 4}, changes={"plan.lanes": 2})
    outcome, _ = run(tmp_path, table, only=["a"], progress=True)
    assert not outcome.failures
    assert sorted(done[2] for done in fake.done) == [1, 1, 1, 1, 2, 2, 2, 4, 4]
    assert fake.together == [[1, 1], [1, 1], [2, 2], [4, 4]]


def test_a_longer_run_that_is_there_serves_every_rung(tmp_path, fake):
    """Scores at a rung are of its round, whoever went on from there."""
    run(tmp_path, only=["a"])
    before = len(fake.done)
    run(tmp_path, definition({"halving": 2}), only=["a"])
    assert len(fake.done) == before


def test_a_run_that_was_killed_between_rungs_keeps_its_records(tmp_path):
    """Its summary is of the rung below; a later score is known where the run has gone beyond, or has ended."""
    records = [{"round": i, BY: i / 10} for i in (1, 2, 3)]
    write_text(tmp_path / "metrics.jsonl", json_lines(records))
    write_json(tmp_path / "summary.json", {"rounds": 1, "facts": {}})

    def score(rounds):
        config = get_config("smoke")
        config.rounds = rounds
        return trials.score_of(tmp_path, tables.Cell("A", "IID", 0, config, "a", 1), ("validation/other", BY))

    assert [score(rounds) for rounds in (1, 2, 3, 4)] == [0.1, 0.2, None, None]
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 3
    write_text(tmp_path / trials.DIVERGED, "round 4: the loss is not finite\n")
    assert score(2) == 0.2
    assert math.isnan(score(4))
    write_json(tmp_path / "summary.json", {"rounds": 3, "facts": {"ended": "no better one"}})
    assert score(4) == 0.3


def test_time_left_is_over_trials_and_cells(tmp_path, fake):
    _, said = run(tmp_path, definition({"rounds": 2}), only=["a"])
    assert said[1].startswith("1/5  A / IID / trial 0 / seed 0")
    assert said[2].startswith("2/5  A / IID / trial 1 / seed 0  (about ")
    assert said[5].startswith("5/5  A / IID / seed 0  (about ")


# ------------------------------------------------------------------------------------------------ what is chosen


def test_of_equal_trials_the_first_is_chosen_and_of_losses_the_lowest(tmp_path, fake):
    fake.score = lambda config: 0.5
    run(tmp_path / "a")
    assert "| 4 | its own | 50.00 | 50.00 | +0.00 |" in line(tmp_path / "a", "A")
    fake.score = quality
    run(tmp_path / "b")
    run(tmp_path / "c", definition({"measure": ("validation/personal/own/loss/mean", "validation/global/loss")}))
    assert line(tmp_path / "b", "A").split("|")[4] == line(tmp_path / "c", "A").split("|")[4]
    assert line(tmp_path / "c", "A").split("|")[7].startswith(" +0.0"), "a lower loss is a gain"


def test_with_a_selected_round_its_score_counts(tmp_path, fake):
    table = definition(changes={"evaluation.select": BY}, measures=(Measure("x", ("test/global/accuracy",), "selected"),))
    falling = iter(range(1000))
    fake.score = lambda config: quality(config) - 0.001 * (next(falling) % 4)
    run(tmp_path, table, only=["a"])
    best = -min(abs(math.log10(lr / 0.3)) for lr in rates())
    assert f"| {90 + 10 * best:.2f} |" in line(tmp_path, "A"), "of the first round, where it is best"
    assert "in the round selected on validation rows" in (tmp_path / "table.md").read_text()


def test_a_trial_that_diverges_is_the_worst_and_is_not_tried_again(tmp_path, fake):
    tried = rates()

    def act(name, config):
        if config.optimizer.lr != tried[2]:
            raise Diverged("round 1: the loss is not finite")

    fake.act = act
    _, said = run(tmp_path, only=["a"])
    assert len([text for text in said if text.startswith("diverged, so it counts as the worst: A / IID / trial")]) == 3
    found = line(tmp_path, "A")
    assert f"optimizer.lr={tried[2]}" in found
    assert "3 diverged, its own settings among them" in found
    fake.act, before = (lambda name, config: None), len(fake.done)
    run(tmp_path, only=["a"])
    assert len(fake.done) == before


def test_a_signal_while_a_trial_diverges_ends_the_table(tmp_path, fake):
    asked = Diverged("round 1: the loss is not finite")
    asked.stopped = True

    def act(name, config):
        raise asked

    fake.act = act
    with pytest.raises(KeyboardInterrupt, match="after A / IID / trial 0 / seed 0; the same command goes on"):
        run(tmp_path, only=["a"])
    fake.act = lambda name, config: None
    run(tmp_path, only=["a"])
    assert "1 diverged, its own settings among them" in line(tmp_path, "A")


def test_where_all_diverge_the_cells_fail(tmp_path, fake):
    def act(name, config):
        raise Diverged("round 1: the loss is not finite")

    fake.act = act
    outcome, said = run(tmp_path, only=["a"])
    assert list(outcome.failures.values()) == ["all 4 trials of the search diverged"]
    assert said[-2] == "1 of 1 runs failed"
    assert "- A / IID / seed 0: all 4 trials of the search diverged" in (tmp_path / "table.md").read_text()
    assert "| A | IID | 4 | none |" in (tmp_path / "table.md").read_text()


def test_a_trial_that_fails_is_tried_again(tmp_path, fake):
    def act(name, config):
        if name.startswith("a--") and config.optimizer.lr != 0.1:
            raise FileNotFoundError(2, "no data set here", "x.npz")

    fake.act = act
    outcome, said = run(tmp_path)
    assert list(outcome.failures.values()) == ["trial 1: no data set here: x.npz"]
    assert len(outcome.results) == 1, "the other row is run"
    assert "failed: A / IID: trial 1: no data set here: x.npz" in said
    fake.act = lambda name, config: None
    outcome, _ = run(tmp_path)
    assert not outcome.failures
    assert len(outcome.results) == 2


def test_rows_that_may_have_fewer_trials(tmp_path, fake):
    rows = Row("A", get_config, space=RATES), Row("B", get_config), Row("C", get_config, space={"optimizer.lr": (0.1, 0.2)})
    run(tmp_path, definition({"fewer": ("B", "C")}, rows=rows))
    assert "| B | IID | 1 | not tuned |" in line(tmp_path, "B")
    assert "| C | IID | 2 | optimizer.lr=0.2 |" in line(tmp_path, "C")
    assert [done[0] for done in fake.done].count("b") == 1


def test_the_records_say_what_was_chosen(tmp_path, fake):
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


def test_latex_says_what_was_chosen(tmp_path, fake):
    rows = (Row("A & co.", get_config, space={"optimizer.lr": (0.01, 0.02, 0.2)}), Row("B", get_config))
    run(tmp_path, definition({"fewer": ("B",)}, rows=rows))
    tex = (tmp_path / "table.tex").read_text()
    best, own = (
        100 * quality(SimpleNamespace(optimizer=SimpleNamespace(lr=lr), method=SimpleNamespace(weights=""))) for lr in (0.2, 0.1)
    )
    chosen = rf"optimizer.lr=0.2 & {best:.2f} & {own:.2f} & +{best - own:.2f} & optimizer.lr=0.2 at the upper edge \\"
    assert rf"A \& co. & IID & 4 & {chosen}" in tex
    assert r"B & IID & 1 & not tuned &  &  &  &  \\" in tex
    assert r"Chosen by validation/global/accuracy in \%, on validation rows alone." in tex
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 3


def test_a_damaged_summary_is_named_in_one_line(tmp_path, fake, capsys):
    run(tmp_path, only=["a"])
    (summary,) = {next((tmp_path / "runs").glob("a--*")) / "summary.json"}
    for text, said in (("[]", "is a list, expected an object"), ('{"rounds": 4}', "has no facts"), ("{", "is not JSON")):
        write_text(summary, text)
        with pytest.raises(ValueError, match=f"summary.json {said}") as caught:
            run(tmp_path, only=["a"])
        assert "\n" not in str(caught.value)
    write_text(summary, '{"rounds": 4, "facts": {}, "speed": 3}')
    with pytest.raises(ValueError, match=r"speed of .*summary\.json is a whole number"):
        run(tmp_path, only=["a"])


# ------------------------------------------------------------------------------------------------ wrong definitions


@pytest.mark.parametrize(
    ("of", "changes", "said"),
    [
        ({"measure": "test/global/accuracy"}, {}, "measure 'test/global/accuracy' is scored on test rows; settings are chosen by"),
        ({"measure": (BY, "test/global/accuracy")}, {}, "is scored on test rows"),
        ({"measure": "train/loss"}, {}, "search: measure 'train/loss': settings are chosen by scores such as 'validation/"),
        ({"measure": (BY, "validation/global/loss")}, {}, "all of them losses or none"),
        ({"measure": "validation/personal/own/accuracy/mean"}, {"changes": {"evaluation.scopes": ("global",)}}, "no run has the"),
        ({"measure": "validation/global/acuracy"}, {}, "unknown score in 'validation/global/acuracy' of .*'accuracy'"),
        ({"measure": "validation/global/own/accuracy/last"}, {}, "unknown statistic in 'validation/.*/last' of the search's"),
        ({"trials": 1}, {}, "search: trials=1 must be a whole number of at least 2"),
        ({"halving": 1.5}, {}, "search: halving=1.5 must be a whole number of at least 2 or None"),
        ({"rounds": 9}, {}, "A / IID: the search's rounds=9 must not be more than the run's 4"),
        ({"sampler": "randm"}, {}, "unknown sampler of the search 'randm'.*'random'"),
        ({"sampler": "grid"}, {}, "LogUniform.* is no tuple of values, as a grid needs"),
        ({"seeds": ()}, {}, "search: seeds .* must be one or more"),
        ({"fewer": ("D",)}, {}, "unknown row in the search's fewer 'D'"),
        ({}, {"rows": (Row("A", get_config),)}, "row 'A' has no space for 4 trials; give it one, or name it"),
        (
            {},
            {"rows": (Row("A", get_config, space={"optimizer.lr": (0.1, 0.2)}),)},
            "1 points beside the row's own settings, too few",
        ),
        (
            {"trials": 8},
            {"rows": (Row("A", get_config, space={"optimizer.lr": Uniform(0.1, 0.1004)}),)},
            "A / IID: the space of optimizer.lr has [34] points beside the row's own settings, too few for 8 trials",
        ),
        ({}, {"rows": (Row("A", get_config, space={"optimizer.lrr": (0.1, 0.2, 0.3, 0.4)}),)}, "trial 1: .*no field optimizer.lrr"),
        ({}, {"rows": (Row("A", get_config, space={"method.batch": Uniform(1, 9)}),)}, "A / IID / trial 1: .*method.batch"),
        ({}, {"rows": (Row("A", get_config, space={"data.clients": (2, 3, 4, 5)}),)}, "data.clients is not the row's to choose"),
        ({}, {"rows": (Row("A", get_config, space={"optimizer.lr": 0.1}),)}, "optimizer.lr=0.1 must be a tuple of values"),
        ({}, {"rows": (Row("A", get_config, space={"optimizer.lr": (1, 1.0)}),)}, "has a value twice"),
        (
            {},
            {"rows": (Row("A", get_config, space={"optimizer.lr": LogUniform(0, 1)}),)},
            "needs low < high, both finite, both pos",
        ),
        (
            {},
            {"rows": (Row("A", get_config, space={"privacy.noise": (0.5, 1.0, 2.0)}),)},
            "row 'A': privacy.noise is not the row's to choose",
        ),
        (
            {},
            {"changes": {"evaluation.until": "test/global/accuracy >= 0.9"}},
            "A / IID: evaluation.until='test/global/accuracy >= 0.9' ends trials by a score on test rows",
        ),
        ({}, {"changes": {"data.validation": None}}, "A / IID: the search needs validation rows; set data.validation"),
        ({}, {"search": None}, "row 'A' has a space, and the table no search"),
        ({}, {"measures": (Measure("n", ("analysis:trained",)),)}, "a table of counts trains nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_a_wrong_search_ends_before_anything_runs(tmp_path, fake, of, changes, said):
    with pytest.raises(ValueError, match=said) as caught:
        run(tmp_path / "table", definition(of, **changes))
    assert "\n" not in report.one_line(caught.value)
    assert not fake.done
    assert not (tmp_path / "table").exists()


def test_the_command_refuses_too(tmp_path, capsys, fake):
    file = tmp_path / "t.py"
    file.write_text(
        "from tests.fedjax_core.commands import test_search\n\n"
        "def get_table(variant):\n    return test_search.definition({'measure': 'test/global/accuracy'})\n"
    )
    assert command.main([f"--table={file}", f"--workdir={tmp_path / 'w'}"]) == 2
    assert "scored on test rows" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"--set=optimizer\.lr=0\.5: the search chooses it for row 'A'"):
        tables.changed(definition(), ["optimizer.lr=0.5"])


# ------------------------------------------------------------------------------------------------ a real one


def test_a_real_search_goes_on_bit_for_bit_and_stands_a_rate_that_diverges(tmp_path):
    """Two trials to the first round, the one that is left resumed to the second: what a run without a halt gives."""
    rows = (Row("A", get_config, space={"optimizer.lr": (0.3,)}),)
    few = {"rounds": 2, "plan.devices": 1, "data.examples": 300, "optimizer.lr": 1e30, "method.epochs": 1}
    table = definition({"trials": 2, "halving": 2}, rows=rows, changes=few)
    outcome, said = run(tmp_path / "a", table)
    assert not outcome.failures, said
    assert "| A | IID | 2 | optimizer.lr=0.3 |" in line(tmp_path / "a", "A")
    assert "1 diverged, its own settings among them" in line(tmp_path / "a", "A")
    (name,) = outcome.results
    (cell,) = (run for trial in tables.plan(table, "smoke")["A", "IID"].trials for run in trial.cells if run.name == name)
    whole = experiment.execute(cell.config, str(tmp_path / "b"), False, console=lambda text: None)
    halted = report.history(read_jsonl(tmp_path / "a" / "runs" / name / "metrics.jsonl"))
    for score in ("train/loss", BY, "test/global/accuracy"):
        assert halted[score].rounds.tolist() == whole.history[score].rounds.tolist() == [1, 2]
        assert halted[score].values.tolist() == whole.history[score].values.tolist()


KILLED = """
from tests.fedjax_core.commands import test_search
from configs.tables.base import Row

def get_table(variant):
    few = {"rounds": 12, "plan.devices": 1, "data.examples": 300, "method.epochs": 1, "checkpoint.seconds": 0.0}
    return test_search.definition({"trials": 3}, rows=(Row("A", test_search.get_config, space=test_search.RATES),), changes=few)
"""


def test_a_search_that_is_killed_goes_on_with_the_same_trials(launcher, tmp_path):
    """In its second trial: the first one is kept, the second resumed from its checkpoint, the third is what it would have been."""
    file, place = tmp_path / "search.py", tmp_path / "table"
    file.write_text(KILLED)
    flags = [f"--table={file}", f"--workdir={place}", "--variant=smoke"]
    (study,) = tables.plan(tables.read(str(file), "smoke"), "smoke").values()
    first, second, third = (place / "runs" / trial.cells[0].name for trial in study.trials)
    process = launcher.start(*flags, module="fedjax_core.commands.table")
    assert process.until(lambda: next(second.glob("checkpoints/0*/record.json"), None), "a checkpoint of the second trial")
    process.send(signal.SIGKILL)
    assert process.wait().status == -signal.SIGKILL
    assert not third.exists()
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    ended = launcher.run(*flags, module="fedjax_core.commands.table")
    assert ended.status == 0, ended.err
    assert "1 of 3 runs of the search" in ended.err
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == before
    assert {run.name for run in (place / "runs").iterdir()} == {first.name, second.name, third.name}
    for run_, trial in zip((first, second, third), study.trials, strict=True):
        assert read_json(run_ / "config.json")["optimizer"]["lr"] == trial.values["optimizer.lr"]
        assert [record["round"] for record in read_jsonl(run_ / "metrics.jsonl")] == list(range(1, 13))
    assert [len(read_json(run_ / "environment.json").get("resumed", [])) for run_ in (first, second, third)] == [0, 1, 0]
    with open(place / "trials.csv", newline="") as opened:
        assert [float(row["optimizer.lr"]) for row in csv.DictReader(opened)] == [t.values["optimizer.lr"] for t in study.trials]
