"""Targets of scores: whether one is reached, and the rounds or seconds to it, read off a curve as in McMahan et al. (2017)."""

import math
from collections.abc import Sequence

ROUNDING = 2.0**-23  # of float32, in which scores are computed: 342 of 360 are 0.949999988 there


def is_reached(target: float, value: float, larger: bool = True) -> bool:
    """Returns whether a score is at least a target, or (`larger` False) at most; NaN is not.

    >>> [is_reached(0.95, value) for value in (0.949999988, 0.949999, 0.96)], is_reached(0.5, 0.4, larger=False)
    ([True, False, True], True)
    """
    return math.isclose(value, target, rel_tol=ROUNDING) or (value >= target if larger else value <= target)


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
        if is_reached(target, value, larger):
            if before is None:
                return float(now)
            share = min((sign * target - before[1]) / (height - before[1]), 1.0)
            return before[0] + share * (now - before[0])
        before = (now, height if before is None else max(before[1], height))
    return math.inf
