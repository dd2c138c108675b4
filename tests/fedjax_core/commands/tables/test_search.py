"""Searches: which trials are run and kept, and which one is chosen."""

import csv
import dataclasses
import math
from types import SimpleNamespace

import pytest

from configs.tables.base import Column, Measure, Row
from fedjax_core import experiment
from fedjax_core.atomic_files import write_csv, write_text
from fedjax_core.commands import tables
from fedjax_core.commands.tables import search, trials
from fedjax_core.reporting import plots
from fedjax_core.reporting.reporter import ENDED
from fedjax_core.run import CallbackFailed
from fedjax_core.storage.json_files import JsonLinesFile, format_json_lines, read_jsonl, write_json
from tests.fedjax_core.commands.tables.searches import BY, definition, get_config, line, quality, rates, run


def test_rungs_lie_where_runs_are_scored_anyway():
    assert search.make_rungs(9, 50, 10, 3) == (search.Rung(10, 9), search.Rung(20, 3), search.Rung(50, 1))
    assert search.make_rungs(8, 2, 1, 2) == (search.Rung(1, 8), search.Rung(2, 1)), "halts that come together cut once"
    assert search.make_rungs(2, 7, 5, 3) == (search.Rung(7, 2),)


def test_trials_come_first_and_the_best_one_is_the_cells_run(tmp_path, fake_search):
    outcome, said = run(tmp_path)
    tried = rates()
    assert fake_search.done == [(row, rate, 4) for row in ("a", "b") for rate in tried], (
        "cells of seed 0 are the trials that were chosen"
    )
    best = max(tried, key=lambda rate: -abs(math.log10(rate / 0.3)))
    assert best != tried[0]
    assert said[0] == "0 of 8 runs of the search and 0 of 2 runs are finished, 10 to do"
    assert said[1] == "1/10  A / IID / trial 0 / seed 0"
    assert said[-2] == "all 2 runs are finished"
    assert sorted(r.values["global"] for r in outcome.results.values()) == pytest.approx(
        [quality(SimpleNamespace(optimizer=SimpleNamespace(lr=best), method=SimpleNamespace(weights=w))) for w in ("uniform", "")]
    )
    run(tmp_path)
    assert len(fake_search.done) == 8, "all is found finished"
    run(tmp_path, definition(seeds=(0, 7)))
    assert fake_search.done[8:] == [("a", best, 4), ("b", best, 4)]
    more = definition({"trials": 6})
    assert rates(more)[:4] == tried
    run(tmp_path, more, only=["a"])
    assert [done[:2] for done in fake_search.done[10:12]] == [("a", rate) for rate in rates(more)[4:]]


def test_trials_draw_no_figures_but_the_chosen_one_has_them(tmp_path, fake_search):
    outcome, _ = run(tmp_path, definition(seeds=(0, 1)))
    assert fake_search.drawn == [False] * 8 + [True] * 2
    chosen = [name for name in outcome.results if "--seed0--" in name]
    assert sorted(file.parent.name for file in tmp_path.glob("runs/*/accuracy.png")) == sorted(chosen)


def test_figures_that_cannot_be_drawn_do_not_end_the_table(tmp_path, fake_search, monkeypatch):
    def draw(workdir):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plots, "plot_run", draw)
    outcome, said = run(tmp_path)
    assert len(outcome.results) == 2
    assert [line for line in said if line.startswith("no figures of A / IID")]


def test_code_that_changes_in_the_last_trial_does_not_run_under_the_name_of_the_new(tmp_path, fake_search):
    mine, edit = tmp_path / "mine.py", "x = 1\n"
    (code := tmp_path / "own_search_helper.py").write_text("")
    mine.write_text("def loss(logits, y, mask):\n    import own_search_helper\n")

    def act(name, config):
        if len(fake_search.done) == 4:
            code.write_text(edit)

    fake_search.act = act
    table = definition(rows=definition().rows[:1], changes={"loss": f"{mine}:loss"}, seeds=(0, 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        outcome, _ = run(tmp_path / "table", table)
        assert len(fake_search.done) == 4
        assert [why.partition(" since")[0] for why in outcome.failures.values()] == [f"{code} has changed"] * 2
        outcome, _ = run(tmp_path / "table", table)
    assert not outcome.failures
    assert len(fake_search.done) == 4 + 4 + 1


def test_the_last_of_two_processes_takes_up_the_others_search(tmp_path, fake_search):
    def act(name, config):
        fake_search.act = lambda name, config: None
        run(tmp_path, only=["B"])  # another process, meanwhile

    fake_search.act = act
    outcome, _ = run(tmp_path, only=["A"])
    assert len(outcome.results) == 2
    assert line(tmp_path, "B", "## global").count("|") == 3
    assert "0 of" not in line(tmp_path, "B")


def test_shorter_trials_are_other_runs_and_other_tables_find_them(tmp_path, fake_search):
    short = definition({"rounds": 2, "seeds": (5, 6)})
    run(tmp_path, short)
    assert [done[2] for done in fake_search.done] == [2] * 16 + [4] * 2
    alone = dataclasses.replace(short, rows=short.rows[:1], seeds=(0, 1), measures=(*short.measures, Measure("l", (BY,))))
    run(tmp_path, alone)
    assert len(fake_search.done) == 19, "one new seed"


def test_only_searches_what_it_names(tmp_path, fake_search):
    two = definition(
        columns=(Column("IID", {"data.partition": "iid"}), Column("Skewed", {"data.partition": "dirichlet(alpha=1.0)"}))
    )
    run(tmp_path, two, only=["b/skewed"])
    assert {done[0] for done in fake_search.done} == {"b"}
    assert len(fake_search.done) == 4
    assert "| A | IID | 4 | 0 of 4 runs |" in (tmp_path / "table.md").read_text()
    run(tmp_path, two)
    assert len(fake_search.done) == 16


def test_interrupted_anywhere_it_goes_on_and_ends_the_same(tmp_path, fake_search):
    """Stopped before its nth run: no run is done twice, and the table is that of an uninterrupted one."""
    table = definition({"trials": 4, "halving": 2, "seeds": (0, 1)}, seeds=(0, 3))
    run(tmp_path / "whole", table, only=["a"])
    whole = fake_search.done
    for at in (1, 6, 9, 13):
        parts, fake_search.done = tmp_path / f"stopped at {at}", []

        def act(name, config, at=at):
            if len(fake_search.done) == at:
                fake_search.act = lambda name, config: None
                fake_search.done.pop()
                raise KeyboardInterrupt

        fake_search.act = act
        with pytest.raises(KeyboardInterrupt):
            run(parts, table, only=["a"])
        run(parts, table, only=["a"])
        assert fake_search.done == whole
        for name in ("table.md", "table.csv", "trials.csv"):
            assert (parts / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_halving_runs_all_a_little_and_the_best_to_the_end(tmp_path, fake_search):
    """Rungs of 1, 2 and 4 rounds with 4, 2 and 1 trials; trial 0 goes along, for it tells what tuning was worth."""
    table = definition({"halving": 2, "trials": 4})
    _, said = run(tmp_path, table, only=["a"])
    tried = rates(table)
    better = sorted(tried, key=lambda rate: abs(math.log10(rate / 0.3)))
    assert tried[0] not in better[:2]
    assert fake_search.done[:4] == [("a", rate, 1) for rate in tried]
    assert fake_search.done[4:7] == [("a", rate, 2) for rate in tried if rate in (*better[:2], tried[0])]
    assert fake_search.done[7:] == [("a", rate, 4) for rate in tried if rate in (better[0], tried[0])]
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


def test_where_all_that_went_on_diverge_the_best_of_those_that_were_cut_go_on():
    study = tables.plan_searches(definition({"halving": 2, "trials": 4}), "smoke")["A", "IID"]
    names = [trial.cells[0].name for trial in study.trials]
    scores = {(name, 1): score for name, score in zip(names, (0.4, 0.3, 0.1, 0.2), strict=True)}
    waiting = lambda: [(run.name, run.config.rounds) for run in search.compute_status(study, scores).waiting]
    assert waiting() == [(names[0], 2), (names[1], 2)]
    scores |= {(names[0], 2): math.nan, (names[1], 2): math.nan}
    assert waiting() == [(names[3], 2)]
    scores[names[3], 2] = math.nan
    assert waiting() == [(names[2], 2)]
    scores[names[2], 2] = 0.1
    assert waiting() == [(names[2], 4)]
    scores[names[2], 4] = 0.2
    status = search.compute_status(study, scores)
    assert status.chosen == study.trials[2]
    assert (status.diverged_trials, status.finished_runs) == (3, 9)
    assert search.compute_status(study, scores | {(names[2], 4): math.nan}).chosen is None


@pytest.mark.parametrize("at", [1, 3, 6, 8])
def test_a_trial_that_another_process_takes_further_meanwhile_has_not_failed(tmp_path, fake_search, at):
    table = definition({"halving": 2, "trials": 4})

    def act(name, config):
        if len(fake_search.done) == at:
            fake_search.act = lambda name, config: None
            run(tmp_path, table, only=["a"])
            raise ValueError("the run is at round 4 and has 1")  # of `execute`, whose run is longer than what it should do

    fake_search.act = act
    outcome, said = run(tmp_path, table, only=["a"])
    assert not outcome.failures
    assert not [text for text in said if text.startswith("failed")]
    assert len([text for text in said if text.startswith("done by another process: A / IID / trial")]) == 1
    assert len(outcome.results) == 1
    assert not list(tmp_path.glob("runs/*.error.txt"))


def test_a_trial_whose_callback_failed_has_failed_though_it_is_complete(tmp_path, fake_search):
    def act(name, config):
        fake_search.act = lambda name, config: None
        run(tmp_path, only=["a"])
        raise CallbackFailed("callback mine failed in end() (the run itself is complete)")

    fake_search.act = act
    _, said = run(tmp_path, only=["a"])
    assert [text for text in said if text.startswith("failed: A / IID / trial 0 / seed 0: callback mine failed")]


def test_halving_with_seeds_together_does_each_rung_once(tmp_path, fake_search, monkeypatch):
    """Two seeds of a trial at a time: the same runs as one after another, though trial 0 goes on in every rung."""

    def execute_all(runs, progress, *, data, say):
        assert progress is False, "no two bars at once"
        fake_search.together.append([one.config.rounds for one in runs])
        return [experiment.execute(one.config, one.workdir, False, data=data, console=one.console, draws=one.draws) for one in runs]

    def act(name, config):
        assert len(fake_search.done) <= 18, "a run is done again and again"

    fake_search.together, fake_search.act = [], act
    monkeypatch.setattr(experiment, "execute_all", execute_all)
    table = definition({"halving": 2, "trials": 4, "seeds": (0, 1)}, changes={"plan.lanes": 2}, seeds=(0,))
    outcome, _ = run(tmp_path, table, only=["a"], progress=True)
    assert not outcome.failures
    assert sorted(done[2] for done in fake_search.done) == [*[1] * 8, *[2] * 6, *[4] * 4]
    assert fake_search.together == [[1, 1]] * 4 + [[2, 2]] * 3 + [[4, 4]] * 2


def test_a_longer_run_that_is_there_serves_every_rung(tmp_path, fake_search):
    """Scores at a rung are of its round, whoever went on from there."""
    run(tmp_path, only=["a"])
    before = len(fake_search.done)
    run(tmp_path, definition({"halving": 2}), only=["a"])
    assert len(fake_search.done) == before


def test_a_run_that_was_killed_between_rungs_keeps_its_records(tmp_path):
    """Its summary is of the rung below; a later score is known where the run has gone beyond, or has ended."""
    records = [{"round": i, BY: i / 10} for i in (1, 2, 3)]
    write_text(tmp_path / "metrics.jsonl", format_json_lines(records))
    write_json(tmp_path / "summary.json", {"rounds": 1, "facts": {}})

    def score(rounds):
        config = get_config("smoke")
        config.rounds = rounds
        return trials.read_score(tmp_path, tables.Cell("A", "IID", 0, config, "a", 1), ("validation/other", BY))

    assert [score(rounds) for rounds in (1, 2, 3, 4)] == [0.1, 0.2, None, None]
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 3
    write_json(tmp_path / "summary.json", {"rounds": 3, "facts": {}})
    assert score(3) == 0.3, "a rung's score, though a later round diverged"
    write_text(tmp_path / "metrics.jsonl", format_json_lines([*records[:2], {"round": 3}]))
    assert score(3) is None, "its last evaluation was interrupted"
    write_text(tmp_path / "metrics.jsonl", format_json_lines(records))
    write_text(tmp_path / trials.DIVERGED, "round 4: the loss is not finite\n")
    assert score(2) == 0.2
    assert math.isnan(score(4))
    write_json(tmp_path / "summary.json", {"rounds": 3, "facts": {"ended": "no better one"}})
    assert score(4) == 0.3


def test_time_left_is_over_trials_and_cells(tmp_path, fake_search):
    _, said = run(tmp_path, definition({"rounds": 2}), only=["a"])
    assert said[1].startswith("1/5  A / IID / trial 0 / seed 0")
    assert said[2].startswith("2/5  A / IID / trial 1 / seed 0  (about ")
    assert said[5].startswith("5/5  A / IID / seed 0  (about ")


def test_of_equal_trials_the_first_is_chosen_and_of_losses_the_lowest(tmp_path, fake_search):
    fake_search.score = lambda config: 0.5
    run(tmp_path / "a")
    assert "| 4 | its own | 50.00 | 50.00 | +0.00 |" in line(tmp_path / "a", "A")
    fake_search.score = quality
    run(tmp_path / "b")
    run(tmp_path / "c", definition({"measure": ("validation/personal/own/loss/mean", "validation/global/loss")}))
    assert line(tmp_path / "b", "A").split("|")[4] == line(tmp_path / "c", "A").split("|")[4]
    assert line(tmp_path / "c", "A").split("|")[7].startswith(" +0.0"), "a lower loss is a gain"


def test_with_a_selected_round_its_score_counts(tmp_path, fake_search):
    table = definition(changes={"evaluation.select": BY}, measures=(Measure("x", ("test/global/accuracy",), "selected"),))
    falling = iter(range(1000))
    fake_search.score = lambda config: quality(config) - 0.001 * (next(falling) % 4)
    run(tmp_path, table, only=["a"])
    best = -min(abs(math.log10(lr / 0.3)) for lr in rates())
    assert f"| {90 + 10 * best:.2f} |" in line(tmp_path, "A"), "of the first round, where it is best"
    assert "in the round selected on validation examples" in (tmp_path / "table.md").read_text()


def test_none_is_a_value_that_the_row_may_have_already():
    """A trial with it would be trial 0 again, in the same directory."""
    space = {"optimizer.momentum": (None, 0.9)}
    for sampler in ("grid", "random"):
        table = definition({"trials": 3, "sampler": sampler, "fewer": ("A",)})
        table = dataclasses.replace(
            table, rows=(dataclasses.replace(table.rows[0], changes={"optimizer.momentum": None}, space=space),)
        )
        study = tables.plan_searches(table, "smoke")["A", "IID"]
        assert [trial.values for trial in study.trials] == [{"optimizer.momentum": None}, {"optimizer.momentum": 0.9}]
        assert len({trial.cells[0].name for trial in study.trials}) == 2


def test_a_default_of_the_method_is_a_value_that_the_row_has_already():
    def get_fedprox(variant):
        config = get_config(variant)
        config.method = dict(name="fedprox", mu=None)
        return config

    for own in (0.01, None):  # None is the default, too
        row = Row("A", get_fedprox, space={"method.mu": (own, 1.0)})
        table = definition({"trials": 3, "sampler": "grid", "fewer": ("A",)}, rows=(row,))
        study = tables.plan_searches(table, "smoke")["A", "IID"]
        assert [trial.values for trial in study.trials] == [{"method.mu": own}, {"method.mu": 1.0}]


def test_a_score_is_read_without_a_change_to_the_directory(tmp_path):
    """Another process goes on with the trial: it has cut the records after its checkpoint, and appends to the file."""
    records = [{"round": i, BY: i / 10} for i in (1, 2, 3)]
    write_csv(tmp_path / "metrics.csv", records, ["round"])
    write_json(tmp_path / "summary.json", {"rounds": 3, "facts": {ENDED: 1}})
    write_text(tmp_path / "metrics.jsonl", format_json_lines(records[:1]))
    lines = JsonLinesFile(tmp_path / "metrics.jsonl")
    config = get_config("smoke")
    config.rounds = 3
    assert trials.read_score(tmp_path, tables.Cell("A", "IID", 0, config, "a", 1), (BY,)) == 0.3
    lines.append(records[1])
    lines.close()
    assert read_jsonl(tmp_path / "metrics.jsonl") == records[:2]
