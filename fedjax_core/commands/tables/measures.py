"""Validates measures, and says how their numbers are read: per cent or counts, unit, the better of two."""

import math
from typing import Any

from fedjax_core import registry
from fedjax_core.commands.analyses import scalar_metrics as analyses
from fedjax_core.commands.tables import client_statistics
from fedjax_core.reporting import reporter, score_labels

# a measure's statistic: its name in `reporter.summarise`
STATISTICS = {"last": "last", "first": "first", "best": "best", "mean_of_last": "mean_last_k", "selected": "selected"}
BETTER = ("larger", "smaller", "neither")
ROUNDS_TO = "rounds_to"  # a statistic with a target, which counts rounds
ANALYSIS = "analysis:"


def check_measure(measure: Any) -> None:
    """Validates a measure."""
    what = f"measure {measure.label!r}"
    if measure.statistic.startswith(ROUNDS_TO):
        _check_target(measure, f"statistic of {what}")
    else:
        registry.check_choice(f"statistic of {what}", measure.statistic, (*STATISTICS, f"{ROUNDS_TO}(target=0.9)"))
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
    registry.check_choice(what, name, (*STATISTICS, ROUNDS_TO))
    registry.check_call(f"{what}: {name}", _rounds_to, (), options)
    if any(score.startswith(ANALYSIS) or score_labels.better_direction(score) == "neither" for score in measure.scores):
        raise ValueError(f"{what}: {name} is of accuracies or losses, found {measure.scores!r}")
    if any(map(reporter.is_accuracy, measure.scores)) and not 0 <= _rounds_to(**options) <= 1:
        raise ValueError(f"{what}: target={options['target']} must be in [0, 1], as accuracies do; 97 % is 0.97")
    if measure.percent:
        raise ValueError(f"{what}: {name} counts rounds, which are not shown in per cent")


def _rounds_to(target: float) -> float:
    return float(target)


def rounds_target(measure: Any) -> float | None:
    """Returns the score that a measure counts the rounds to; None if it counts none."""
    if not measure.statistic.startswith(ROUNDS_TO):
        return None
    return _rounds_to(**registry.parse_spec(measure.statistic)[1])


def is_analysis(measure: Any) -> bool:
    """Returns whether a measure is an analysis of the last state, not a score of the run."""
    return measure.scores[0].startswith(ANALYSIS)


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
    accuracy = reporter.is_accuracy(measure.scores[0]) or score_labels.is_gap(measure.scores[0])
    return accuracy or (is_analysis(measure) and not is_count(measure))


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
    if rounds_target(measure) is not None:
        return ", in rounds"
    power = math.log2(measure.unit)
    return "" if measure.unit == 1 else f", in units of 2^{power:g}" if power.is_integer() else f", in units of {measure.unit:g}"
