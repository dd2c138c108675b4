"""Rounds, or seconds, to a target score, read off a curve as in McMahan et al. (2017)."""

import math
from collections.abc import Sequence


def interpolate_crossing(rounds: Sequence[float], values: Sequence[float], target: float, larger: bool = True) -> float:
    """Returns the round in which the best score so far crosses a target, interpolated linearly
    between evaluations.

    Args:
      rounds: [E] rounds of the evaluations, ascending, or seconds.
      values: [E] scores; a value that is not finite counts as no evaluation.
      larger: whether the score must rise to it; False: fall.

    Returns:
      A number of rounds; the first evaluated round if the target is reached there; infinity if it
      is never reached.

    >>> interpolate_crossing([5, 10, 15, 20], [0.25, 0.50, 0.40, 1.00], 0.75)
    17.5
    >>> interpolate_crossing([5, 10], [0.80, 0.90], 0.80), interpolate_crossing([5, 10], [0.80, 0.90], 0.95)
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
