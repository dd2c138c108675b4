"""What a measure is, and how its numbers are read: in per cent or as counts, in which unit, and which of two is the better one."""

import math
from typing import Any

from fedjax_core import registry
from fedjax_core.commands.analyses import scalar_metrics as analyses
from fedjax_core.commands.tables import client_statistics
from fedjax_core.reporting import reporter, score_labels

# a measure's: as `report.summarise` calls it
STATISTICS = {"last": "last", "first": "first", "best": "best", "mean_of_last": "mean_last_k", "selected": "selected"}
BETTER = ("larger", "smaller", "neither")
ROUNDS_TO = "rounds_to"  # a statistic with a target, which counts rounds
ANALYSIS = "analysis:"


def check(measure: Any) -> None:
    """Whether a measure holds together.

    Raises:
      ValueError: it does not; the message has its label.
    """
    what = f"measure {measure.label!r}"
    if measure.statistic.startswith(ROUNDS_TO):
        _check_target(measure, f"statistic of {what}")
    else:
        registry.choose(f"statistic of {what}", measure.statistic, (*STATISTICS, f"{ROUNDS_TO}(target=0.9)"))
    scores = measure.scores
    if isinstance(scores, str) or not scores:
        raise ValueError(f"{what}: scores must be a tuple of one or more names, found {scores!r}")
    if measure.clients is not None:
        client_statistics.check(measure)
    if any(score.startswith(ANALYSIS) for score in scores):
        if len(scores) > 1:
            raise ValueError(f"{what}: an analysis stands alone, found {scores!r}")
        analyses.number(scores[0].removeprefix(ANALYSIS))
    others = [score for score in scores if not score_labels.is_headline(score) and not score.startswith(ANALYSIS)]
    if measure.statistic == "best" and measure.clients is None and others:
        raise ValueError(
            f"{what}: the best round is known of accuracies and R2 alone, found {others[0]!r}; take 'last' or 'selected'"
        )
    if measure.unit != 1 and is_percent(measure):
        raise ValueError(f"{what}: unit={measure.unit} of what is shown in per cent; leave one of them out")
    if measure.better is not None:
        registry.choose(f"better of {what}", measure.better, BETTER)


def _check_target(measure: Any, what: str) -> None:
    name, options = registry.parse(measure.statistic, what)
    registry.choose(what, name, (*STATISTICS, ROUNDS_TO))
    registry.check(f"{what}: {name}", _rounds_to, (), options)
    if any(score.startswith(ANALYSIS) or score_labels.better(score) == "neither" for score in measure.scores):
        raise ValueError(f"{what}: {name} is of accuracies or losses, found {measure.scores!r}")
    if any(map(reporter.is_accuracy, measure.scores)) and not 0 <= _rounds_to(**options) <= 1:
        raise ValueError(f"{what}: target={options['target']} must lie in [0, 1], as accuracies do; 97 % is 0.97")
    if measure.percent:
        raise ValueError(f"{what}: {name} counts rounds, which are not shown in per cent")


def _rounds_to(target: float) -> float:
    return float(target)


def target(measure: Any) -> float | None:
    """What a score is to reach, of a measure that counts the rounds until it does; None of others."""
    if not measure.statistic.startswith(ROUNDS_TO):
        return None
    return _rounds_to(**registry.parse(measure.statistic)[1])


def is_analysis(measure: Any) -> bool:
    """Whether it is a number of the last state, not a score of the run."""
    return measure.scores[0].startswith(ANALYSIS)


def is_count(measure: Any) -> bool:
    """Whether it is known from shapes, without training."""
    return is_analysis(measure) and analyses.is_size(measure.scores[0].removeprefix(ANALYSIS))


def is_percent(measure: Any) -> bool:
    """Whether its numbers are shown times 100."""
    if target(measure) is not None:
        return False
    if measure.percent is not None:
        return measure.percent
    if client_statistics.row_of(measure) is not None:
        return True
    accuracy = reporter.is_accuracy(measure.scores[0]) or score_labels.is_gap(measure.scores[0])
    return accuracy or (is_analysis(measure) and not is_count(measure))


def better(measure: Any) -> str:
    """Which of two numbers is the better one, of `BETTER`: as the definition says, else the larger accuracy, ROUGE or analysis and
    the smaller loss; of a count, or a score that is neither, none is."""
    if measure.better is not None:
        return measure.better
    if target(measure) is not None:
        return "smaller"
    if is_analysis(measure):
        return "neither" if is_count(measure) else "larger"
    return "smaller" if client_statistics.row_of(measure) is not None else score_labels.better(measure.scores[0])


def form(measure: Any) -> str:
    """How its numbers are written, as a format."""
    return f",.{measure.digits}f" if measure.digits is not None else ".2f" if is_percent(measure) else ".4g"


def unit(measure: Any) -> str:
    """What its numbers are in, as the end of a sentence; empty if that goes without saying."""
    if is_percent(measure):
        return ", in %"
    if target(measure) is not None:
        return ", in rounds"
    power = math.log2(measure.unit)
    return "" if measure.unit == 1 else f", in units of 2^{power:g}" if power.is_integer() else f", in units of {measure.unit:g}"
