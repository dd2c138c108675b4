"""Trials of a search on disk: their scores, and which of their checkpoints may be deleted."""

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path

from fedjax_core.atomic_files import write_text
from fedjax_core.commands.tables.progress import Job
from fedjax_core.commands.tables.search import Study, StudyStatus, Trial, add_proposed_trial, compute_status
from fedjax_core.commands.tables.table_cells import Cell
from fedjax_core.reporting import console, metrics_log, reporter
from fedjax_core.reporting.summary import summarize_records
from fedjax_core.run.early_stopping import SELECTED
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import read_json
from fedjax_core.storage.workdir import CHECKPOINTS, METRICS, lock_directory

_SUMMARY_FORM = {"rounds": int, "facts": dict, "speed?": {"seconds?": float}}  # fields of summary.json that are read
DIVERGED = "diverged.txt"  # in a run's directory: why it will not be tried again
BEGUN = "trials"  # beside the runs: an empty file for each that a search began and whose checkpoints may go


class SearchProgress:
    """The studies of a table and their progress; the score of a run is read once.

    Attributes:
      failures: why a study has a run that cannot be read, by (row, column).
    """

    def __init__(self, studies: Mapping[tuple[str, str], Study], folder: Path) -> None:
        self.studies = dict(studies)
        self.failures: dict[tuple[str, str], str] = {}
        self._folder = folder
        self._scores: dict[tuple[str, int], float] = {}
        self._statuses: dict[tuple[str, str], StudyStatus] = {}
        for pair in studies:
            self.refresh(pair)

    def refresh(self, pair: tuple[str, str]) -> None:
        """Reads the scores of all trials of a (row, column) at their rungs; what cannot be read is its failure."""
        self.failures.pop(pair, None)
        self._statuses.pop(pair, None)
        self._read_trials(pair, self.studies[pair].trials)

    def _read_trials(self, pair: tuple[str, str], trials: Sequence[Trial]) -> None:
        study = self.studies[pair]
        for run in (run for trial in trials for rung in study.rungs for run in trial.cells_at(rung.rounds)):
            if (run.name, run.config.rounds) in self._scores:
                continue
            try:
                self.read_run(study, run)
            except (ValueError, TypeError, OSError) as error:
                self.failures.setdefault(pair, console.one_line(error))

    def read_run(self, study: Study, run: Cell) -> bool:
        """Reads the score of a run, if it is done; returns whether it is."""
        score = read_score(run.workdir(self._folder), run, study.measure)
        if score is not None:
            self._scores[run.name, run.config.rounds] = score
            self._statuses.pop((study.row, study.column), None)
        return score is not None

    def status(self, pair: tuple[str, str]) -> StudyStatus:
        """Returns how far the study of a (row, column) is."""
        if pair not in self._statuses:
            self._statuses[pair] = self._compute_status(pair)
        return self._statuses[pair]

    def _compute_status(self, pair: tuple[str, str]) -> StudyStatus:
        """Computes how far a study is; where its trials are done, the next is proposed from their scores."""
        while True:
            study = self.studies[pair]
            status = compute_status(study, self._scores)
            if status.waiting or len(study.trials) == study.number:
                return status
            try:
                self.studies[pair] = add_proposed_trial(study, status)
            except (ValueError, TypeError, OSError) as error:
                self.failures[pair] = console.one_line(error)
                return status._replace(chosen=None)
            self._read_trials(pair, self.studies[pair].trials[-1:])

    def durations(self) -> Iterator[tuple[Job, float]]:
        """Yields the finished trials with their seconds."""
        for study in self.studies.values():
            for run in study.runs:
                summary = run.workdir(self._folder) / reporter.SUMMARY
                if (run.name, run.config.rounds) in self._scores and summary.exists():
                    yield (Job(run, run.config.rounds), read_json(summary, _SUMMARY_FORM).get("speed", {}).get("seconds", 0.0))


def read_score(workdir: Path, run: Cell, measure: tuple[str, ...]) -> float | None:
    """Reads the score of a trial after the rounds of its config: of the selected round if one is selected, else of the last.

    A trial that was interrupted in its last evaluation has not come so far.

    Returns:
      The score; NaN if the run diverged before; None if it has not come so far.
    """
    rounds = run.config.rounds
    file, summary = workdir / METRICS, workdir / reporter.SUMMARY
    records = metrics_log.read_records(file) if file.exists() else []
    ended = read_json(summary, _SUMMARY_FORM) if summary.exists() else {"rounds": 0, "facts": {}}
    is_longer = bool(records) and records[-1]["round"] > rounds  # of a longer run, or a later rung
    is_evaluated = reporter.ENDED in ended["facts"] or any(
        name.startswith("validation/") for record in records if record["round"] == rounds for name in record
    )
    if not (is_longer or (ended["rounds"] >= rounds and is_evaluated) or "ended" in ended["facts"]):
        return float("nan") if (workdir / DIVERGED).exists() else None
    if len(records) < ended["rounds"]:
        records = metrics_log.read_complete_records(workdir, ended["rounds"])  # another process may be writing there
    select = run.config.evaluation.get("select")
    metrics = summarize_records([record for record in records if record["round"] <= rounds], select=select)["metrics"]
    name = next((name for name in measure if name in metrics), None)
    statistic = "selected" if select else "last"
    if name is None or statistic not in metrics[name]:
        scores = ", ".join(name for name in metrics if name.startswith("validation/")) or "none on validation examples"
        raise ValueError(f"{run}: the run has no {statistic} of {' or '.join(measure)}; it has {scores}")
    return metrics[name][statistic]


def mark_as_diverged(folder: Path, run: Cell, why: str) -> None:
    """Marks in a run's directory that it diverged."""
    workdir = run.workdir(folder)
    workdir.mkdir(parents=True, exist_ok=True)
    write_text(workdir / DIVERGED, why + "\n")


def mark_as_trial(folder: Path, run: Cell) -> None:
    """Marks that a search begins a run, unless it has checkpoints of another command."""
    if not has_checkpoints(run.workdir(folder)):
        (folder / BEGUN).mkdir(parents=True, exist_ok=True)
        (folder / BEGUN / run.name).touch()


def has_checkpoints(workdir: Path) -> bool:
    """Returns whether a run's directory has a checkpoint."""
    return any(Checkpoints(workdir / name).rounds() for name in (CHECKPOINTS, SELECTED))


def delete_checkpoints(folder: Path, study: Study, keep: Container[str]) -> None:
    """Deletes the checkpoints of the trials of a search that is over; scores and records stay.

    Args:
      keep: names of runs that are not only trials.
    """
    for run in study.runs:
        workdir, mark = run.workdir(folder), folder / BEGUN / run.name
        if run.name in keep or not mark.exists() or not workdir.exists():
            continue
        try:
            lock = lock_directory(workdir)
        except OSError:  # another table's process runs there
            continue
        try:
            for name in (CHECKPOINTS, SELECTED):
                Checkpoints(workdir / name, writer=True).delete_after(0)
            mark.unlink(missing_ok=True)
        finally:
            lock.close()
