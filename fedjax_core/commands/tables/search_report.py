"""What a search chose, as text and as records: the settings, the trials, and what tuning was worth."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_core.commands.tables import search_spaces
from fedjax_core.commands.tables.search import Standing, names
from fedjax_core.commands.tables.trials import Searches
from fedjax_core.reporting.score_labels import is_accuracy, is_loss
from fedjax_core.storage.json_files import plain

HEADS = ("", "", "trials", "chosen", "validation", "own settings", "gain", "")


def lines(search: Any, searches: Searches) -> list[str]:
    """A paragraph on how settings were chosen, then a line for each row and column, as Markdown."""
    heads = [_line(*HEADS), _line(*("---",) * len(HEADS))]
    return [said(search), "", *heads, *(_line(*one) for one in chosen_for(search, searches))]


def chosen_for(search: Any, searches: Searches) -> list[tuple[str, ...]]:
    """For each row and column what stands under `HEADS`."""
    found, percent = [], all(map(is_accuracy, names(search)))
    for (row, column), study in searches.studies.items():
        standing = searches.standing((row, column))
        chosen, own, remarks = standing.chosen, _score(standing, 0), _remarks(study.space, standing)
        if len(study.trials) == 1:
            found.append((row, column, "1", "not tuned", "", "", "", ""))
            continue
        if chosen is None:
            done, of = standing.done, standing.done + len(standing.waiting) + len(standing.later)
            state = f"{done} of {of} runs" if standing.waiting else "none"
            found.append((row, column, str(len(study.trials)), state, "", _shown(own, percent), "", remarks))
            continue
        best = _score(standing, chosen.number)
        values = "its own" if not chosen.number else ", ".join(f"{field}={value!r}" for field, value in chosen.values.items())
        gain = _shown((own - best) if is_loss(study.measure[0]) else best - own, percent, "+")
        found.append((row, column, str(len(study.trials)), values, _shown(best, percent), _shown(own, percent), gain, remarks))
    return found


def said(search: Any, name_score: Callable[[str], str] = "`{}`".format) -> str:
    """How settings were chosen, as Markdown. `name_score`: how a score is called."""
    score, percent = " or ".join(map(name_score, names(search))), all(map(is_accuracy, names(search)))
    way = f"{search.sampler}, seed {search.seed}"
    length = "as many rounds as the runs" if search.rounds is None else f"{search.rounds} rounds"
    halved = f", the best 1/{search.halving} of them going on at each of a few halts" if search.halving else ""
    seeds = f"seed{'s' * (len(search.seeds) > 1)} {', '.join(map(str, search.seeds))}"
    mean = ", its mean over them" if len(search.seeds) > 1 else ""
    return (
        f"{search.trials} trials of each row on each column ({way}) of {length}{halved}, trained with {seeds}; the first has the "
        f"row's own settings. Chosen by {score}{' in %' if percent else ''}{mean}, on validation rows alone. "
        "Gain: over the row's own settings."
    )


def record(searches: Searches, place: tuple[str, str]) -> dict[str, Any]:
    """What was chosen for a (row, column), for table.csv."""
    study, standing = searches.studies[place], searches.standing(place)
    chosen = standing.chosen
    return {
        "trials": len(study.trials),
        "diverged": standing.diverged,
        "chosen": None if chosen is None else json.dumps(plain(chosen.values)),
        "chosen_trial": None if chosen is None else chosen.number,
        "validation": None if chosen is None else _finite(_score(standing, chosen.number)),
        "validation_own": _finite(_score(standing, 0)),
        "at_edge": None if chosen is None else "; ".join(search_spaces.edges(study.space, chosen.values)),
    }


def trials(searches: Searches) -> list[dict[str, Any]]:
    """All trials, for trials.csv: settings, the rounds that each came to, its score there, whether it was chosen."""
    found = []
    for (row, column), study in searches.studies.items():
        standing = searches.standing((row, column))
        for trial in study.trials:
            rounds, score = standing.scores.get(trial.number, (None, math.nan))
            one = {"row": row, "column": column, "trial": trial.number, "rounds": rounds, "score": _finite(score)}
            one["diverged"] = int(rounds is not None and math.isnan(score))
            one["chosen"] = int(standing.chosen is not None and standing.chosen.number == trial.number)
            found.append(one | {"run": " ".join(run.name for run in trial.cells)} | plain(trial.values))
    return found


def _remarks(space: Mapping[str, Any], standing: Standing) -> str:
    """What is to be known of a search: values at the edge, trials that diverged."""
    found = search_spaces.edges(space, standing.chosen.values) if standing.chosen is not None else []
    if standing.diverged:
        own = ", its own settings among them" if math.isnan(standing.scores.get(0, (0, 0.0))[1]) else ""
        found.append(f"{standing.diverged} diverged{own}")
    return "; ".join(found)


def _score(standing: Standing, trial: int) -> float:
    return standing.scores.get(trial, (0, math.nan))[1]


def _shown(score: float, percent: bool, sign: str = "") -> str:
    return "" if math.isnan(score) else f"{100 * score:{sign}.2f}" if percent else f"{score:{sign}.4g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _line(*cells: str) -> str:
    return "| " + " | ".join(text.replace("|", r"\|") for text in cells) + " |"
