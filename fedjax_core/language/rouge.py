"""Scores of generated texts: ROUGE-1 and exact match."""

import re
from collections.abc import Sequence


def compute_rouge1(texts: Sequence[str], answers: Sequence[str]) -> list[float]:
    """Computes ROUGE-1 F of each text with its answer, as the package `rouge-score` defines words;
    without stemming. No words: 0.

    Raises:
      ImportError: the package is not installed.
    """
    try:
        from rouge_score import rouge_scorer
    except ImportError:
        raise ImportError("ROUGE needs the package rouge-score: pip install 'fedjax-core[text]'") from None
    scorer = rouge_scorer.RougeScorer(["rouge1"])
    return [float(scorer.score(answer, text)["rouge1"].fmeasure) for text, answer in zip(texts, answers, strict=True)]


def is_exact_match(texts: Sequence[str], answers: Sequence[str]) -> list[bool]:
    """Returns whether each text is its answer, but for case and white space."""
    plain = lambda text: re.sub(r"\s+", " ", text).strip().casefold()
    return [plain(text) == plain(answer) for text, answer in zip(texts, answers, strict=True)]
