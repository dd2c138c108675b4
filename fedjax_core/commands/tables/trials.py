"""Trials of a search on the disk: what their directories say of their scores."""

from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from fedjax_core.atomic_files import write_text
from fedjax_core.commands.tables.progress import Job
from fedjax_core.commands.tables.search import Standing, Study, standing
from fedjax_core.commands.tables.table_cells import Cell
from fedjax_core.reporting import metrics_log, reporter
from fedjax_core.run.early_stopping import SELECTED
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import CHECKPOINTS, METRICS, lock_directory

_ENDED = {"rounds": int, "facts": dict, "speed?": {"seconds?": float}}  # of summary.json, what is read of a trial
DIVERGED = "diverged.txt"  # in a run's directory: why it will not be tried again
BEGUN = "trials"  # beside the runs: an empty file for each that a search began and whose checkpoints may go


class Searches:
    """The studies of a table, and how far each one is; what was read of a run once is kept.

    Attributes:
      studies: by (row, column).
      failures: of those that have a run which cannot be read, by (row, column): why.
    """

    def __init__(self, studies: Mapping[tuple[str, str], Study], folder: Path) -> None:
        self.studies = studies
        self.failures: dict[tuple[str, str], str] = {}
        self._folder = folder
        self._scores: dict[tuple[str, int], float] = {}
        self._standings: dict[tuple[str, str], Standing] = {}
        for place in studies:
            self.look(place)

    def look(self, place: tuple[str, str]) -> None:
        """Takes up the scores of all trials of a (row, column) that are done to some rung; what cannot be read is its failure."""
        study = self.studies[place]
        self.failures.pop(place, None)
        for run in (run for trial in study.trials for rung in study.rungs for run in trial.after(rung.rounds)):
            if (run.name, run.config.rounds) in self._scores:
                continue
            try:
                self.read(study, run)
            except (ValueError, TypeError, OSError) as error:
                self.failures.setdefault(place, reporter.one_line(error))

    def read(self, study: Study, run: Cell) -> bool:
        """Takes up what the directory of a run has, if it is done; whether it is.

        Raises:
          ValueError: it is, and has no such score.
        """
        score = score_of(self._folder / "runs" / run.name, run, study.measure)
        if score is not None:
            self._scores[run.name, run.config.rounds] = score
            self._standings.pop((study.row, study.column), None)
        return score is not None

    def standing(self, place: tuple[str, str]) -> Standing:
        """How far the study of a (row, column) is."""
        if place not in self._standings:
            self._standings[place] = standing(self.studies[place], self._scores)
        return self._standings[place]

    def took(self) -> Iterator[tuple[Job, float]]:
        """Trials that lie finished, each with its seconds."""
        for study in self.studies.values():
            for run in (run for trial in study.trials for run in trial.cells):
                summary = self._folder / "runs" / run.name / reporter.SUMMARY
                if (run.name, run.config.rounds) in self._scores and summary.exists():
                    yield Job(run, run.config.rounds), read_json(summary, _ENDED).get("speed", {}).get("seconds", 0.0)


def score_of(place: Path, run: Cell, measure: tuple[str, ...]) -> float | None:
    """The score of a trial after the rounds of its config: in the selected round if there is one, else in the last.

    Returns:
      The score; NaN if the run diverged before; None if it has not come so far.

    Raises:
      ValueError: the run has no such score.
      OSError: a file cannot be read.
    """
    rounds = run.config.rounds
    file, summary = place / METRICS, place / reporter.SUMMARY
    found = metrics_log.read(file) if file.exists() else []
    said = read_json(summary, _ENDED) if summary.exists() else {"rounds": 0, "facts": {}}
    beyond = bool(found) and found[-1]["round"] > rounds  # of a longer run, or a later rung
    if not (beyond or said["rounds"] >= rounds or "ended" in said["facts"]):
        return float("nan") if (place / DIVERGED).exists() else None
    if len(found) < said["rounds"]:
        found = metrics_log.whole(place, said["rounds"])  # another process may be writing there
    select = run.config.evaluation.get("select")
    there = reporter.summarise([record for record in found if record["round"] <= rounds], select=select)["metrics"]
    name = next((name for name in measure if name in there), None)
    statistic = "selected" if select else "last"
    if name is None or statistic not in there[name]:
        have = ", ".join(name for name in there if name.startswith("validation/")) or "none on validation rows"
        raise ValueError(f"{run}: the run has no {statistic} of {' or '.join(measure)}; it has {have}")
    return there[name][statistic]


def give_up(folder: Path, run: Cell, why: str) -> None:
    """Notes in a run's directory that it diverged."""
    place = folder / "runs" / run.name
    place.mkdir(parents=True, exist_ok=True)
    write_text(place / DIVERGED, why + "\n")


def mark_as_trial(folder: Path, run: Cell) -> None:
    """Notes that a search begins a run, unless it has checkpoints that somebody else left."""
    if not has_states(folder / "runs" / run.name):
        (folder / BEGUN).mkdir(parents=True, exist_ok=True)
        (folder / BEGUN / run.name).touch()


def has_states(place: Path) -> bool:
    """Whether a run's directory has a checkpoint."""
    return any(Checkpoints(place / name).rounds() for name in (CHECKPOINTS, SELECTED))


def delete_states(folder: Path, study: Study, keep: Container[str]) -> None:
    """Deletes the checkpoints of the trials of a search that is over; scores and records stay.

    Args:
      folder: of the table.
      study: the search of one row on one column.
      keep: names of runs that are not only trials.
    """
    for run in (run for trial in study.trials for run in trial.cells):
        place, mark = folder / "runs" / run.name, folder / BEGUN / run.name
        if run.name in keep or not mark.exists() or not place.exists():
            continue
        try:
            lock = lock_directory(place)
        except OSError:  # another table's process runs there
            continue
        try:
            for name in (CHECKPOINTS, SELECTED):
                Checkpoints(place / name, writer=True).cut(0)
            mark.unlink(missing_ok=True)
        finally:
            lock.close()
