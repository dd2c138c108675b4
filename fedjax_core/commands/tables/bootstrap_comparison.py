"""What can be told apart in a column: ranks, and differences to the best row and to a named one, with bootstrap intervals.

The draws are those of `reporting/bootstrap.py`, with its weaknesses: over seeds, and over clients where runs have written their
values (`clients.csv`).
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_core.commands.tables import client_statistics, measures
from fedjax_core.commands.tables.results import Contents, Result, Summary
from fedjax_core.reporting import bootstrap

FEWEST = 3  # seeds, where nothing else can be drawn


class Compared(NamedTuple):
    """A cell among the rows of its column, in the measure's unit.

    Attributes:
      rank: its place by the mean over seeds, 1 is the best, equal ones share the mean of theirs; None where none is better.
      ranks: the interval of that place; None without `rank`.
      difference: to the row `against`; None of that row itself, and where it cannot be compared.
      differences: the interval of that difference.
      like_best: whether it is not the best, but the interval of its difference to the best holds 0.
      over: what was drawn: "seeds", "clients", "seeds and clients".
    """

    rank: float | None
    ranks: tuple[float, float] | None
    difference: float | None
    differences: tuple[float, float] | None
    like_best: bool
    over: str


class _Rows(NamedTuple):
    """Rows of a column that can be compared.

    Attributes:
      labels: [R].
      by_seed: [R, S].
      draws: [R, resamples].
      over: [R] what was drawn.
    """

    labels: list[str]
    by_seed: np.ndarray
    draws: np.ndarray
    over: list[str]


Known = dict[tuple[str, str], tuple[list[Result | None], dict[str, Compared]]]
"""What was compared, for `compare`: by (measure, column) the results of its cells, and what was found of its rows."""


def compare(contents: Contents, measure: Any, known: Known | None = None) -> dict[tuple[str, str], Compared]:
    """The cells of a measure by (row, column), as far as they can be compared.

    A row takes part if all seeds are finished and finite, and there are `FEWEST` of them or values of its clients.

    Args:
      contents: of the table.
      measure: of it.
      known: of earlier calls for this table, taken where no result of a column is another one; this call's are added.
    """
    found, known = {}, {} if known is None else known
    if measures.better(measure) == "neither" and contents.table.against is None:
        return found
    for column in contents.table.columns:
        place = measure.label, column.label
        now = [contents.results.get(cell.name) for cell in contents.every if cell.column == column.label]
        before = known.get(place, ([], {}))[0]
        if place not in known or len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
            known[place] = now, _compared(contents, column.label, measure)
        found |= {(row, column.label): one for row, one in known[place][1].items()}
    return found


def _compared(contents: Contents, column: str, measure: Any) -> dict[str, Compared]:
    """The rows of one column."""
    summaries = {row.label: contents.summary(row.label, column, measure) for row in contents.table.rows}
    drawn = _drawn(contents, column, measure, summaries)
    return _column(contents, measure, summaries, drawn) if len(drawn.labels) > 1 else {}


def _column(contents: Contents, measure: Any, summaries: Mapping[str, Summary], rows: _Rows) -> dict[str, Compared]:
    means, way = rows.by_seed.mean(-1), measures.better(measure)
    against = rows.labels.index(contents.table.against) if contents.table.against in rows.labels else None
    ranks = bounds = None
    best = None
    if way != "neither":
        ranks = bootstrap.ranks(means, way == "larger")
        bounds = np.stack(bootstrap.interval(bootstrap.ranks(rows.draws, way == "larger")), -1)
        known = {row: s for row, s in summaries.items() if s.n and all(map(math.isfinite, s.by_seed.values()))}
        every = {row: summary.mean for row, summary in known.items()}
        first = (max if way == "larger" else min)(every, key=lambda row: every[row])
        best = rows.labels.index(first) if first in rows.labels else None
    found = {}
    for r, label in enumerate(rows.labels):
        difference = differences = None
        if against is not None and r != against:
            difference = float(means[r] - means[against])
            differences = _interval(rows.draws[r] - rows.draws[against])
        apart = _interval(rows.draws[r] - rows.draws[best]) if best is not None else (1.0, 1.0)
        found[label] = Compared(
            None if ranks is None else float(ranks[r]),
            None if bounds is None else (math.floor(bounds[r, 0]), math.ceil(bounds[r, 1])),
            difference,
            differences,
            r != best and apart[0] <= 0 <= apart[1],
            rows.over[r],
        )
    return found


def _interval(draws: np.ndarray) -> tuple[float, float]:
    low, high = bootstrap.interval(draws)
    return float(low), float(high)


def _drawn(contents: Contents, column: str, measure: Any, summaries: Mapping[str, Summary]) -> _Rows:
    """The rows of a column, drawn again and again, all with the same draws."""
    seeds = contents.seeds
    labels = [row for row, s in summaries.items() if set(s.by_seed) == set(seeds) and all(map(math.isfinite, s.by_seed.values()))]
    by_seed = {row: np.array([summaries[row].by_seed[seed] for seed in seeds]) for row in labels}
    of = {row: found for row in labels if (found := _clients(contents, row, column, measure, by_seed[row]))}
    kind = {row: summaries[row].scores[0].rpartition("/")[2] for row in of}
    pairs = {row: [o for o in of if kind[o] == kind[row] and all(map(client_statistics.alike, of[o], of[row]))] for row in of}
    most = max(pairs.values(), key=len, default=[])  # rows are paired by client: those with the clients of most rows
    of = {row: of[row] for row in most}
    labels = [row for row in labels if row in of or len(seeds) >= FEWEST]
    if len(labels) < 2:
        return _Rows([], np.zeros((0, len(seeds))), np.zeros((0, 0)), [])
    table = np.stack([by_seed[row] for row in labels])
    if not of:
        return _Rows(labels, table, bootstrap.resampled(table), ["seeds"] * len(labels))
    one, known = next(iter(of)), np.array([row in of for row in labels])
    statistic = client_statistics.statistic(measure, summaries[one].scores[0])
    assert statistic is not None
    scale = 100.0 if measures.is_percent(measure) else 1 / measure.unit
    there = [np.isfinite(np.stack([found[s].values for found in of.values()])).all(0) for s in range(len(seeds))]
    same = not contents.table.new_partitions and all(map(client_statistics.alike, of[one], of[one][1:] + of[one][:1]))
    if same:
        there = [np.stack(there).all(0)] * len(seeds)
    values = [np.stack([of[row if row in of else one][s].values[there[s]] for row in labels]) * scale for s in range(len(seeds))]
    weights = [of[one][s].rows[there[s]].astype(float) for s in range(len(seeds))]
    draws = bootstrap.resampled(table, values, weights, known=known, statistic=statistic, same_clients=same)
    both = "clients" if len(seeds) == 1 else "seeds and clients"
    return _Rows(labels, table, draws, [both if row in of else "seeds" for row in labels])


def _clients(contents: Contents, row: str, column: str, measure: Any, by_seed: np.ndarray) -> list[client_statistics.Values]:
    """The values of single clients for each seed; empty where they do not make the cell's numbers, or some are missing."""
    found = contents.of_clients(row, column, measure)
    score = contents.summary(row, column, measure).scores
    if (
        set(found) != set(contents.seeds)
        or len(score) != 1
        or (statistic := client_statistics.statistic(measure, score[0])) is None
    ):
        return []
    scale = 100.0 if measures.is_percent(measure) else 1 / measure.unit
    each = [found[seed] for seed in contents.seeds]
    for values, number in zip(each, by_seed, strict=True):
        there = np.isfinite(values.values)
        if there.sum() < 2 or not math.isclose(
            statistic(values.values[there], values.rows[there]) * scale, number, rel_tol=1e-4, abs_tol=1e-9
        ):
            return []
    return each
