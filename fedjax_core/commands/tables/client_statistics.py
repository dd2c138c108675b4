"""Statistics of a score over clients: the options of a measure's `clients`, and the clients' values behind them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_core import registry
from fedjax_core.engine.evaluation_step import ClientScores
from fedjax_core.reporting import bootstrap, client_scores, score_labels

FILES = {"last": client_scores.LAST, "selected": client_scores.SELECTED}  # by a measure's statistic


class ClientValues(NamedTuple):
    """The values of a score for single clients.

    Attributes:
      examples: [E] their own test examples.
      values: [E] NaN of a client without rows for it.
    """

    ids: np.ndarray
    examples: np.ndarray
    values: np.ndarray


def _worst_tenth(larger: bool) -> Callable[[np.ndarray], np.ndarray]:
    return client_scores.mean_of_worst_tenth if larger else lambda values: -client_scores.mean_of_worst_tenth(-values)


def _decile(larger: bool, number: int) -> Callable[[np.ndarray], np.ndarray]:
    del larger
    if not 1 <= number <= 9:
        raise ValueError(f"decile: number={number} must be in [1, 9]")
    return client_scores.make_decile(number)


def _worse_than(larger: bool, row: str) -> Callable[[np.ndarray], np.ndarray]:
    del larger, row
    return lambda values: values.mean(-1)


CLIENT_MEASURES = {"worst_tenth": _worst_tenth, "decile": _decile, "worse_than": _worse_than}


def check_clients_option(measure: Any) -> None:
    """Validates `clients` of a measure beside its other fields."""
    what = f"clients of measure {measure.label!r}"
    name, options = registry.parse_spec(measure.clients, what)
    function = CLIENT_MEASURES[registry.check_choice(what, name, CLIENT_MEASURES)]
    registry.check_call(f"{what} {name!r}", function, ("larger",), options)
    function(True, **options)
    registry.check_choice(f"statistic of measure {measure.label!r} with clients", measure.statistic, FILES)
    for score in measure.scores:
        if score.count("/") != 3:
            raise ValueError(
                f"{what}: {score!r} must be a score of clients without a statistic, such as test/personal/own/accuracy"
            )
        if score.split("/")[2] == "post_local":
            raise ValueError(f"{what}: {score!r} is a mean over a round's cohort; single clients have own, all and unseen")
        if score_labels.better_direction(score) == "neither" and name != "decile":
            raise ValueError(f"{what}: of {score!r} neither the larger nor the smaller is worse; take an accuracy or a loss")


def reference_row(measure: Any) -> str | None:
    """Returns the row whose clients a measure compares with; None if it compares with none."""
    return registry.parse_spec(measure.clients)[1].get("row") if measure.clients is not None else None


def make_statistic(measure: Any, score: str) -> bootstrap.Statistic | None:
    """Returns (clients' values, their weights) -> number; None if the measure is not made of clients' values."""
    larger_is_better = score_labels.better_direction(score) != "smaller"
    if measure.clients is not None:
        name, options = registry.parse_spec(measure.clients)
        function = CLIENT_MEASURES[name](larger_is_better, **options)
        return lambda values, weights: function(values)
    if measure.statistic not in FILES or score.count("/") != 4:
        return None
    return {"mean": bootstrap.unweighted_mean, "weighted": bootstrap.weighted_mean}.get(score.rpartition("/")[2])


def read_values_of_measure(run: Path, measure: Any, round_num: int) -> tuple[str, ClientValues] | None:
    """Reads the clients' values of a measure of clients, with the first of its scores that is there.

    Args:
      round_num: of the measure's number; 0 if none was selected.

    Returns:
      None if no score is there.

    Raises:
      ValueError: the run has no clients' values of that round.
    """
    file = run / FILES[measure.statistic]
    if not file.exists():
        if not round_num:
            raise ValueError(f"measure {measure.label!r} is of the selected round; set evaluation.select")
        again = "the run is older than such files; remove its directory, and the same command runs it again"
        raise ValueError(f"measure {measure.label!r} needs {file}: {again}")
    file_round, by_client = client_scores.read_client_scores(file)
    if file_round != round_num:
        raise ValueError(
            f"measure {measure.label!r}: {file} is of round {file_round}, not {round_num}; remove its directory to run it again"
        )
    first = next((name for name in measure.scores if name in by_client.scores), None)
    return None if first is None else (first, _select_scored(by_client, first))


def read_values_behind(run: Path, measure: Any, score: str, round_num: int) -> ClientValues | None:
    """Reads the clients' values that a run's number is a statistic of; None if there are none of its round.

    Args:
      score: which of the measure's scores the number is of.
      round_num: of the number; 0 if none was selected.
    """
    if make_statistic(measure, score) is None or not (file := run / FILES[measure.statistic]).exists():
        return None
    file_round, by_client = client_scores.read_client_scores(file)
    name = score.rpartition("/")[0]
    return _select_scored(by_client, name) if file_round == round_num and name in by_client.scores else None


def _select_scored(by_client: ClientScores, name: str) -> ClientValues:
    """Returns the clients that have a score; the file also has those of other scores, such as unseen ones."""
    is_scored = ~np.isnan(by_client.scores[name])
    return ClientValues(by_client.ids[is_scored], by_client.rows[is_scored], by_client.scores[name][is_scored])


def compute_number(measure: Any, score: str, clients: ClientValues) -> float:
    """Computes a measure of clients of one run; NaN if it needs another run, or if no client has the score."""
    statistic, is_scored = make_statistic(measure, score), ~np.isnan(clients.values)
    if statistic is None or reference_row(measure) is not None or not is_scored.any():
        return float("nan")
    return float(statistic(clients.values[is_scored], clients.examples[is_scored]))


def describe_clients(measure: Any) -> str:
    """Returns a sentence on what a measure of clients is."""
    name, options = registry.parse_spec(measure.clients)
    if name == "worst_tenth":
        return "The mean of the worst tenth of the clients."
    if name == "decile":
        return f"The value that {options['number']} of 10 clients are below."
    row = options["row"]
    return f"The share of clients that are worse off than in row {row}, same seed; empty: {row}, and rows with other clients."


def find_worse_off(clients: ClientValues, score: str, other: ClientValues) -> ClientValues | None:
    """Returns 1 for each client that is worse off than in another row, else 0; NaN without a score.

    Returns:
      None if the clients differ, or none has both scores.
    """
    if not have_same_clients(clients, other):
        return None
    is_scored = ~(np.isnan(clients.values) | np.isnan(other.values))
    if not is_scored.any():
        return None
    is_worse = clients.values < other.values if score_labels.better_direction(score) == "larger" else clients.values > other.values
    return clients._replace(values=np.where(is_scored, is_worse, np.nan))


def have_same_clients(clients: ClientValues, other: ClientValues) -> bool:
    """Returns whether two runs have scored the same clients with as many test examples."""
    return np.array_equal(clients.ids, other.ids) and np.array_equal(clients.examples, other.examples)
