"""Validates the spaces of a search, chooses settings from them, and names values at their edges.

A space is {field: values}. Values are a tuple, or an interval such as `Uniform` and `LogUniform` of
`configs/tables/base.py`, which have `low`, `high`, `at(share)` and `share(value)`.

Proposals from the scores of earlier trials are those of Optuna's tree-structured Parzen estimator (Bergstra, Bardenet,
Bengio, Kégl, "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011,
https://papers.nips.cc/paper/4443-algorithms-for-hyper-parameter-optimization). A proposal follows from the seed, the
trial's number and the scores before it, which runs' directories hold: a search resumes without a storage of Optuna's own.
"""

import hashlib
import importlib
import itertools
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fedjax_core.option_types import is_number
from fedjax_core.storage.json_files import to_json_values

Space = Mapping[str, Any]
# Fields that all rows share, or that change no result
TABLE_FIELDS = ("seed", "rounds", "data", "task", "cohort", "dropout", "evaluation", "plan", "checkpoint", "callbacks", "profile")
TABLE_FIELDS += ("privacy", "adversary", "aggregation", "compression", "devices")
EDGE = 0.1  # the outer part of an interval, on its own scale
DIGITS = 4  # of drawn numbers, so that what the table shows is what was tried
ATTEMPTS = 1000  # draws of one setting of a space with intervals
RANDOM_TRIALS = 4  # beside the row's own settings, before the first proposal


def check_space(row: str, space: Space) -> None:
    """Validates a row's space."""
    for field, values in space.items():
        what = f"space of row {row!r}: {field}"
        if field.split(".")[0] in TABLE_FIELDS:
            raise ValueError(f"{what} is not the row's to choose; a space has what its method trains with, such as optimizer.lr")
        if is_interval(values):
            least = 0 if is_log_interval(values) else -math.inf
            if not (is_number(values.low) and is_number(values.high) and least < values.low < values.high < math.inf):
                raise ValueError(f"{what}={values} needs low < high, both finite{', both positive' if least == 0 else ''}")
        elif isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ValueError(f"{what}={values!r} must be a tuple of values, Uniform(low, high) or LogUniform(low, high)")
        elif len({value_key(value) for value in values}) < len(values):
            raise ValueError(f"{what}={values!r} has a value twice")


def sample_settings(space: Space, sampler: str, seed: int, number: int, own: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what trials 1, 2, ... try: settings that are all different, none of them the row's own.

    A setting follows from the seed, the trial's number and the space alone: more trials or other rows
    do not change it.

    Args:
      space: checked, with at least one field.
      number: the most settings; there are fewer if the space has fewer, or if `ATTEMPTS` draws find
        no other.
      own: the row's settings in the fields of the space.
    """
    taken = {point_key(own)}
    if sampler == "grid":
        points = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
        points = [point for point in points if point_key(point) not in taken]
        return sorted(points, key=lambda point: hash_fraction(seed, "grid", point_key(point)))[:number]
    settings: list[dict[str, Any]] = []
    while len(settings) < min(number, count_others(space, own)):
        setting = draw_setting(space, seed, len(settings) + 1, taken)
        if setting is None:
            break
        taken.add(point_key(setting))
        settings.append(setting)
    return settings


def draw_setting(space: Space, seed: int, number: int, taken: Collection[str]) -> dict[str, Any] | None:
    """Returns the random setting of a trial; drawn again while its `point_key` is in `taken`.

    A finite space must have a point that is not taken. A narrow interval has few numbers of `DIGITS`
    digits: None if `ATTEMPTS` draws find no other.
    """
    is_finite = math.isfinite(_count_points(space))
    for attempt in itertools.count() if is_finite else range(ATTEMPTS):
        draws = {field: hash_fraction(seed, number, field, attempt) for field in space}
        setting = {field: _draw_value(space[field], draws[field]) for field in space}
        if point_key(setting) not in taken:
            return setting
    return None


def count_others(space: Space, own: Mapping[str, Any]) -> float:
    """Returns how many settings a space has beside the row's own; infinity with an interval."""
    return _count_points(space) - is_inside(space, own)


def describe_edges(space: Space, values: Mapping[str, Any]) -> list[str]:
    """Returns which numbers are at an edge of the space or outside: "optimizer.lr=0.9 at the upper edge"."""
    edges = []
    for field, value in values.items():
        limits = space[field]
        if is_interval(limits):
            share = limits.share(value) if is_number(value) else 0.5
            edge = _describe_edge(share < 0 or share > 1, share < EDGE, share > 1 - EDGE)
        elif all(map(is_number, [value, *limits])) and len(limits) > 2:
            low, high = min(limits), max(limits)
            edge = _describe_edge(not low <= value <= high, value <= low, value >= high)
        else:
            continue
        if edge:
            edges.append(f"{field}={value} {edge}")
    return edges


def _describe_edge(outside: bool, low: bool, high: bool) -> str:
    side = "lower" if low else "upper"
    return f"beyond the {side} edge" if outside else f"at the {side} edge" if low or high else ""


def is_interval(values: Any) -> bool:
    """Returns whether a field has an interval, not a tuple of values."""
    return all(hasattr(values, name) for name in ("low", "high", "at", "share"))


def is_log_interval(values: Any) -> bool:
    """Returns whether an interval is log-uniform; by its name, since configs know nothing of the library."""
    return type(values).__name__ == "LogUniform"


def value_key(value: Any) -> str:
    """Returns a string that equal values share, 1 and 1.0 too."""
    return repr(float(value)) if is_number(value) else json.dumps(to_json_values(value))


def point_key(point: Mapping[str, Any]) -> str:
    """Returns a string that equal settings share."""
    return json.dumps({field: value_key(value) for field, value in point.items()}, sort_keys=True)


def hash_fraction(*what: Any) -> float:
    """Returns a number in [0, 1) that follows from the arguments, on every machine."""
    digest = hashlib.sha256("/".join(map(str, what)).encode()).digest()
    return int.from_bytes(digest[:7]) / 2**56


def _draw_value(values: Any, share: float) -> Any:
    if not is_interval(values):
        return values[int(share * len(values))]
    return round_value(values, values.at(share))


def round_value(interval: Any, value: float) -> float:
    """Returns a number of an interval with `DIGITS` digits, as the table shows it."""
    return min(max(float(f"{value:.{DIGITS}g}"), interval.low), interval.high)


def _count_points(space: Space) -> float:
    return math.inf if any(map(is_interval, space.values())) else math.prod(map(len, space.values()))


def is_inside(space: Space, point: Mapping[str, Any]) -> bool:
    """Returns whether a point has a value of the space in each field."""
    return all(field in point and _is_among(values, point[field]) for field, values in space.items())


def _is_among(values: Any, value: Any) -> bool:
    if is_interval(values):
        return is_number(value) and values.low <= value <= values.high
    return value_key(value) in {value_key(other) for other in values}


def import_optuna() -> Any:
    """Returns the package optuna."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise ValueError("search: sampler='tpe' needs the package optuna: pip install 'fedjax-core[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def propose_setting(
    space: Space,
    seed: int,
    number: int,
    history: Iterable[tuple[Mapping[str, Any], float]],
) -> dict[str, Any]:
    """Returns the setting of a trial.

    Args:
      history: (setting, merit) of the trials before it, the largest is the best; not finite: it
        diverged, the worst. Settings outside the space, as a row's own may be, are left out.
    """
    optuna = import_optuna()
    distributions = {field: _make_distribution(optuna, values) for field, values in space.items()}
    sampler = optuna.samplers.TPESampler(
        seed=int(2**32 * hash_fraction(seed, "tpe", number)),
        n_startup_trials=0,
        multivariate=True,
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for setting, merit in history:
        if is_inside(space, setting):
            is_scored, states = math.isfinite(merit), optuna.trial.TrialState
            trial = optuna.create_trial(
                state=states.COMPLETE if is_scored else states.PRUNED,
                value=merit if is_scored else None,
                params={field: _encode(space[field], setting[field]) for field in space},
                distributions=distributions,
            )
            study.add_trial(trial)
    params = study.ask(distributions).params
    return {field: _decode(values, params[field]) for field, values in space.items()}


def _make_distribution(optuna: Any, values: Any) -> Any:
    if is_interval(values):
        return optuna.distributions.FloatDistribution(values.low, values.high, log=is_log_interval(values))
    return optuna.distributions.CategoricalDistribution(tuple(range(len(values))))


def _encode(values: Any, value: Any) -> Any:
    """Returns a value as Optuna has it: of a tuple its index, since any object may be in it."""
    if is_interval(values):
        return float(value)
    return [value_key(other) for other in values].index(value_key(value))


def _decode(values: Any, param: Any) -> Any:
    return round_value(values, param) if is_interval(values) else values[param]
