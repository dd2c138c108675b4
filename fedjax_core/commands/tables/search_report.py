"""Reports a search, for Markdown, LaTeX and CSV: chosen settings, all trials, and the gain of tuning."""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedjax_core.commands.tables import search_spaces
from fedjax_core.commands.tables.formatting import finite_or_none
from fedjax_core.commands.tables.search import Rung, StudyStatus, score_names
from fedjax_core.commands.tables.trials import SearchProgress
from fedjax_core.reporting.score_labels import is_accuracy, is_loss
from fedjax_core.reporting.terminal import markdown_row
from fedjax_core.storage.json_files import to_json_values

HEADS = ("", "", "trials", "chosen", "validation", "own settings", "gain", "")


def render_report(search: Any, searches: SearchProgress) -> list[str]:
    """Returns a paragraph on how settings were chosen, then a line per row and column, as Markdown."""
    rows = [HEADS, ("---",) * len(HEADS), *report_rows(search, searches)]
    return [describe_search(search, find_rungs(searches)), "", *(markdown_row(*row) for row in rows)]


def find_rungs(searches: SearchProgress) -> Sequence[Rung]:
    """Returns the rungs of the largest study."""
    return max(searches.studies.values(), key=lambda study: study.number).rungs


def report_rows(search: Any, searches: SearchProgress) -> list[tuple[str, ...]]:
    """Returns for each row and column the cells under `HEADS`."""
    rows, percent = [], all(map(is_accuracy, score_names(search)))
    for row, column in searches.studies:
        status = searches.status((row, column))
        study, chosen = searches.studies[row, column], status.chosen
        own, remarks = _score_of_trial(status, 0), _describe_remarks(study.space, status)
        if study.number == 1:
            rows.append((row, column, "1", "not tuned", "", "", "", ""))
            continue
        best, values, gain = math.nan, "none", math.nan
        if chosen is not None:
            best = _score_of_trial(status, chosen.number)
            values = ", ".join(f"{field}={value!r}" for field, value in chosen.values.items()) if chosen.number else "its own"
            gain = own - best if is_loss(study.measure[0]) else best - own
        elif status.waiting:
            total = status.finished_runs + len(status.waiting) + len(status.later_rounds)
            values = f"{status.finished_runs} of {total} runs"
        scores = [_format_score(best, percent), _format_score(own, percent), _format_score(gain, percent, "+")]
        rows.append((row, column, str(study.number), values, *scores, remarks))
    return rows


def describe_search(search: Any, rungs: Sequence[Rung], name_score: Callable[[str], str] = "`{}`".format) -> str:
    """Returns how settings were chosen, as Markdown. `name_score`: score -> its name in the text."""
    score = " or ".join(map(name_score, score_names(search)))
    percent = all(map(is_accuracy, score_names(search)))
    way = f"{search.sampler}, seed {search.seed}"
    length = "as many rounds as the runs" if search.rounds is None else f"{search.rounds} rounds"
    steps = [f"{above.number} after round {below.rounds}" for below, above in itertools.pairwise(rungs)]
    halved = f" (the best alone go on, {', '.join(steps)}, and the first in any case)" if steps else ""
    seeds = f"seed{'s' * (len(search.seeds) > 1)} {', '.join(map(str, search.seeds))}"
    mean = ", its mean over them" if len(search.seeds) > 1 else ""
    return (
        f"{search.trials} trials of each row on each column ({way}) of {length}{halved}, trained with {seeds}; the first has the "
        f"row's own settings. Chosen by {score}{' in %' if percent else ''}{mean}, on validation examples alone. "
        "Gain: over the row's own settings."
    )


def chosen_fields(searches: SearchProgress, place: tuple[str, str]) -> dict[str, Any]:
    """Returns what was chosen for a (row, column), for table.csv."""
    status = searches.status(place)
    study, chosen = searches.studies[place], status.chosen
    return {
        "trials": study.number,
        "diverged": status.diverged_trials,
        "chosen": None if chosen is None else json.dumps(to_json_values(chosen.values)),
        "chosen_trial": None if chosen is None else chosen.number,
        "validation": None if chosen is None else finite_or_none(_score_of_trial(status, chosen.number)),
        "validation_own": finite_or_none(_score_of_trial(status, 0)),
        "at_edge": None if chosen is None else "; ".join(search_spaces.describe_edges(study.space, chosen.values)),
    }


def trial_records(searches: SearchProgress) -> list[dict[str, Any]]:
    """Returns all trials, for trials.csv: settings, the rounds done, the score there, whether chosen."""
    records = []
    for row, column in searches.studies:
        status = searches.status((row, column))
        for trial in searches.studies[row, column].trials:
            rounds, score = status.scores.get(trial.number, (None, math.nan))
            record = {"row": row, "column": column, "trial": trial.number, "rounds": rounds, "score": finite_or_none(score)}
            record["diverged"] = int(rounds is not None and math.isnan(score))
            record["chosen"] = int(status.chosen is not None and status.chosen.number == trial.number)
            records.append(record | {"run": " ".join(run.name for run in trial.cells)} | to_json_values(trial.values))
    return records


def _describe_remarks(space: Mapping[str, Any], status: StudyStatus) -> str:
    """Returns remarks on a search: chosen values at an edge, trials that diverged."""
    remarks = search_spaces.describe_edges(space, status.chosen.values) if status.chosen is not None else []
    if status.diverged_trials:
        own = ", its own settings among them" if math.isnan(status.scores.get(0, (0, 0.0))[1]) else ""
        remarks.append(f"{status.diverged_trials} diverged{own}")
    return "; ".join(remarks)


def _score_of_trial(status: StudyStatus, trial: int) -> float:
    return status.scores.get(trial, (0, math.nan))[1]


def _format_score(score: float, percent: bool, sign: str = "") -> str:
    return "" if math.isnan(score) else f"{100 * score:{sign}.2f}" if percent else f"{score:{sign}.4g}"
