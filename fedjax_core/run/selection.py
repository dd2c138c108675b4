"""The best round of a run by a score on validation rows: kept as a snapshot, and the reason to stop early."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_core import distributed, registry
from fedjax_core.engine import evaluation
from fedjax_core.engine.simulator import Simulation, State
from fedjax_core.reporting.reporter import SUMMARY
from fedjax_core.reporting.score_labels import merit
from fedjax_core.run import checkpointing as directories
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import CHECKPOINTS

SELECTED = "selected"  # folder of the snapshot


class Selection:
    """Which evaluation was the best one.

    Attributes:
      by: the score; the highest is the best, of a loss the lowest, of equal ones the first; NaN is the worst. None: nothing is
        selected.
      best: the round; 0 before the first evaluation.
      since: evaluations after it.
    """

    def __init__(self, by: str | None, patience: int | None, directory: Path, simulation: Simulation):
        """Checks that there will be such a score.

        Raises:
          ValueError: there will not; or patience without a score.
        """
        if by is not None:
            if not simulation.spec.has_validation:
                raise ValueError(f"evaluation.select={by!r} needs validation rows; set data.validation, such as 0.2")
            registry.choose("evaluation.select", by, evaluation.list_validation_scores(simulation.spec))
        elif patience is not None:
            raise ValueError(f"evaluation.patience={patience} needs evaluation.select, such as 'validation/global/accuracy'")
        self.by, self.best, self.since = by, 0, 0
        self._patience, self._value, self._simulation = patience, -math.inf, simulation
        self._kept, self._all = Checkpoints(directory / SELECTED, keep=1), Checkpoints(directory / CHECKPOINTS)

    @property
    def exhausted(self) -> bool:
        """Whether no better evaluation came for too long."""
        return self._patience is not None and self.since >= self._patience

    @property
    def why(self) -> str:
        """What is said of a run that is `exhausted`."""
        return f"no better {self.by} in {self._patience} evaluations after round {self.best}"

    @property
    def missing(self) -> bool:
        """Whether the best round has no snapshot."""
        return self.by is not None and self.best > 0 and self._kept.latest() != self.best

    def take_up(self, records: Sequence[Mapping[str, Any]], done: int) -> None:
        """Goes on after the records of earlier starts, which process 0 has, of `done` rounds. If the run has gone back, a snapshot
        of a later round is deleted: nothing would replace it, and it would be taken for the best one."""
        self._kept.cut(done)
        self.see(records)
        self.best, self._value, self.since = distributed.said([self.best, self._value, self.since])

    def see(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Takes the records of more rounds; whether the last of their evaluations is the best one so far."""
        for record in records:
            if self.by is None or self.by not in record:
                continue
            value = merit(self.by, float(record[self.by]))
            if value > self._value or not self.best:
                self.best, self._value, self.since = record["round"], value, 0
            else:
                self.since += 1
        return bool(records) and self.best == records[-1]["round"]

    def keep(self, state: State) -> None:
        """Keeps the state after the best round, which the run has a checkpoint of, in place of the one before."""
        directories.save_beside(self._simulation, self._kept, state, self.best, self._all)


def summarised(folder: Path, checkpoints: Checkpoints) -> int | None:
    """The selected round of a run that has no snapshot of it, since it has gone back; None if none is selected yet.

    Args:
      folder: of the run.
      checkpoints: of the run, where that round may still be.

    Raises:
      ValueError: it is not.
    """
    summary = folder / SUMMARY
    found = read_json(summary, {"selected?": {"round": int}}).get("selected") if summary.exists() else None
    if found is not None and found["round"] not in (there := checkpoints.rounds()):
        raise ValueError(f"{folder} has no state of round {found['round']}, which is selected; done= may be one of {there}")
    return None if found is None else found["round"]
