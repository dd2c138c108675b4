"""Scores of generated texts."""

import numpy as np
import pytest

from fedjax_core.language import generation


def test_rouge_is_the_f_measure_of_words():
    pytest.importorskip("rouge_score", reason="no rouge-score: pip install -e '.[text]'")
    pairs = {
        ("yes", "Yes."): 1.0,
        ("it is not possible", "not possible to tell"): 2 * (2 / 4) * (2 / 4) / (2 / 4 + 2 / 4),
        ("a a b", "a b c d"): 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4),
        ("", "no"): 0.0,
        ("no", ""): 0.0,
        ("running", "run"): 0.0,
    }
    found = generation.compute_rouge1(*zip(*pairs, strict=True))
    np.testing.assert_allclose(found, list(pairs.values()))


def test_exact_answers():
    assert generation.is_exact_match(["Yes ", "no", "a\n b"], ["yes", "yes", "a b"]) == [True, False, True]


def test_answers_of_which_rouge_reads_nothing_are_warned_of(caplog):
    generation.warn_of_rouge1(["films", "films", "signs", "signs"], ["Yes", "да", "+", ""])
    assert [message.split(" have")[0] for message in caplog.messages] == ["films: 1 of 2 answers", "signs: 2 of 2 answers"]
