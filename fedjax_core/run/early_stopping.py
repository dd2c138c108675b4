"""A score at which a run may end: `config.evaluation.until`, such as "test/global/accuracy >= 0.97"."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_core import distributed, registry
from fedjax_core.reporting.score_labels import is_accuracy

FORM = r"\s*((?:test|validation)/\S+?)\s*(>=|<=)\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*"


class Bound(NamedTuple):
    """What is to be reached.

    Attributes:
      score: its name.
      above: whether it must be at least `value`; False: at most.
      value: as a score is recorded, 0.97 for 97 %.
    """

    score: str
    above: bool
    value: float

    def holds(self, found: float) -> bool:
        """Whether a score of this value is enough; NaN never is."""
        return found >= self.value if self.above else found <= self.value


def parse(text: str) -> Bound | None:
    """What a text asks for; None if it has another form.

    >>> parse("test/global/accuracy >= 0.97")
    Bound(score='test/global/accuracy', above=True, value=0.97)
    """
    found = re.fullmatch(FORM, text)
    try:
        return found and Bound(found[1], found[2] == ">=", float(found[3]))
    except ValueError:  # such as "1.2.3"
        return None


class Goal:
    """Whether a run has reached what it was to reach. The decision follows evaluations alone, so a run that is resumed ends in the
    same round.

    Attributes:
      text: as the config has it; None: there is no goal.
      reached: the first evaluated round in which the score was there; 0 before.
    """

    def __init__(self, text: str | None, there: Sequence[str]):
        """Checks that there will be such a score.

        Args:
          text: `evaluation.until`.
          there: the scores that evaluations have.

        Raises:
          ValueError: the text has another form, or no evaluation has its score.
        """
        self.text, self.reached = text, 0
        self._bound = None if text is None else parse(text)
        if text is not None and self._bound is None:
            raise ValueError(f"evaluation.until={text!r} must be of the form 'test/global/accuracy >= 0.97'")
        if self._bound is not None:
            registry.choose("score in evaluation.until", self._bound.score, there)
            if is_accuracy(self._bound.score) and not 0 <= self._bound.value <= 1:
                raise ValueError(f"evaluation.until={text!r}: accuracies lie in [0, 1], 97 % is 0.97")

    def take_up(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Goes on after the records of earlier starts, which process 0 has."""
        self.see(records)
        self.reached = distributed.said(self.reached)

    def see(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Takes the records of more rounds, in order."""
        bound = self._bound
        if bound is None:
            return
        for record in records:
            if not self.reached and bound.score in record and bound.holds(float(record[bound.score])):
                self.reached = record["round"]
