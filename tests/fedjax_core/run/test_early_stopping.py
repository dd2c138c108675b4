"""A run that ends when a score is there."""

import pytest

from fedjax_core import experiment
from fedjax_core.run.early_stopping import Bound, Goal, parse
from fedjax_core.storage.json_files import read_jsonl
from tests.fedjax_core.run.test_selection import config, run, written_by_hand

ACCURACY = "test/global/accuracy"


def test_forms():
    assert parse("test/global/accuracy>=.5") == Bound(ACCURACY, True, 0.5)
    assert parse(" validation/global/loss <= 1e-1 ") == Bound("validation/global/loss", False, 0.1)
    for text in ("", "0.97", "test/global/accuracy", "test/global/accuracy > 0.9", "train/loss <= 0.1", "test/x >= 1.2.3"):
        assert parse(text) is None, text
    made = config(until="accuracy >= 0.9")
    with pytest.raises(ValueError, match=r"evaluation.until='accuracy >= 0.9' must be of the form 'test/global/accuracy >= 0.97'"):
        experiment.resolve(made)


@pytest.mark.parametrize(
    ("text", "values", "wanted"),
    [
        (f"{ACCURACY} >= 0.5", (0.4, 0.5, 0.6), 2),
        (f"{ACCURACY} >= 0.7", (0.4, 0.5, 0.6), 0),
        (f"{ACCURACY} <= 0.45", (0.5, float("nan"), 0.45), 3),
        (None, (0.4, 0.5, 0.6), 0),
    ],
)
def test_the_first_evaluation_that_is_there(text, values, wanted):
    records = [{"round": 2 * i, ACCURACY: value} for i, value in enumerate(values, 1)]
    at_once, one_by_one = Goal(text, [ACCURACY]), Goal(text, [ACCURACY])
    at_once.see(records)
    for record in records:
        one_by_one.see([{"round": record["round"] - 1}, record])
    assert at_once.reached == one_by_one.reached == 2 * wanted


def test_a_run_ends_there_and_stays_ended(tmp_path, monkeypatch):
    """Scores are written by hand. A higher goal goes on from there, with the scores that an uninterrupted run has."""
    written_by_hand(monkeypatch, ACCURACY, (0.3, 0.5, 0.4, 0.7, 0.6, 0.9))

    def to(text, name="run"):
        done = run(tmp_path / name, config(until=text))
        return int(done.state.round), done.summary["facts"].get("ended"), done.stopped

    low, high = f"{ACCURACY} >= 0.5", f"{ACCURACY} >= 0.65"
    assert to(low) == (2, f"{low} in round 2", False)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert to(low) == (2, f"{low} in round 2", False)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert to(high) == (4, f"{high} in round 4", False)
    assert to(high, "whole")[0] == 4
    one, other = (read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("run", "whole"))
    assert [record["train/loss"] for record in one] == [record["train/loss"] for record in other]
    assert to(f"{ACCURACY} >= 0.9") == (6, None, False)  # its last round: it did not end early


def test_a_score_that_evaluations_do_not_have_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"'test/global/accuracy >= 97': accuracies lie in \[0, 1\], 97 % is 0.97"):
        run(tmp_path / "run", config(until=f"{ACCURACY} >= 97"))
    with pytest.raises(ValueError, match=r"score in evaluation.until 'test/globl/accuracy'; allowed: test/global/accuracy"):
        run(tmp_path / "run", config(until="test/globl/accuracy >= 0.5"))
    assert not (tmp_path / "run").exists()  # before anything is trained
