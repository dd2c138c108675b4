"""Compares the rows of a column: ranks, and differences to the best row and to a named one, with bootstrap intervals.

Seeds are resampled, and clients where runs have written their values (`clients.csv`). See `reporting/bootstrap.py`,
also for the weaknesses of these intervals.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_core.commands.tables import client_statistics, measures
from fedjax_core.commands.tables.results import Contents, Summary
from fedjax_core.reporting import bootstrap

MIN_SEEDS = 3  # seeds, where nothing else can be drawn
ClientsBySeed = list[client_statistics.ClientValues]


class Comparison(NamedTuple):
    """A cell among the rows of its column, in the measure's unit.

    Attributes:
      rank: its place by the mean over seeds, 1 is the best, equal ones share the mean of theirs; None where none is better.
      difference: to the row `against`; None of that row itself, and where it cannot be compared.
      is_like_best: whether it is not the best, but the interval of its difference to the best holds 0.
      resampled: what was drawn: "seeds", "clients", "seeds and clients".
    """

    rank: float | None
    rank_interval: tuple[float, float] | None
    difference: float | None
    difference_interval: tuple[float, float] | None
    is_like_best: bool
    resampled: str


class _ResampledRows(NamedTuple):
    """Rows of a column that can be compared.

    Attributes:
      labels: [R].
      by_seed: [R, S].
      draws: [R, resamples].
      resampled: [R] what was drawn.
    """

    labels: list[str]
    by_seed: np.ndarray
    draws: np.ndarray
    resampled: list[str]


def compare_cells(contents: Contents, measure: Any) -> dict[tuple[str, str], Comparison]:
    """Returns the comparisons of a measure's cells by (row, column), for those that can be compared.

    A row takes part if all seeds are finished and finite, and there are `MIN_SEEDS` of them or values of its clients.
    A column is compared again only where one of its results has changed.
    """
    comparisons: dict[tuple[str, str], Comparison] = {}
    cache = contents.comparisons
    if measures.better_direction(measure) == "neither" and contents.table.against is None:
        return comparisons
    for column in contents.table.columns:
        key = measure.label, column.label
        results = [contents.results.get(cell.name) for cell in contents.every if cell.column == column.label]
        cached = cache.get(key, ([], {}))[0]
        if key not in cache or len(results) != len(cached) or any(new is not old for new, old in zip(results, cached, strict=True)):
            cache[key] = results, _compare_column(contents, column.label, measure)
        comparisons |= {(row, column.label): comparison for row, comparison in cache[key][1].items()}
    return comparisons


def _compare_column(contents: Contents, column: str, measure: Any) -> dict[str, Comparison]:
    summaries = {row.label: contents.summary(row.label, column, measure) for row in contents.table.rows}
    resampled = _resample_column(contents, column, measure, summaries)
    return _compare_resampled(contents, measure, summaries, resampled) if len(resampled.labels) > 1 else {}


def _compare_resampled(
    contents: Contents, measure: Any, summaries: Mapping[str, Summary], rows: _ResampledRows
) -> dict[str, Comparison]:
    means, better = rows.by_seed.mean(-1), measures.better_direction(measure)
    against = rows.labels.index(contents.table.against) if contents.table.against in rows.labels else None
    ranks = rank_bounds = None
    best = None
    if better != "neither":
        ranks = bootstrap.rank_rows(means, better == "larger")
        rank_bounds = np.stack(bootstrap.percentile_interval(bootstrap.rank_rows(rows.draws, better == "larger")), -1)
        finite = {row: s for row, s in summaries.items() if s.is_finite}
        all_means = {row: summary.mean for row, summary in finite.items()}
        first = (max if better == "larger" else min)(all_means, key=lambda row: all_means[row])
        best = rows.labels.index(first) if first in rows.labels else None
    comparisons = {}
    for r, label in enumerate(rows.labels):
        difference = difference_interval = None
        if against is not None and r != against:
            difference = float(means[r] - means[against])
            difference_interval = _interval(rows.draws[r] - rows.draws[against])
        to_best = _interval(rows.draws[r] - rows.draws[best]) if best is not None else (1.0, 1.0)
        comparisons[label] = Comparison(
            None if ranks is None else float(ranks[r]),
            None if rank_bounds is None else (math.floor(rank_bounds[r, 0]), math.ceil(rank_bounds[r, 1])),
            difference,
            difference_interval,
            r != best and to_best[0] <= 0 <= to_best[1],
            rows.resampled[r],
        )
    return comparisons


def _interval(draws: np.ndarray) -> tuple[float, float]:
    low, high = bootstrap.percentile_interval(draws)
    return float(low), float(high)


def _resample_column(contents: Contents, column: str, measure: Any, summaries: Mapping[str, Summary]) -> _ResampledRows:
    """Resamples the rows of a column that can be compared, all with the same draws."""
    seeds = contents.seeds
    by_seed = {
        row: np.array([summary.by_seed[seed] for seed in seeds])
        for row, summary in summaries.items()
        if set(summary.by_seed) == set(seeds) and summary.is_finite
    }
    clients = {row: _client_values(contents, row, column, measure, values) for row, values in by_seed.items()}
    clients = _select_paired({row: values for row, values in clients.items() if values}, summaries)
    labels = [row for row in by_seed if row in clients or len(seeds) >= MIN_SEEDS]
    if len(labels) < 2:
        return _ResampledRows([], np.zeros((0, len(seeds))), np.zeros((0, 0)), [])
    table = np.stack([by_seed[row] for row in labels])
    if not clients:
        return _ResampledRows(labels, table, bootstrap.resample_means(table), ["seeds"] * len(labels))
    first = next(iter(clients))
    same_clients = not contents.table.new_partitions and all(
        map(client_statistics.have_same_clients, clients[first], clients[first][1:] + clients[first][:1])
    )
    is_scored = [np.isfinite([values[s].values for values in clients.values()]).all(0) for s in range(len(seeds))]
    if same_clients:
        is_scored = [np.stack(is_scored).all(0)] * len(seeds)
    statistic = client_statistics.make_statistic(measure, summaries[first].scores[0])
    assert statistic is not None  # of rows with values of clients
    draws = bootstrap.resample_means(
        table,
        [
            np.stack([clients.get(row, clients[first])[s].values[scored] for row in labels]) * measures.display_scale(measure)
            for s, scored in enumerate(is_scored)
        ],
        [clients[first][s].examples[scored].astype(float) for s, scored in enumerate(is_scored)],
        known=np.array([row in clients for row in labels]),
        statistic=statistic,
        same_clients=same_clients,
    )
    both = "clients" if len(seeds) == 1 else "seeds and clients"
    return _ResampledRows(labels, table, draws, [both if row in clients else "seeds" for row in labels])


def _select_paired(clients: Mapping[str, ClientsBySeed], summaries: Mapping[str, Summary]) -> dict[str, ClientsBySeed]:
    """Returns the rows that can be paired by client: those with the statistic and the clients that most rows have."""

    def are_paired(row: str, other: str) -> bool:
        one, another = (summaries[label].scores[0].rpartition("/")[2] for label in (row, other))
        return one == another and all(map(client_statistics.have_same_clients, clients[row], clients[other]))

    paired = ([other for other in clients if are_paired(row, other)] for row in clients)
    return {row: clients[row] for row in max(paired, key=len, default=[])}


def _client_values(contents: Contents, row: str, column: str, measure: Any, by_seed: np.ndarray) -> ClientsBySeed:
    """Returns the clients' values for each seed; empty if they do not make the cell's numbers, or a seed has none."""
    by_seed_values = contents.client_values(row, column, measure)
    scores = contents.summary(row, column, measure).scores
    if (
        set(by_seed_values) != set(contents.seeds)
        or len(scores) != 1
        or (statistic := client_statistics.make_statistic(measure, scores[0])) is None
    ):
        return []
    scale = measures.display_scale(measure)
    clients = [by_seed_values[seed] for seed in contents.seeds]
    for values, number in zip(clients, by_seed, strict=True):
        if np.isinf(values.values).any():
            return []
        is_scored = np.isfinite(values.values)
        if is_scored.sum() < 2 or not math.isclose(
            statistic(values.values[is_scored], values.examples[is_scored]) * scale, number, rel_tol=1e-4, abs_tol=1e-9
        ):
            return []
    return clients
