"""The best round by a validation score: what is scored, what is kept, when a run ends early; and a score that ends a run."""

import math
import shutil
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import fedavg, fedper
from fedjax_core import experiment
from fedjax_core.commands import export
from fedjax_core.engine import evaluation, simulator
from fedjax_core.reporting import client_scores
from fedjax_core.reporting.summary import summarize_records
from fedjax_core.run.early_stopping import BestRound, ScoreBound, TargetScore, parse_target_score
from fedjax_core.storage.json_files import read_jsonl

BY, ACCURACY = "validation/global/accuracy", "test/global/accuracy"


def config(module=fedavg, number=6, **evaluation):
    made = module.get_config("smoke")
    made.rounds, made.evaluation.every, made.checkpoint.seconds, made.checkpoint.keep = number, 1, 1e9, 1
    made.data.update(validation=0.25, examples=300, clients=6, partition="iid")
    made.models, made.plan.devices, made.optimizer.lr = ("mlp(widths=(8,))",), 1, 0.5
    made.evaluation.update(evaluation)
    return made


def run(directory, made, **options):
    return experiment.execute(made, str(directory), progress=False, console=lambda text: None, **options)


@pytest.mark.parametrize("module", [fedavg, fedper])
def test_scores_are_those_of_the_validation_rows(module):
    sim = experiment.build(config(module))
    state, _ = sim.run_rounds(sim.init(0), 1)
    found = sim.evaluate(state).metrics
    assert set(evaluation.list_validation_scores(sim.spec)) == {name for name in found if name.startswith("validation/")}
    assert set(evaluation.list_test_scores(sim.spec)) == {name for name in found if name.startswith("test/")}
    data = sim.spec.data

    def of(client, name, rows):
        view = sim.client_view(state, client)
        logits = np.asarray(view.predict(name, view.holds[name], data.train.x[rows])["logits"], np.float64)
        loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), data.train.y[rows]]
        return np.mean(logits.argmax(1) == data.train.y[rows]), loss.mean()

    everybodys = np.concatenate(data.validation_index)
    if module is fedavg:
        np.testing.assert_allclose(
            [found["validation/global/accuracy"], found["validation/global/loss"]], of(0, "global", everybodys), atol=1e-5
        )
    for name in sim.spec.abstract_algorithm(0).predict:
        each = np.array([of(i, name, data.validation_index[i]) for i in range(data.clients)])
        kinds = [f"validation/{name}/own/{kind}/{s}" for kind in ("accuracy", "loss") for s in ("mean", "lowest")]
        wanted = [each[:, 0].mean(), each[:, 0].min(), each[:, 1].mean(), each[:, 1].min()]
        np.testing.assert_allclose([found[kind] for kind in kinds], wanted, atol=1e-5)


def test_without_validation_rows_all_programs_are_as_they_were():
    """A simulation holds no array for them, and its round does not depend on there being any."""
    made = config()
    made.data.validation = None
    sim = experiment.build(made)
    assert sim.spec.host_arrays.validation_rows == ()
    assert not sim.spec.has_validation
    assert evaluation.list_validation_scores(sim.spec) == []
    names = sim.evaluate(sim.init(0)).metrics
    assert not [name for name in names if name.startswith("validation/")]


def test_the_summary_the_state_and_an_export_are_of_the_selected_round(tmp_path):
    """A falling score is made by a learning rate that is far too large, after a good start."""
    done = run(tmp_path / "run", config(number=5, select="validation/global/loss"))
    records = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    best = min(records, key=lambda record: record["validation/global/loss"])
    chosen = done.summary["selected"]
    assert chosen == {"by": "validation/global/loss", "round": best["round"], "value": best["validation/global/loss"]}
    assert done.selected == best["round"]
    entry = done.summary["metrics"]["test/global/accuracy"]
    assert entry["selected"] == best["test/global/accuracy"]
    _, sim, state = experiment.load(tmp_path / "run")
    assert int(state.round) == best["round"]
    assert sim.evaluate(state).metrics["validation/global/loss"] == pytest.approx(best["validation/global/loss"], abs=1e-6)
    assert int(experiment.load(tmp_path / "run", 5)[2].round) == 5
    for name, record in ((client_scores.LAST, records[-1]), (client_scores.SELECTED, best)):  # the values that the means are of
        number, each = client_scores.read_client_scores(tmp_path / "run" / name)
        assert (number, each.ids.tolist()) == (record["round"], list(range(6)))
        assert each.rows.tolist() == [len(index) for index in sim.spec.data.test_index]
        for score in ("test/global/own/accuracy", "validation/global/own/loss"):
            assert np.nanmean(each.scores[score]) == pytest.approx(record[f"{score}/mean"], abs=1e-6)
    assert {name: entry["round"] for name, entry in done.summary["clients"].items()} == {"last": 5, "selected": best["round"]}
    description = export.export(tmp_path / "run", tmp_path / "m.safetensors")
    assert description["round"] == best["round"]


def written_by_hand(monkeypatch, score, values):
    """Evaluations give these values of a score, in rounds 1, 2, ..."""
    evaluate = simulator.Simulator.evaluate

    def by_hand(self, state, *watch):
        result = evaluate(self, state, *watch)
        return result._replace(metrics=result.metrics | {score: values[int(state.round) - 1]})

    monkeypatch.setattr(simulator.Simulator, "evaluate", by_hand)


def test_early_stopping_ends_where_it_would_and_stays_ended(tmp_path, monkeypatch):
    """Scores are written by hand: 3, 5, 4, 5, 1 ...: the best is round 2, and two evaluations bring nothing better."""
    written_by_hand(monkeypatch, BY, (0.3, 0.5, 0.4, 0.5, 0.1, 0.9))
    stopped = run(tmp_path / "run", config(select=BY, patience=2))
    assert (stopped.selected, int(stopped.state.round)) == (2, 4)
    assert stopped.summary["facts"]["ended"] == f"no better {BY} in 2 evaluations after round 2"
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = run(tmp_path / "run", config(select=BY, patience=2))
    assert (again.selected, int(again.state.round)) == (2, 4)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    on = run(tmp_path / "run", config(select=BY, patience=4))  # more patience goes on from there
    assert (on.selected, int(on.state.round)) == (6, 6)
    assert int(experiment.load(tmp_path / "run")[2].round) == 6


def test_a_run_that_is_resumed_selects_the_same(tmp_path):
    whole = run(tmp_path / "whole", config(number=4, select=BY))
    run(tmp_path / "parts", config(number=2, select=BY))
    parts = run(tmp_path / "parts", config(number=4, select=BY))
    assert parts.selected == whole.selected
    one, other = (experiment.load(tmp_path / name)[2] for name in ("whole", "parts"))
    jax.tree.map(np.testing.assert_array_equal, one.server, other.server)
    assert [path.name for path in (tmp_path / "parts" / "selected").iterdir()] == [f"{whole.selected:08d}"]


@pytest.mark.parametrize(
    ("by", "values", "best"),
    [
        (BY, (math.nan, 0.2, 0.4, math.nan, 0.4), 3),
        ("validation/global/loss", (math.nan, 0.4, 0.2, math.nan, 0.2), 3),
        (BY, (0.2, math.nan, 0.1), 1),
        (BY, (math.nan, math.nan), 1),
    ],
)
def test_not_a_number_is_the_worst(tmp_path, monkeypatch, by, values, best):
    monkeypatch.setattr(evaluation, "list_validation_scores", lambda spec: [by])
    sim: Any = types.SimpleNamespace(spec=types.SimpleNamespace(has_validation=True))
    records = [{"round": number, by: value} for number, value in enumerate(values, 1)]
    once, one_by_one = (BestRound(by, 2, tmp_path, sim) for _ in range(2))
    once.update(records)
    for record in records:
        one_by_one.update([record])
    assert once.round == one_by_one.round == summarize_records(records, select=by)["selected"]["round"] == best
    assert once.evaluations_since == one_by_one.evaluations_since == len(values) - best


def recall_of_absent_class(outputs, x, y, mask):
    """No example has class 10, so nothing is ever counted."""
    counted = mask & (y == 10)
    return jnp.sum(counted & (jnp.argmax(outputs["logits"], 1) == y)), jnp.sum(counted)


def test_a_score_that_is_undefined_in_every_evaluation_is_warned_of_once(tmp_path, caplog):
    by = "validation/global/recall"
    made = config(number=4, select=by, every=2)
    done = run(tmp_path / "run", made, scores={"recall": recall_of_absent_class})
    assert (done.selected, int(experiment.load(tmp_path / "run", scores={"recall": recall_of_absent_class})[2].round)) == (None, 4)
    said = f"evaluation.select: {by} is undefined in round 2; no round is selected so far, and until one is, the last one counts"
    assert [line for line in caplog.messages if "undefined" in line] == [said]


BEFORE = (0.3, 0.5, 0.4, 0.4, 0.4, 0.9)


def with_all_checkpoints():
    made = config(select=BY)
    made.checkpoint.seconds, made.checkpoint.keep = 0.0, 6
    return made


@pytest.fixture(scope="module")
def six_rounds(tmp_path_factory):
    """A run whose scores are written by hand: round 6 is the best one."""
    folder = tmp_path_factory.mktemp("six") / "run"
    with pytest.MonkeyPatch.context() as patch:
        written_by_hand(patch, BY, BEFORE)
        assert run(folder, with_all_checkpoints()).selected == 6
    return folder


@pytest.mark.parametrize(("back", "then", "best"), [(2, (0.4, 0.4, 0.4, 0.1), 2), (3, (0.4, 0.4, 0.6, 0.1), 5)])
def test_a_run_that_has_gone_back_forgets_what_it_had_selected(six_rounds, tmp_path, monkeypatch, back, then, best):
    """Round 6 was the best one, and is none of the run's any more."""
    made, said = with_all_checkpoints(), []
    shutil.copytree(six_rounds, tmp_path / "run")
    for number in (*range(back + 1, 7), *([2] if back == 3 else [])):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"{number:08d}")
    written_by_hand(monkeypatch, BY, (*BEFORE[:back], *then[back - 6 :]))
    done = experiment.execute(made, str(tmp_path / "run"), progress=False, console=said.append)
    assert done.selected == done.summary["selected"]["round"] == best
    assert done.summary["clients"].get("selected", {"round": 2})["round"] == best, "not of round 6, of which the file was"
    assert [path.name for path in (tmp_path / "run" / "selected").iterdir()] == [f"{best:08d}"]
    assert int(experiment.load(tmp_path / "run")[2].round) == best
    gone = "round 2 is the best one so far, and its state is gone: that of a later round, given up since, had taken its place"
    assert (gone in said) == (back == 3)


@pytest.mark.parametrize("there", [True, False])
def test_the_selected_round_of_a_run_that_has_gone_back_is_loaded_or_missed(six_rounds, tmp_path, monkeypatch, there):
    made, folder = with_all_checkpoints(), Path(shutil.copytree(six_rounds, tmp_path / "run"))
    for number in (4, 5, 6, *([] if there else [2])):
        shutil.rmtree(folder / "checkpoints" / f"{number:08d}")
    written_by_hand(monkeypatch, BY, (0.3, 0.5, 0.4, 0.4, 0.4, 0.4))
    assert run(folder, made).selected == 2
    if there:
        assert int(experiment.load(folder)[2].round) == 2
    else:
        with pytest.raises(ValueError, match=r"no state of round 2, which is selected; done= may be one of \[1, 3, 4, 5, 6\]"):
            experiment.load(folder)
    assert int(experiment.load(folder, done=5)[2].round) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"select": "test/global/accuracy"}, "unknown evaluation.select 'test/global/accuracy'; allowed: validation/global"),
        ({"select": "validation/globl/accuracy"}, "Did you mean 'validation/global/accuracy'"),
        ({"patience": 3}, "evaluation.patience=3 needs evaluation.select"),
    ],
)
def test_impossible_selections_are_refused_before_anything_runs(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "run", config(**changes))
    assert not (tmp_path / "run").exists()


def test_a_selection_needs_validation_rows(tmp_path):
    made = config(select=BY)
    made.data.validation = None
    with pytest.raises(ValueError, match=r"needs validation examples; set data.validation"):
        run(tmp_path / "run", made)


def test_forms_of_a_target_score():
    assert parse_target_score("test/global/accuracy>=.5") == ScoreBound(ACCURACY, True, 0.5)
    assert parse_target_score(" validation/global/loss <= 1e-1 ") == ScoreBound("validation/global/loss", False, 0.1)
    for text in ("", "0.97", "test/global/accuracy", "test/global/accuracy > 0.9", "train/loss <= 0.1", "test/x >= 1.2.3"):
        assert parse_target_score(text) is None, text
    made = config(until="accuracy >= 0.9")
    with pytest.raises(ValueError, match=r"evaluation.until='accuracy >= 0.9' must be of the form 'test/global/accuracy >= 0.97'"):
        experiment.resolve(made)


@pytest.mark.parametrize(
    ("text", "values", "wanted"),
    [
        (f"{ACCURACY} >= 0.5", (0.4, 0.5, 0.6), 2),
        (f"{ACCURACY} >= 0.7", (0.4, 0.5, 0.6), 0),
        (f"{ACCURACY} >= 0.95", (0.4, float(np.float32(342) / np.float32(360)), 0.96), 2),  # below 0.95 in float32
        (f"{ACCURACY} <= 0.45", (0.5, float("nan"), 0.45), 3),
        (None, (0.4, 0.5, 0.6), 0),
    ],
)
def test_the_first_evaluation_that_is_there(text, values, wanted):
    records = [{"round": 2 * i, ACCURACY: value} for i, value in enumerate(values, 1)]
    at_once, one_by_one = TargetScore(text, [ACCURACY]), TargetScore(text, [ACCURACY])
    at_once.update(records)
    for record in records:
        one_by_one.update([{"round": record["round"] - 1}, record])
    assert at_once.reached_round == one_by_one.reached_round == 2 * wanted


def test_a_run_ends_there_and_stays_ended(tmp_path, monkeypatch):
    """Scores are written by hand. A higher goal goes on from there."""
    written_by_hand(monkeypatch, ACCURACY, (0.3, 0.5, 0.4, 0.7, 0.6, 0.9))

    def to(text):
        done = run(tmp_path / "run", config(until=text))
        return int(done.state.round), done.summary["facts"].get("ended"), done.stopped

    low, high = f"{ACCURACY} >= 0.5", f"{ACCURACY} >= 0.65"
    assert to(low) == (2, f"{low} in round 2", False)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert to(low) == (2, f"{low} in round 2", False)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert to(high) == (4, f"{high} in round 4", False)
    assert to(f"{ACCURACY} >= 0.9") == (6, None, False)  # its last round: it did not end early


def test_a_score_that_evaluations_do_not_have_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"'test/global/accuracy >= 97': accuracies must be in \[0, 1\], 97 % is 0.97"):
        run(tmp_path / "run", config(until=f"{ACCURACY} >= 97"))
    with pytest.raises(ValueError, match=r"score in evaluation.until 'test/globl/accuracy'; allowed: test/global/accuracy"):
        run(tmp_path / "run", config(until="test/globl/accuracy >= 0.5"))
    assert not (tmp_path / "run").exists()  # before anything is trained
