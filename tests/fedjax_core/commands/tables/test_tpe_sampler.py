"""Searches whose settings follow from the scores of earlier trials."""

import dataclasses
import math
import sys

import pytest

from configs.tables.base import LogUniform, Row
from fedjax_core.commands import tables
from fedjax_core.commands.tables import search_spaces
from fedjax_core.engine.simulator import Diverged
from tests.fedjax_core.commands.tables.searches import definition, get_config, line, run

SPACE = {"lr": LogUniform(0.01, 1.0), "name": ("a", "b", (1, 2))}
optuna = pytest.importorskip("optuna", reason="no optuna: pip install -e '.[search]'")


def get_score(setting) -> float:
    return -abs(math.log10(setting["lr"] / 0.3)) - (0.0 if setting["name"] == (1, 2) else 1.0)


def test_proposals_follow_from_seed_number_and_scores_alone():
    settings = [{"lr": 10 ** (-2 + i / 5), "name": SPACE["name"][i % 3]} for i in range(10)]
    history = [(setting, get_score(setting)) for setting in settings]
    proposal = search_spaces.propose_setting(SPACE, 0, 10, history)
    assert proposal == search_spaces.propose_setting(SPACE, 0, 10, history)
    assert proposal != search_spaces.propose_setting(SPACE, 1, 10, history)
    assert proposal["name"] in SPACE["name"]
    own = {"lr": 5.0, "name": "a"}  # outside the space
    assert search_spaces.propose_setting(SPACE, 0, 10, [(own, 9.0), *history]) == proposal


def test_proposals_are_better_than_random_ones_and_avoid_what_diverged():
    history = []
    for number in range(60):
        setting = search_spaces.propose_setting(SPACE, 0, number, history)
        history.append((setting, -math.inf if setting["lr"] > 0.6 else get_score(setting)))
    late = [setting for setting, _ in history[30:]]
    assert sum(setting["name"] == (1, 2) for setting in late) > 15, "a third of random ones"
    assert sum(0.1 < setting["lr"] <= 0.6 for setting in late) > 18, "two of five random ones"


def test_a_search_proposes_after_its_random_trials_and_resumes(tmp_path, fake_search):
    table = definition({"sampler": "tpe", "trials": 8})
    run(tmp_path / "whole", table)
    rates = {row: [done[1] for done in fake_search.done if done[0] == row] for row in ("a", "b")}
    assert len(fake_search.done) == 16, "budgets are equal"
    assert all(len(set(of_row)) == 8 for of_row in rates.values())
    assert rates["a"][:5] == rates["b"][:5], "rows with the same field try the same random values"
    assert rates["a"][:5] == [
        t.values["optimizer.lr"] for t in tables.plan_searches(definition({"trials": 5}), "smoke")["A", "IID"].trials
    ]
    whole, fake_search.done = fake_search.done, []

    def act(name, config):
        if len(fake_search.done) == 7:
            fake_search.act = lambda name, config: None
            fake_search.done.pop()
            raise KeyboardInterrupt

    fake_search.act = act
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", table)
    assert "| A | IID | 8 | 6 of 8 runs |" in (tmp_path / "parts" / "table.md").read_text()
    _, said = run(tmp_path / "parts", table)
    assert said[0].startswith("6 of 16 runs of the search")
    assert fake_search.done == whole
    for name in ("table.md", "table.csv", "trials.csv"):
        assert (tmp_path / "parts" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_what_diverges_is_the_worst_and_a_small_space_has_fewer_trials(tmp_path, fake_search):
    def act(name, config):
        if config.optimizer.lr > 0.25:
            raise Diverged("round 1: the loss is not finite")

    fake_search.act = act
    rows = (Row("A", get_config, space={"optimizer.lr": (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)}),)
    with pytest.raises(ValueError, match="has 6 points beside the row's own settings, too few for 9 trials"):
        run(tmp_path, definition({"sampler": "tpe", "trials": 9}, rows=rows))
    run(tmp_path, definition({"sampler": "tpe", "trials": 9, "fewer": ("A",)}, rows=rows))
    assert sorted(done[1] for done in fake_search.done) == [0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert "| 7 | optimizer.lr=0.2 |" in line(tmp_path, "A")
    assert "3 diverged" in line(tmp_path, "A")


def test_code_that_changes_before_a_proposal_is_not_run_under_a_new_name(tmp_path, fake_search):
    mine = tmp_path / "mine.py"
    mine.write_text("def loss(logits, y, mask):\n    return 0.0\n")

    def act(name, config):
        if len(fake_search.done) == 5:
            mine.write_text("def loss(logits, y, mask):\n    return 1.0\n")

    fake_search.act = act
    table = definition({"sampler": "tpe", "trials": 6}, changes={"loss": f"{mine}:loss"})
    outcome, _ = run(tmp_path / "table", dataclasses.replace(table, rows=table.rows[:1]))
    assert len(fake_search.done) == 5
    assert all(f"{mine} has changed since this command began" in why for why in outcome.failures.values())


def test_halving_is_refused():
    with pytest.raises(ValueError, match="halving=2 with sampler='tpe'"):
        tables.plan_searches(definition({"sampler": "tpe", "halving": 2}), "smoke")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"needs the package optuna: pip install 'fedjax-core\[search\]'"):
        tables.plan_searches(definition({"sampler": "tpe"}), "smoke")
