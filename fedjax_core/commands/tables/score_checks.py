"""Checks that the runs of a table can have the scores that it names, before anything runs."""

from collections.abc import Collection, Sequence
from typing import Any

from fedjax_core import registry
from fedjax_core.commands.tables.measures import ANALYSIS
from fedjax_core.engine.evaluation_step import STATISTICS
from fedjax_core.experiment import ResolvedConfig
from fedjax_core.language import instruction_task as language
from fedjax_core.reporting.score_labels import is_gap
from fedjax_core.training import metrics

SCOPES = {"own", "all", "post_local", "unseen"}


def known_score_names(resolved: ResolvedConfig) -> Collection[str] | None:
    """Returns which scores the runs of a config can have, by the part of their names that says what is scored.

    None for texts, whose scores depend on the task.
    """
    if resolved.data.source.function is language.Source:
        return None
    kinds = [name for of_kind in metrics.METRIC_NAMES.values() for name in of_kind]
    return list(dict.fromkeys([*resolved.scores, *kinds, "backdoor"]))


def check_scores(measure: Any, config: Any, resolved: ResolvedConfig) -> None:
    """Checks that a run can have one of a measure's scores."""
    what, needed, lacking = f"measure {measure.label!r}", [], ""
    of_runs = [score for score in measure.scores if not score.startswith(ANALYSIS)]
    if measure.statistic == "selected" and of_runs and config.evaluation.get("select") is None:
        raise ValueError(f"{what} is of the selected round; set evaluation.select, such as 'validation/global/accuracy'")
    for score in of_runs:
        if not score.startswith(("train/", "server/")):
            _check_form(what, score, measure.clients is None, known_score_names(resolved))
    for score in measure.scores:
        parts = score.split("/")
        if score not in of_runs or parts[0] in ("train", "server"):
            return
        if is_of_unseen(score) and config.data.get("unseen_clients") is None:
            raise ValueError(f"{what}: {score!r} needs data.unseen_clients, such as 0.2")
        if parts[0] == "validation" and config.data.get("validation") is None:
            lacking = f"{what}: {score!r} needs data.validation, such as 0.2"
            continue
        scopes = _needed_scopes(score, config)
        if not scopes or scopes & set(config.evaluation.scopes):
            return
        needed += sorted(scopes)
    if lacking and not needed:
        raise ValueError(lacking)
    raise ValueError(
        f"{what} needs {' or '.join(map(repr, dict.fromkeys(needed)))} in evaluation.scopes, "
        f"found {tuple(config.evaluation.scopes)}"
    )


def check_search_scores(scores: Sequence[str], resolved: ResolvedConfig) -> None:
    """Checks the names of the scores that a search chooses by."""
    for score in scores:
        _check_form("the search's measure", score, True, known_score_names(resolved))


def _check_form(what: str, score: str, with_statistic: bool, known: Collection[str] | None) -> None:
    """Raises ValueError for an unknown name of a score. `known`: names that may be scored."""
    parts, scope = score.split("/"), _parse_scope(score, with_statistic)
    if parts[0] not in ("test", "validation") or scope is None or (parts[0] == "validation" and scope not in ("global", "own")):
        raise ValueError(f"{what}: {score!r} is no name of a score, such as test/global/accuracy")
    if (parts[1], scope) == ("global", "all"):
        raise ValueError(f"{what}: there is no {score!r}: it is the same for all clients; take test/global/{parts[3]}")
    if scope == "gap":
        known = dict.fromkeys(of_kind[0] for of_kind in metrics.METRIC_NAMES.values())
    if known is not None:
        registry.check_choice(f"score in {score!r} of {what}", parts[2 if scope == "global" else 3], known)
    if len(parts) == 5:
        registry.check_choice(f"statistic in {score!r} of {what}", parts[4], STATISTICS)


def _parse_scope(score: str, with_statistic: bool) -> str | None:
    """Returns the scope of a score, "gap" of a difference of two; None if the name has another form."""
    parts = score.split("/")
    if len(parts) == 3:
        return "global" if parts[1] == "global" else None
    if with_statistic and len(parts) == 4:
        return "gap" if is_gap(score) else None
    return parts[2] if len(parts) == (5 if with_statistic else 4) and parts[2] in SCOPES else None


def _needed_scopes(score: str, config: Any) -> set[str]:
    """Returns the scopes of which a config must have one for a score; empty if the score is always there."""
    parts = score.split("/")
    if is_of_unseen(score):
        return {"own"} if is_gap(score) else set()
    if len(parts) == 3:
        return {"global"}
    return {"own", "all"} if parts[0] == "validation" else {parts[2]}


def is_of_unseen(score: str) -> bool:
    """Returns whether a score is of unseen clients, or the gap to them: methods that cannot serve such have none."""
    parts = score.split("/")
    return (len(parts) in (4, 5) and parts[2] == "unseen") or (len(parts) == 4 and is_gap(score))
