"""Early stopping: patience with a score on validation examples, whose best round is kept, and a
score at which a run ends (`config.evaluation.until`).

Both follow the evaluations alone, so a resumed run ends in the same round.
"""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_core import distributed, registry
from fedjax_core.engine import evaluation
from fedjax_core.engine.simulator import Simulator, State
from fedjax_core.reporting.reporter import SUMMARY
from fedjax_core.reporting.rounds_to_target import is_reached
from fedjax_core.reporting.score_labels import describe_direction, is_accuracy, selection_key
from fedjax_core.run import checkpointing
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import CHECKPOINTS

log = logging.getLogger("fedjax_core")

SELECTED = "selected"  # the folder of the best round's state
FORM = r"\s*((?:test|validation)/\S+?)\s*(>=|<=)\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*"


class BestRound:
    """The best evaluated round by a validation score; its state is kept.

    Attributes:
      by: the score. The highest is the best, of a loss the lowest, of equal ones the first; NaN is
        the worst. None: no round is selected.
      round: the best one; 0 before the first evaluation.
      evaluations_since: after it.
    """

    def __init__(self, by: str | None, patience: int | None, directory: Path, simulator: Simulator):
        """Checks that evaluations have the score.

        Raises:
          ValueError: they do not.
        """
        if by is not None:
            if not simulator.spec.has_validation:
                raise ValueError(f"evaluation.select={by!r} needs validation examples; set data.validation, such as 0.2")
            registry.check_choice("evaluation.select", by, evaluation.list_validation_scores(simulator.spec))
            if text := describe_direction(by):
                log.warning("evaluation.select: %s", text)
        self.by, self.round, self.evaluations_since = by, 0, 0
        self._patience, self._merit, self._simulator = patience, -math.inf, simulator
        self._has_warned = False
        self._selected = Checkpoints(directory / SELECTED, keep=1)
        self._all = Checkpoints(directory / CHECKPOINTS)

    @property
    def exhausted_reason(self) -> str:
        """Why the patience is at its end; "" if it is not."""
        if self._patience is None or self.evaluations_since < self._patience:
            return ""
        return f"no better {self.by} in {self._patience} evaluations after round {self.round}"

    @property
    def is_missing(self) -> bool:
        """Whether the state of the best round is not kept."""
        return self.by is not None and self.round > 0 and self._selected.latest() != self.round

    def resume(self, records: Sequence[Mapping[str, Any]], done: int) -> None:
        """Takes the records of earlier starts, which process 0 has.

        If the run has gone back to the round `done`, a kept state of a later round is deleted:
        nothing would replace it.
        """
        self._selected.delete_after(done)
        self.update(records)
        agreed = distributed.broadcast_from_process_0([self.round, self._merit, self.evaluations_since])
        self.round, self._merit, self.evaluations_since = agreed

    def update(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Takes the records of more rounds. Returns whether the last of them is the best one."""
        for record in records:
            if self.by is None or self.by not in record:
                continue
            new = selection_key(self.by, float(record[self.by]))
            if new > self._merit or not self.round:
                self.round, self._merit, self.evaluations_since = record["round"], new, 0
            else:
                self.evaluations_since += 1
        return bool(records) and self.round == records[-1]["round"]

    def warn_if_undefined(self, round_num: int) -> None:
        """Warns once, in process 0, if no evaluation up to that of this round has the score."""
        if self.by is None or self.round or self._has_warned:
            return
        self._has_warned = True
        if jax.process_index() == 0:
            what = (
                "evaluation.select: %s is undefined in round %d; no round is selected so far, and until one is, the last one counts"
            )
            log.warning(what, self.by, round_num)

    def keep(self, state: State) -> None:
        """Keeps the state after the best round, of which the run has a checkpoint."""
        checkpointing.save_selected(self._simulator, self._selected, state, self.round, self._all)


def find_selected_round(folder: Path, checkpoints: Checkpoints) -> int | None:
    """Returns the selected round of a run that went back and has not kept its state; None if no
    round is selected yet.

    Args:
      checkpoints: of the run, which may still have that round.
    """
    summary = folder / SUMMARY
    if not summary.exists():
        return None
    selected = read_json(summary, {"selected?": {"round": int}}).get("selected")
    if selected is None:
        return None
    if selected["round"] not in (rounds := checkpoints.rounds()):
        raise ValueError(f"{folder} has no state of round {selected['round']}, which is selected; done= may be one of {rounds}")
    return selected["round"]


class ScoreBound(NamedTuple):
    """A score to reach.

    Attributes:
      is_lower_bound: whether the score must be at least `value`; False: at most.
      value: as scores are recorded, 0.97 for 97 %.
    """

    score: str
    is_lower_bound: bool
    value: float

    def is_met_by(self, score: float) -> bool:
        """Returns whether a score is enough; NaN is not."""
        return is_reached(self.value, score, self.is_lower_bound)


def parse_target_score(text: str) -> ScoreBound | None:
    """Parses `config.evaluation.until`; None if the text has another form.

    >>> parse_target_score("test/global/accuracy >= 0.97")
    ScoreBound(score='test/global/accuracy', is_lower_bound=True, value=0.97)
    """
    match = re.fullmatch(FORM, text)
    try:
        return match and ScoreBound(match[1], match[2] == ">=", float(match[3]))
    except ValueError:  # such as "1.2.3"
        return None


class TargetScore:
    """A score at which a run ends.

    Attributes:
      text: as the config has it; None: the run does not end by a score.
      reached_round: the first evaluated round with that score; 0 before.
    """

    def __init__(self, text: str | None, scores: Sequence[str]):
        """Checks that evaluations have the score.

        Raises:
          ValueError: the text has another form, or names no score of evaluations.
        """
        self.text, self.reached_round = text, 0
        self._bound = None if text is None else parse_target_score(text)
        if text is not None and self._bound is None:
            raise ValueError(f"evaluation.until={text!r} must be of the form 'test/global/accuracy >= 0.97'")
        if self._bound is not None:
            registry.check_choice("score in evaluation.until", self._bound.score, scores)
            if is_accuracy(self._bound.score) and not 0 <= self._bound.value <= 1:
                raise ValueError(f"evaluation.until={text!r}: accuracies must be in [0, 1], 97 % is 0.97")

    @property
    def reason(self) -> str:
        """Why the run ends; "" while the score is not reached."""
        return f"{self.text} in round {self.reached_round}" if self.reached_round else ""

    def resume(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Takes the records of earlier starts, which process 0 has."""
        self.update(records)
        self.reached_round = distributed.broadcast_from_process_0(self.reached_round)

    def update(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Takes the records of more rounds, in their order."""
        if self._bound is None or self.reached_round:
            return
        score = self._bound.score
        reached = (r for r in records if score in r and self._bound.is_met_by(float(r[score])))
        self.reached_round = next(reached, {"round": 0})["round"]
