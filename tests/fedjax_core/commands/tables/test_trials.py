"""Trials that diverge or fail, or that another process runs, and rows that have fewer of them."""

import errno
import math

import numpy as np
import pytest

from configs.tables.base import Measure, Row
from fedjax_core import experiment
from fedjax_core.commands import tables
from fedjax_core.commands.analyses import scalar_metrics as analyses
from fedjax_core.commands.tables import runner
from fedjax_core.data import digest as contents
from fedjax_core.data import federated_data, sources
from fedjax_core.engine.simulator import Diverged
from fedjax_core.storage.json_files import write_json
from fedjax_core.storage.workdir import DirectoryInUse
from tests.fedjax_core.commands.tables.searches import RATES, definition, get_config, line, rates, run

LOCKED = DirectoryInUse(11, "another process runs there (pid 7)")


@pytest.fixture
def pauses(monkeypatch):
    """What happens in place of pauses, one after the other; then nothing does."""
    made = []
    monkeypatch.setattr(runner.time, "sleep", lambda seconds: made.pop(0)() if made else None)
    return made


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


def test_trials_of_other_data_choose_nothing(tmp_path, fake_search, monkeypatch):
    run(tmp_path, only=["a"])
    of = sources.from_arrays(np.zeros((4, 2), np.float32), [0, 1, 0, 1], np.zeros((2, 2), np.float32), [0, 1])
    data = federated_data.from_index(of, [[0, 1], [2, 3]], [[0], [1]])
    monkeypatch.setattr(experiment, "dataset", lambda config: data)
    digest = contents.digest_data(data).digest
    folders = [folder for folder in sorted((tmp_path / "runs").iterdir()) if folder.name.startswith("a--")]
    for folder in folders:
        write_json(folder / "run.json", {"data": {"digest": digest}})
    assert not run(tmp_path, only=["a"])[0].failures
    write_json(folders[-1] / "run.json", {"data": {"digest": digest[:-4] + "0000"}})
    outcome, _ = run(tmp_path, only=["a"])
    assert list(outcome.failures.values())
    assert all("holds a run on other data" in why for why in outcome.failures.values())


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


def test_a_trial_that_this_very_process_holds_is_not_waited_for(tmp_path, fake_search, pauses):
    def act(name, config):
        raise OSError(errno.EDEADLK, "this process already runs there; close that run first")

    fake_search.act = act
    outcome, said = run(tmp_path, only=["a"])
    assert [why.partition(":")[2] for why in outcome.failures.values()] == [
        " this process already runs there; close that run first"
    ]
    assert not [text for text in said if "waiting" in text or "left for later" in text]


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


def test_a_trial_that_another_process_runs_is_waited_for(tmp_path, fake_search, pauses):
    """Two processes with seeds of their own: the other one is at trial 0 while this one does trials 1 to 3."""
    tried = rates()
    best = min(tried, key=lambda rate: abs(math.log10(rate / 0.3)))

    def act(name, config):
        if config.optimizer.lr == tried[0]:
            raise LOCKED

    def other():
        fake_search.act = lambda name, config: None
        run(tmp_path, only=["a"], seeds=[0])

    fake_search.act = act
    pauses.extend([lambda: None, other])
    outcome, said = run(tmp_path, only=["a"], seeds=[1])
    assert not pauses
    assert [done[1] for done in fake_search.done] == [*tried, tried[0], best], "each trial once, then the cell of seed 1"
    assert "left for later: A / IID / trial 0 / seed 0: another process runs there (pid 7)" in said
    assert not outcome.failures
    assert [name.split("--")[2] for name in outcome.results] == ["seed1"]
    assert said[-2] == "all 1 runs are finished"
    assert "failed" not in (tmp_path / "table.md").read_text().lower()


def test_a_trial_of_a_process_that_died_is_tried_again(tmp_path, fake_search, pauses, monkeypatch):
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.0)
    left = [LOCKED] * 7

    def act(name, config):
        if left:
            raise left.pop()

    fake_search.act = act
    outcome, said = run(tmp_path, only=["a"])
    assert not outcome.failures
    assert len(fake_search.done) == 7 + 4
    assert len([text for text in said if text.startswith("left for later")]) == 7
    assert said[-2] == "all 1 runs are finished"


def test_a_search_that_another_process_ends_meanwhile_is_no_failure(tmp_path, fake_search, pauses):
    def act(name, config):
        fake_search.act = lambda name, config: None
        run(tmp_path, only=["a"], seeds=[0])
        raise LOCKED

    fake_search.act = act
    outcome, _ = run(tmp_path, only=["a"], seeds=[1])
    assert not outcome.failures
    assert len(outcome.results) == 1
    assert len(fake_search.done) == 1 + 4 + 1
    assert "failed" not in (tmp_path / "table.md").read_text().lower()


def test_cells_of_a_search_that_failed_here_are_run_when_another_process_has_ended_it(tmp_path, fake_search):
    """A trial of A fails here; while B is searched another process ends A's search."""

    def act(name, config):
        if name.startswith("a--") and config.optimizer.lr != 0.1:
            raise OSError(12, "no memory")
        if name.startswith("b--"):
            fake_search.act = lambda name, config: None
            run(tmp_path, only=["a"], seeds=[0])

    fake_search.act = act
    outcome, said = run(tmp_path, seeds=[7])
    assert "failed: A / IID: trial 1: no memory" in said
    assert not outcome.failures
    assert sorted(name.partition("--")[0] for name in outcome.results) == ["a", "b"]
    assert said[-2] == "all 2 runs are finished"
    assert "failed" not in (tmp_path / "table.md").read_text().lower()


def test_the_last_process_writes_a_search_that_failed_here_and_that_another_has_ended(tmp_path, fake_search):
    """Nothing of it is left to be run: the cell is the chosen trial."""

    def act(name, config):
        if name.startswith("a--"):
            raise OSError(12, "no memory")
        fake_search.act = lambda name, config: None
        run(tmp_path, only=["a"])

    fake_search.act = act
    outcome, _ = run(tmp_path)
    assert not outcome.failures
    assert len(outcome.results) == 2
    text = (tmp_path / "table.md").read_text()
    assert "failed" not in text.lower()
    assert " runs are finished." not in text


def test_a_trial_that_cannot_be_read_fails_its_place_alone(tmp_path, fake_search):
    (study,) = (one for place, one in tables.plan_searches(definition(), "smoke").items() if place[0] == "A")
    run(tmp_path, only=["a"])
    metrics = tmp_path / "runs" / study.trials[2].cells[0].name / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text("no record\n" + whole)
    before = len(fake_search.done)
    outcome, said = run(tmp_path)
    (why,) = outcome.failures.values()
    assert "line 1 of" in why
    assert str(metrics) in why
    assert [text for text in said if text.startswith("failed")] == [f"failed: A / IID: {why}"]
    assert len(outcome.results) == 1
    assert {done[0] for done in fake_search.done[before:]} == {"b"}
    assert f"- A / IID / seed 0: {why}" in (tmp_path / "table.md").read_text()
    metrics.write_text(whole)
    outcome, _ = run(tmp_path)
    assert not outcome.failures


def test_rows_that_may_have_fewer_trials(tmp_path, fake_search):
    rows = Row("A", get_config, space=RATES), Row("B", get_config), Row("C", get_config, space={"optimizer.lr": (0.1, 0.2)})
    run(tmp_path, definition({"fewer": ("B", "C")}, rows=rows))
    assert "| B | IID | 1 | not tuned |" in line(tmp_path, "B")
    assert "| C | IID | 2 | optimizer.lr=0.2 |" in line(tmp_path, "C")
    assert [done[0] for done in fake_search.done].count("b") == 1


@pytest.fixture
def checkpoints(tmp_path, fake_search):
    """Runs leave a checkpoint; which runs have one."""

    def act(name, config):
        (tmp_path / "runs" / name / "checkpoints" / f"{config.rounds:08}").mkdir(parents=True, exist_ok=True)

    fake_search.act = act
    return lambda: {path.parents[1].name for path in tmp_path.glob("runs/*/checkpoints/0*")}


@pytest.mark.parametrize("halving", [None, 2])
def test_checkpoints_of_trials_go_when_the_search_has_chosen(tmp_path, fake_search, checkpoints, halving):
    """Those of cells stay, the chosen trial among them; scores stay, so nothing is run again."""
    outcome, _ = run(tmp_path, definition({"halving": halving}))
    assert not outcome.failures
    assert checkpoints() == set(outcome.results)
    assert len([*tmp_path.glob("runs/*/metrics.jsonl")]) == 8
    before = len(fake_search.done)
    run(tmp_path, definition({"halving": halving}))
    assert len(fake_search.done) == before
    more, _ = run(tmp_path, definition({"trials": 6, "halving": halving}))
    assert not more.failures
    assert checkpoints() == set(more.results)


def test_a_call_for_other_seeds_keeps_the_checkpoints_of_the_cells(tmp_path, fake_search, checkpoints):
    first, _ = run(tmp_path, definition())
    assert checkpoints() == set(first.results)
    second, _ = run(tmp_path, definition(), seeds=[7])
    assert set(second.results).isdisjoint(first.results)
    assert checkpoints() == {*first.results, *second.results}


def test_checkpoints_from_before_a_search_are_left_alone(tmp_path, fake_search, checkpoints):
    """A table without a search left them: its cell is trial 0 of another one."""
    rows = (Row("A", get_config),)
    outcome, _ = run(tmp_path, definition(rows=rows, search=None))
    (own,) = outcome.results
    found, _ = run(tmp_path, definition(rows=(Row("A", get_config, space=RATES),)))
    assert own not in found.results
    assert checkpoints() == {own, *found.results}


def test_a_cell_that_needs_the_last_state_of_a_run_without_one_is_run_again(tmp_path, fake_search, checkpoints, monkeypatch):
    searched = definition(rows=(Row("A", get_config, space=RATES),))
    run(tmp_path, searched)
    measures = (Measure("origin", ("analysis:origin",)),)
    plain = definition(rows=(Row("A", get_config),), search=None, measures=measures)
    monkeypatch.setattr(analyses, "make_metric", lambda spec: lambda place, data, trust: 0.5)
    before = len(fake_search.done)
    outcome, said = run(tmp_path, plain)
    assert not outcome.failures, said
    assert len(fake_search.done) == before + 1
    assert set(outcome.results) <= checkpoints()
    run(tmp_path, plain)
    assert len(fake_search.done) == before + 1
