"""Rounds to a target as text: beside the published number, and as the speed-up over a named row."""

import math
from typing import Any

from fedjax_core.commands.tables import measures
from fedjax_core.commands.tables.results import Summary


def number(rounds: float, form: str) -> str:
    """Rounds in a format; "never" of infinitely many."""
    return "never" if rounds == math.inf else f"{rounds:{form}}"


def caption(measure: Any, names: str) -> str:
    """What the cells hold; `names` of the scores."""
    return (
        f"Rounds until {names} crosses {measures.target(measure):g}: of each evaluation the best value so far, with linear "
        "interpolation between two; never: not in the rounds that were run."
    )


def published(summary: Summary, form: str) -> str:
    """The paper's rounds, and ours over them where both are known."""
    assert summary.paper is not None
    ratio = summary.mean / summary.paper[0]
    known = math.isfinite(summary.paper[0]) and math.isfinite(ratio)
    return number(summary.paper[0], form) + (f", x{ratio:.2f}" if known else "")


def speedup(summary: Summary, other: Summary) -> str:
    """How many times fewer rounds than another row, where both have the same seeds and all of these reach the target, and in
    brackets the paper's number; empty if neither is known."""
    reach = all(map(math.isfinite, [*summary.by_seed.values(), *other.by_seed.values()]))
    ours = other.mean / summary.mean if reach and summary.by_seed.keys() == other.by_seed.keys() else math.nan
    theirs = other.paper[0] / summary.paper[0] if other.paper and summary.paper else math.nan
    shown = [f"{value:.3g}x" if math.isfinite(value) and value > 0 else "" for value in (ours, theirs)]
    return (shown[0] + (f" [{shown[1]}]" if shown[1] else "")).strip()
