"""Validates measures, describes their numbers, and checks that runs can have their scores."""

import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedjax_core import registry
from fedjax_core.commands.analyses import scalar_metrics as analyses
from fedjax_core.commands.tables import client_statistics
from fedjax_core.engine import evaluation_step
from fedjax_core.experiment import ResolvedConfig
from fedjax_core.language import instruction_task as language
from fedjax_core.reporting import score_labels
from fedjax_core.training import metrics

# a measure's statistic: its name in `reporting.summary.summarize_records`
SUMMARY_KEYS = {"last": "last", "first": "first", "best": "best", "mean_of_last": "mean_last_k", "selected": "selected"}
BETTER = ("larger", "smaller", "neither")
ROUNDS_TO = "rounds_to"  # a statistic with a target, which counts rounds
SECONDS_TO = "seconds_to"  # likewise simulated seconds
ANALYSIS = "analysis:"


def check_measure(measure: Any) -> None:
    """Validates a measure."""
    what = f"measure {measure.label!r}"
    if measure.statistic.startswith((ROUNDS_TO, SECONDS_TO)):
        _check_target(measure, f"statistic of {what}")
    else:
        registry.check_choice(
            f"statistic of {what}", measure.statistic, (*SUMMARY_KEYS, f"{ROUNDS_TO}(target=0.9)", f"{SECONDS_TO}(target=0.9)")
        )
    scores = measure.scores
    if isinstance(scores, str) or not scores:
        raise ValueError(f"{what}: scores must be a tuple of one or more names, found {scores!r}")
    if measure.clients is not None:
        client_statistics.check_clients_option(measure)
    if any(score.startswith(ANALYSIS) for score in scores):
        if len(scores) > 1:
            raise ValueError(f"{what}: an analysis must be the only score, found {scores!r}")
        analyses.make_metric(scores[0].removeprefix(ANALYSIS))
    others = [score for score in scores if not score_labels.is_headline(score) and not score.startswith(ANALYSIS)]
    if measure.statistic == "best" and measure.clients is None and others:
        raise ValueError(
            f"{what}: the best round is known of accuracies and R2 alone, found {others[0]!r}; take 'last' or 'selected'"
        )
    if measure.unit != 1 and is_percent(measure):
        raise ValueError(f"{what}: unit={measure.unit} of what is shown in per cent; leave one of them out")
    if measure.better is not None:
        registry.check_choice(f"better of {what}", measure.better, BETTER)


def _check_target(measure: Any, what: str) -> None:
    name, options = registry.parse_spec(measure.statistic, what)
    registry.check_choice(what, name, (*SUMMARY_KEYS, ROUNDS_TO, SECONDS_TO))
    registry.check_call(f"{what}: {name}", _rounds_to, (), options)
    if any(score.startswith(ANALYSIS) or score_labels.better_direction(score) == "neither" for score in measure.scores):
        raise ValueError(f"{what}: {name} is of accuracies or losses, found {measure.scores!r}")
    if any(map(score_labels.is_accuracy, measure.scores)) and not 0 <= _rounds_to(**options) <= 1:
        raise ValueError(f"{what}: target={options['target']} must be in [0, 1], as accuracies do; 97 % is 0.97")
    if measure.percent:
        raise ValueError(f"{what}: {name} counts {name.partition('_')[0]}, which are not shown in per cent")


def _rounds_to(target: float) -> float:
    return float(target)


def rounds_target(measure: Any) -> float | None:
    """Returns the score that a measure counts the rounds or seconds to; None if it counts none."""
    if not measure.statistic.startswith((ROUNDS_TO, SECONDS_TO)):
        return None
    return _rounds_to(**registry.parse_spec(measure.statistic)[1])


def counts_seconds(measure: Any) -> bool:
    """Returns whether a measure counts simulated seconds."""
    return measure.statistic.startswith(SECONDS_TO)


def is_analysis(measure: Any) -> bool:
    """Returns whether a measure is an analysis of the last state, not a score of the run."""
    return measure.scores[0].startswith(ANALYSIS)


def list_unknown_analyses(workdir: Path, scores: Iterable[str]) -> list[str]:
    """Returns the analyses that were not yet computed of a run."""
    known = analyses.read_numbers(workdir)
    return [score for score in scores if score.removeprefix(ANALYSIS) not in known]


def is_count(measure: Any) -> bool:
    """Returns whether a measure follows from shapes, without training."""
    return is_analysis(measure) and analyses.is_size(measure.scores[0].removeprefix(ANALYSIS))


def is_percent(measure: Any) -> bool:
    """Returns whether a measure's numbers are shown times 100."""
    if rounds_target(measure) is not None:
        return False
    if measure.percent is not None:
        return measure.percent
    if client_statistics.reference_row(measure) is not None:
        return True
    score = measure.scores[0]
    accuracy = score_labels.is_accuracy(score) or (score_labels.is_gap(score) and not score.endswith("/r2"))
    return accuracy or (is_analysis(measure) and not is_count(measure))


def display_scale(measure: Any) -> float:
    """Returns the factor from a measure's numbers to those that tables show."""
    return 100.0 if is_percent(measure) else 1 / measure.unit


def better_direction(measure: Any) -> str:
    """Returns which of two numbers is better, one of `BETTER`.

    If the definition does not say it: the larger accuracy, ROUGE or analysis, the smaller loss, and
    neither of counts and other scores.
    """
    if measure.better is not None:
        return measure.better
    if rounds_target(measure) is not None:
        return "smaller"
    if is_analysis(measure):
        return "neither" if is_count(measure) else "larger"
    return "smaller" if client_statistics.reference_row(measure) is not None else score_labels.better_direction(measure.scores[0])


def number_format(measure: Any) -> str:
    """Returns the format of a measure's numbers."""
    return f",.{measure.digits}f" if measure.digits is not None else ".2f" if is_percent(measure) else ".4g"


def describe_unit(measure: Any) -> str:
    """Returns the unit of a measure's numbers as the end of a sentence; empty without one."""
    if is_percent(measure):
        return ", in %"
    counted = "" if rounds_target(measure) is None else " simulated seconds" if counts_seconds(measure) else " rounds"
    if measure.unit == 1:
        return f", in{counted}" if counted else ""
    power = math.log2(measure.unit)
    return f", in units of {f'2^{power:g}' if power.is_integer() else f'{measure.unit:g}'}{counted}"


def known_score_names(resolved: ResolvedConfig) -> Collection[str] | None:
    """Returns what the runs of a config can score; None for texts, where the task decides."""
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
        scopes = _needed_scopes(score)
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
        registry.check_choice(f"statistic in {score!r} of {what}", parts[4], evaluation_step.CLIENT_STATISTICS)


def _parse_scope(score: str, with_statistic: bool) -> str | None:
    """Returns the scope of a score, "gap" of a difference; None of another form."""
    parts = score.split("/")
    if len(parts) == 3:
        return "global" if parts[1] == "global" else None
    if with_statistic and len(parts) == 4:
        return "gap" if score_labels.is_gap(score) else None
    return parts[2] if len(parts) == (5 if with_statistic else 4) and parts[2] in score_labels.ROWS else None


def _needed_scopes(score: str) -> set[str]:
    """Returns the scopes of which a score needs one; empty if it needs none."""
    parts = score.split("/")
    if is_of_unseen(score):
        return {"own"} if score_labels.is_gap(score) else set()
    if len(parts) == 3:
        return {"global"}
    return {"own", "all"} if parts[0] == "validation" else {parts[2]}


def is_of_unseen(score: str) -> bool:
    """Returns whether a score is of unseen clients or the gap to them, which some methods lack."""
    parts = score.split("/")
    return (len(parts) in (4, 5) and parts[2] == "unseen") or (len(parts) == 4 and score_labels.is_gap(score))
