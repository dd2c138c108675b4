"""How a score spreads over clients: what a measure's `clients` may say, and the values of single clients that it is made of."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_core import registry
from fedjax_core.engine.evaluation_step import ByClient
from fedjax_core.reporting import bootstrap, client_scores, score_labels

FILES = {"last": client_scores.LAST, "selected": client_scores.SELECTED}  # by a measure's statistic


class Values(NamedTuple):
    """A score of single clients.

    Attributes:
      ids: [E] ascending.
      rows: [E] their own test rows.
      values: [E] NaN of a client without rows for it.
    """

    ids: np.ndarray
    rows: np.ndarray
    values: np.ndarray


def _worst_tenth(larger: bool) -> Callable[[np.ndarray], np.ndarray]:
    return client_scores.worst_tenth if larger else lambda values: -client_scores.worst_tenth(-values)


def _decile(larger: bool, number: int) -> Callable[[np.ndarray], np.ndarray]:
    del larger
    if not 1 <= number <= 9:
        raise ValueError(f"decile: number={number} must lie in [1, 9]")
    return client_scores.decile(number)


def _worse_than(larger: bool, row: str) -> Callable[[np.ndarray], np.ndarray]:
    """Of zeros and ones."""
    del larger, row
    return lambda values: values.mean(-1)


OVER = {"worst_tenth": _worst_tenth, "decile": _decile, "worse_than": _worse_than}


def check(measure: Any) -> None:
    """Whether `clients` of a measure, and the rest of it, hold together.

    Raises:
      ValueError, TypeError: they do not; the message has the measure's label.
    """
    what = f"clients of measure {measure.label!r}"
    name, options = registry.parse(measure.clients, what)
    function = OVER[registry.choose(what, name, OVER)]
    registry.check(f"{what} {name!r}", function, ("larger",), options)
    function(True, **options)
    registry.choose(f"statistic of measure {measure.label!r} with clients", measure.statistic, FILES)
    for score in measure.scores:
        if score.count("/") != 3:
            raise ValueError(
                f"{what}: {score!r} must be a score of clients without a statistic, such as test/personal/own/accuracy"
            )
        if score_labels.better(score) == "neither" and name != "decile":
            raise ValueError(f"{what}: of {score!r} neither the larger nor the smaller is worse; take an accuracy or a loss")


def row_of(measure: Any) -> str | None:
    """The row whose clients a measure's are compared with; None if with none."""
    return registry.parse(measure.clients)[1].get("row") if measure.clients is not None else None


def statistic(measure: Any, score: str) -> bootstrap.Statistic | None:
    """What makes a number of the values of single clients; None if the measure is not made of such."""
    larger = score_labels.better(score) != "smaller"
    if measure.clients is not None:
        name, options = registry.parse(measure.clients)
        function = OVER[name](larger, **options)
        return lambda values, weights: function(values)
    if measure.statistic not in FILES or score.count("/") != 4:
        return None
    return {"mean": bootstrap.mean, "weighted": bootstrap.weighted}.get(score.rpartition("/")[2])


def read(run: Path, measure: Any, score: str | None, done: int) -> tuple[str, Values] | None:
    """A finished run's values of single clients that a measure is made of, under the name of their score.

    Args:
      run: its directory.
      measure: of the table.
      score: which of its scores the number is of; None: the measure is of clients, the first of its scores that is there.
      done: the round that the number is of; 0 if none was selected.

    Returns:
      None if there are none.

    Raises:
      ValueError: the measure is of clients, and there is no file of that round.
    """
    if score is not None and statistic(measure, score) is None:
        return None
    file = run / FILES[measure.statistic]
    if not file.exists():
        if score is not None:
            return None
        if not done:
            raise ValueError(f"measure {measure.label!r} is of the selected round; set evaluation.select")
        again = "the run is older than such files; remove its directory, and the same command runs it again"
        raise ValueError(f"measure {measure.label!r} needs {file}: {again}")
    of, found = client_scores.read(file)
    if score is None:
        if of != done:
            raise ValueError(
                f"measure {measure.label!r}: {file} is of round {of}, not {done}; remove its directory to run it again"
            )
        wanted = next((name for name in measure.scores if name in found.scores), None)
        return None if wanted is None else (wanted, _scored(found, wanted))
    name = score.rpartition("/")[0]
    return (score, _scored(found, name)) if of == done and name in found.scores else None


def _scored(found: ByClient, name: str) -> Values:
    """Of the clients that have the score alone: the file also has those of other scores, such as unseen ones."""
    has = np.isfinite(found.scores[name])
    return Values(found.ids[has], found.rows[has], found.scores[name][has])


def number(measure: Any, score: str, found: Values) -> float:
    """What a measure of clients says of one run; NaN if it takes another one, or if no client has the score."""
    function, there = statistic(measure, score), np.isfinite(found.values)
    if function is None or row_of(measure) is not None or not there.any():
        return float("nan")
    return float(function(found.values[there], found.rows[there]))


def said(measure: Any) -> str:
    """What a measure of clients is, as a sentence."""
    name, options = registry.parse(measure.clients)
    if name == "worst_tenth":
        return "The mean of the worst tenth of the clients."
    if name == "decile":
        return f"What {options['number']} of 10 clients lie below."
    row = options["row"]
    return f"The share of clients that are worse off than in row {row}, same seed; empty: {row}, and rows with other clients."


def worse(found: Values, score: str, other: Values) -> Values | None:
    """Whether (1) or not (0) each client is worse off than in another row, NaN of a client without a score; None if the clients are
    others, or none has both scores.

    Args:
      found, other: of one column and seed.
      score: says whether more is better.
    """
    there = np.isfinite(found.values) & np.isfinite(other.values) if alike(found, other) else np.zeros(1, bool)
    if not there.any():
        return None
    less = found.values < other.values if score_labels.better(score) == "larger" else found.values > other.values
    return found._replace(values=np.where(there, less, np.nan))


def alike(one: Values, other: Values) -> bool:
    """Whether two runs have scored the same clients with as many test rows."""
    return np.array_equal(one.ids, other.ids) and np.array_equal(one.rows, other.rows)
