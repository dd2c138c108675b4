"""Trials that diverge or fail, and rows that have fewer of them."""

import pytest

from configs.tables.base import Row
from fedjax_core.engine.simulation import Diverged
from tests.fedjax_core.commands.tables.searches import RATES, definition, get_config, line, rates, run


def test_a_trial_that_diverges_is_the_worst_and_is_not_tried_again(tmp_path, fake_search):
    tried = rates()

    def act(name, config):
        if config.optimizer.lr != tried[2]:
            raise Diverged("round 1: the loss is not finite")

    fake_search.act = act
    _, said = run(tmp_path, only=["a"])
    assert len([text for text in said if text.startswith("diverged, so it counts as the worst: A / IID / trial")]) == 3
    found = line(tmp_path, "A")
    assert f"optimizer.lr={tried[2]}" in found
    assert "3 diverged, its own settings among them" in found
    fake_search.act, before = (lambda name, config: None), len(fake_search.done)
    run(tmp_path, only=["a"])
    assert len(fake_search.done) == before


def test_a_signal_while_a_trial_diverges_ends_the_table(tmp_path, fake_search):
    asked = Diverged("round 1: the loss is not finite")
    asked.stopped = True

    def act(name, config):
        raise asked

    fake_search.act = act
    with pytest.raises(KeyboardInterrupt, match="after A / IID / trial 0 / seed 0; the same command goes on"):
        run(tmp_path, only=["a"])
    fake_search.act = lambda name, config: None
    run(tmp_path, only=["a"])
    assert "1 diverged, its own settings among them" in line(tmp_path, "A")


def test_where_all_diverge_the_cells_fail(tmp_path, fake_search):
    def act(name, config):
        raise Diverged("round 1: the loss is not finite")

    fake_search.act = act
    outcome, said = run(tmp_path, only=["a"])
    assert list(outcome.failures.values()) == ["all 4 trials of the search diverged"]
    assert said[-2] == "1 of 1 runs failed"
    assert "- A / IID / seed 0: all 4 trials of the search diverged" in (tmp_path / "table.md").read_text()
    assert "| A | IID | 4 | none |" in (tmp_path / "table.md").read_text()


def test_a_trial_that_fails_is_tried_again(tmp_path, fake_search):
    def act(name, config):
        if name.startswith("a--") and config.optimizer.lr != 0.1:
            raise FileNotFoundError(2, "no data set here", "x.npz")

    fake_search.act = act
    outcome, said = run(tmp_path)
    assert list(outcome.failures.values()) == ["trial 1: no data set here: x.npz"]
    assert len(outcome.results) == 1, "the other row is run"
    assert "failed: A / IID: trial 1: no data set here: x.npz" in said
    fake_search.act = lambda name, config: None
    outcome, _ = run(tmp_path)
    assert not outcome.failures
    assert len(outcome.results) == 2


def test_rows_that_may_have_fewer_trials(tmp_path, fake_search):
    rows = Row("A", get_config, space=RATES), Row("B", get_config), Row("C", get_config, space={"optimizer.lr": (0.1, 0.2)})
    run(tmp_path, definition({"fewer": ("B", "C")}, rows=rows))
    assert "| B | IID | 1 | not tuned |" in line(tmp_path, "B")
    assert "| C | IID | 2 | optimizer.lr=0.2 |" in line(tmp_path, "C")
    assert [done[0] for done in fake_search.done].count("b") == 1
