"""Proposes settings from the scores of earlier trials, by Optuna's tree-structured Parzen estimator.

Bergstra, Bardenet, Bengio, Kégl, "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011,
https://papers.nips.cc/paper/4443-algorithms-for-hyper-parameter-optimization

A proposal follows from the seed, the trial's number and the scores of the trials before it. These
are read from the runs' directories, so a search resumes without a storage of Optuna's own.
"""

import importlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from fedjax_core.commands.tables import search_spaces
from fedjax_core.commands.tables.search_spaces import Space

RANDOM_TRIALS = 4  # beside the row's own settings, before the first proposal


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
        seed=int(2**32 * search_spaces.hash_fraction(seed, "tpe", number)),
        n_startup_trials=0,
        multivariate=True,
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for setting, merit in history:
        if search_spaces.is_inside(space, setting):
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
    if search_spaces.is_interval(values):
        return optuna.distributions.FloatDistribution(values.low, values.high, log=search_spaces.is_log_interval(values))
    return optuna.distributions.CategoricalDistribution(tuple(range(len(values))))


def _encode(values: Any, value: Any) -> Any:
    """Returns a value as Optuna has it: of a tuple its index, since any object may be in it."""
    if search_spaces.is_interval(values):
        return float(value)
    return [search_spaces.value_key(other) for other in values].index(search_spaces.value_key(value))


def _decode(values: Any, param: Any) -> Any:
    return search_spaces.round_value(values, param) if search_spaces.is_interval(values) else values[param]
