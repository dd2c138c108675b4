"""When a score crosses a value: rounds to an accuracy, read off a curve as McMahan et al. (2017) read them."""

import math
from collections.abc import Sequence


def crossing(rounds: Sequence[int], values: Sequence[float], target: float, larger: bool = True) -> float:
    """The round in which a score, made monotone by taking the best value so far, crosses a target, between two evaluations by
    linear interpolation.

    Args:
      rounds: [E] of the evaluations, ascending.
      values: [E] the score there; what is not finite counts as no evaluation.
      target: what is to be reached.
      larger: whether the score is to rise to it; False: to fall.

    Returns:
      A number of rounds; the first evaluated round if the target is reached there, for nothing is known from before; infinity if
      it never is.

    >>> crossing([5, 10, 15, 20], [0.25, 0.50, 0.40, 1.00], 0.75)
    17.5
    >>> crossing([5, 10], [0.80, 0.90], 0.80), crossing([5, 10], [0.80, 0.90], 0.95)
    (5.0, inf)
    """
    sign = 1.0 if larger else -1.0
    before = None
    for now, value in zip(rounds, values, strict=True):
        if not math.isfinite(value):
            continue
        height = sign * value
        if height >= sign * target:
            if before is None:
                return float(now)
            share = (sign * target - before[1]) / (height - before[1])
            return before[0] + share * (now - before[0])
        before = (now, height if before is None else max(before[1], height))
    return math.inf
