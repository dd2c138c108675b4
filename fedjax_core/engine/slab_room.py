"""How many rows a round's slab has room for: one number for all rounds of a run, so that one program serves them all.

Cohorts are random, and so is how many rows they have. The room is enough but with a probability below `RARE` a round, by
Chernoff's bound on the sum of the sizes of those who are drawn: P(S >= t) <= E[exp(a S)] / exp(a t) for every a > 0. For clients
that come by draws of their own, E[exp(a S)] is a product over all clients. For a random set of C clients it is no more than that
product for draws with probability C / N (who is in the set is negatively associated: Joag-Dev and Proschan, Negative Association of
Random Variables, 1983), nor than for C draws with replacement (Hoeffding, Probability Inequalities for Sums of Bounded Random
Variables, 1963, theorem 4). There is never more room than the largest clients fill. A cohort that has more rows all the same gets a
larger slab, and its round is compiled anew.

Where clients are spread over D devices, each has the rows of its own. `client_loop.arrange` deals chunks by size: a device's first
chunk has at most the rows of the cohort's largest clients, and its others together at most a D-th of all rows.
"""

from collections.abc import Sequence

import numpy as np

from fedjax_core.engine.data_feed import cohort_buffer
from fedjax_core.engine.federation import Federation
from fedjax_core.engine.tables import RowTable

RARE = 1e-9
_LEVELS, _THRESHOLDS = 1000, 12  # distinct sizes that are told apart; thresholds that are tried
_EXPONENTS = np.geomspace(1e-4, 1e2, 73)  # a, in units of one over the largest size


class Draw:
    """The sizes of a round's clients.

    >>> alike = Draw(np.full(1000, 7), cohort=10)
    >>> alike.total(), alike.largest(3)
    (70, 21)
    """

    def __init__(self, sizes: np.ndarray, cohort: int, rate: float | None = None):
        """Of clients with these sizes [N], so many are drawn, or each with a probability of `rate` but no more than so many."""
        self._cohort, self._fixed = min(cohort, len(sizes)), rate is None
        self._rate = self._cohort / len(sizes) if rate is None else rate
        self._sizes, self._alike = np.unique(sizes, return_counts=True)
        step = max(1, -(-int(self._sizes[-1]) // _LEVELS))
        self._values, inverse = np.unique(-(-self._sizes // step) * step, return_inverse=True)
        self._numbers = np.bincount(inverse, self._alike)

    def total(self) -> int:
        """Rows of all of them together, at most."""
        return min(self._of_largest(self._cohort), self._bound(0))

    def largest(self, number: int) -> int:
        """Rows of so many of them, at most: of any k clients k c + sum max(size - c, 0) at most, for every c."""
        thresholds = np.unique(self._values[np.linspace(0, len(self._values) - 1, _THRESHOLDS).astype(int)])
        found = [number * int(above) + self._bound(int(above)) for above in thresholds]
        return min(self._of_largest(min(number, self._cohort)), *found, self.total())

    def _of_largest(self, number: int) -> int:
        """Rows of so many clients that have most."""
        alike = self._alike[::-1]
        before = np.cumsum(alike) - alike
        return int(self._sizes[::-1] @ np.clip(number - before, 0, alike))

    def _bound(self, above: int) -> int:
        """What sum max(size - above, 0) over a round's clients exceeds with a probability below `RARE`."""
        over = np.maximum(self._values - above, 0).astype(np.float64)
        if not over[-1]:
            return 0
        exponents = _EXPONENTS[:, None] / over[-1]
        with np.errstate(divide="ignore"):
            logs = np.logaddexp(np.log1p(-self._rate), np.log(self._rate) + exponents * over) @ self._numbers
        if self._fixed:
            grown = np.exp(exponents * (over - over[-1])) @ self._numbers / self._numbers.sum()
            logs = np.minimum(logs, self._cohort * (exponents[:, 0] * over[-1] + np.log(grown)))
        return int(np.ceil(((logs - np.log(RARE)) / exponents[:, 0]).min()))


def of_rounds(fed: Federation, sizes: np.ndarray, dealt: bool) -> int:
    """Rows of a device's part of a round's slab.

    Args:
      fed: with its plan.
      sizes: [N] of each client's rows that rounds read.
      dealt: whether it is by these that clients are dealt to devices.
    """
    parts = fed.plan.parts
    if parts == 1:
        return 1 + Draw(sizes, fed.cohort, fed.rate).total()
    number = 1
    for g, group in enumerate(fed.groups):
        mine = np.zeros_like(sizes)
        mine[group.clients] = sizes[group.clients]
        draw, plan = Draw(mine, fed.cohort, fed.rate), fed.plan_of(g)
        each = -(-min(fed.cohort, len(group.clients)) // (plan.chunk * parts)) * plan.chunk
        most = draw.largest(each)
        number += min(most, -(-draw.total() // parts) + draw.largest(plan.chunk)) if dealt else most
    return number


def of_blocks(tables: Sequence[RowTable], blocks: Sequence[np.ndarray], parts: int) -> int:
    """Rows of a device's part of a slab that has room for each of these blocks of clients [C]; N for an empty place."""
    return 1 + max(int(cohort_buffer.filled(tables, cohort_buffer.divided([ids], parts)).max()) for ids in blocks)
