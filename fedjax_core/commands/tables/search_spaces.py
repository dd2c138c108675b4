"""Spaces of a search: checked, drawn from, and whether a value lies at their edge. Nothing runs here.

A space is {field: values}: a tuple, or numbers between two, such as `Uniform` and `LogUniform` of `configs/tables/base.py`, which
have `low`, `high`, `at(share)` and `share(value)`.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_core.storage.json_files import plain

Space = Mapping[str, Any]
# What all rows have in common, and what changes no result
OF_THE_TABLE = ("seed", "rounds", "data", "task", "cohort", "dropout", "evaluation", "plan", "checkpoint", "callbacks", "profile")
OF_THE_TABLE += ("privacy", "adversary", "aggregation", "compression")
EDGE = 0.1  # the outer part of an interval, on its own scale
DIGITS = 4  # of drawn numbers, so that what the table shows is what was tried
ATTEMPTS = 1000  # draws of one point, where nobody knows how many there are


def check(row: str, space: Space) -> None:
    """Whether a row's space holds together, whatever its config has.

    Raises:
      ValueError: it does not; one line with the row, the field and what was found.
    """
    for field, values in space.items():
        what = f"space of row {row!r}: {field}"
        if field.split(".")[0] in OF_THE_TABLE:
            raise ValueError(f"{what} is not the row's to choose; a space has what its method trains with, such as optimizer.lr")
        if is_interval(values):
            least = 0 if type(values).__name__ == "LogUniform" else -math.inf
            if not (is_number(values.low) and is_number(values.high) and least < values.low < values.high < math.inf):
                raise ValueError(f"{what}={values} needs low < high, both finite{', both positive' if least == 0 else ''}")
        elif isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ValueError(f"{what}={values!r} must be a tuple of values, Uniform(low, high) or LogUniform(low, high)")
        elif len({key(value) for value in values}) < len(values):
            raise ValueError(f"{what}={values!r} has a value twice")


def settings(space: Space, sampler: str, seed: int, number: int, own: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What trials 1, 2, ... try: points of the space, all different, none of them the row's own settings.

    A point follows from the seed, the trial's number and the space alone: more trials or other rows leave it as it is.

    Args:
      space: checked, with at least one field.
      sampler: "random" or "grid".
      seed: of the draws.
      number: how many there may be; there are fewer only if the space has fewer, or `ATTEMPTS` draws find no other.
      own: the row's settings in the fields of the space.
    """
    fields = list(space)
    taken = {_key(own)}
    if sampler == "grid":
        points = [dict(zip(fields, values, strict=True)) for values in itertools.product(*space.values())]
        points = [point for point in points if _key(point) not in taken]
        return sorted(points, key=lambda point: _share(seed, "grid", _key(point)))[:number]
    found: list[dict[str, Any]] = []
    left = _size(space) - (1 if _inside(space, own) else 0)
    while len(found) < min(number, left):
        for attempt in range(ATTEMPTS) if left == math.inf else itertools.count():  # what an earlier trial has is drawn again
            point = {field: _drawn(space[field], _share(seed, len(found) + 1, field, attempt)) for field in fields}
            if _key(point) not in taken:
                break
        else:
            return found  # a narrow interval has few numbers of so many digits
        taken.add(_key(point))
        found.append(point)
    return found


def edges(space: Space, values: Mapping[str, Any]) -> list[str]:
    """Which numbers lie at the edge of the space or outside, where better ones may be: "optimizer.lr=0.9 at the upper edge"."""
    found = []
    for field, value in values.items():
        limits = space[field]
        if is_interval(limits):
            share = limits.share(value) if is_number(value) else 0.5
            place = _place(share < 0 or share > 1, share < EDGE, share > 1 - EDGE)
        elif all(map(is_number, [value, *limits])) and len(limits) > 2:
            low, high = min(limits), max(limits)
            place = _place(not low <= value <= high, value <= low, value >= high)
        else:
            continue
        if place:
            found.append(f"{field}={value} {place}")
    return found


def _place(outside: bool, low: bool, high: bool) -> str:
    side = "lower" if low else "upper"
    return f"beyond the {side} edge" if outside else f"at the {side} edge" if low or high else ""


def is_interval(values: Any) -> bool:
    """Whether a field has numbers between two, not a tuple."""
    return all(hasattr(values, name) for name in ("low", "high", "at", "share"))


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def key(value: Any) -> str:
    """A value as text that equal ones share, 1 and 1.0 too."""
    return repr(float(value)) if is_number(value) else json.dumps(plain(value))


def _key(point: Mapping[str, Any]) -> str:
    return json.dumps({field: key(value) for field, value in point.items()}, sort_keys=True)


def _share(*what: Any) -> float:
    """A number in [0, 1) that follows from its arguments, on every machine."""
    digest = hashlib.sha256("/".join(map(str, what)).encode()).digest()
    return int.from_bytes(digest[:7]) / 2**56


def _drawn(values: Any, share: float) -> Any:
    if not is_interval(values):
        return values[int(share * len(values))]
    return min(max(float(f"{values.at(share):.{DIGITS}g}"), values.low), values.high)


def _size(space: Space) -> float:
    """How many points there are."""
    return math.inf if any(map(is_interval, space.values())) else math.prod(map(len, space.values()))


def _inside(space: Space, own: Mapping[str, Any]) -> bool:
    """Whether a point is one of a finite space's."""
    return all(
        field in own and not is_interval(values) and key(own[field]) in {key(value) for value in values}
        for field, values in space.items()
    )
