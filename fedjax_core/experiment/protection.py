"""What a config's privacy costs, and the link that makes its noise."""

from collections.abc import Mapping
from typing import Any

from fedjax_core.engine import client_sampling as cohorts
from fedjax_core.experiment.resolve_config import Asked
from fedjax_core.privacy import Spent
from fedjax_core.uplink import Link, dp_matrix_mechanism


def of_asked(asked: Asked, population: int, calibrate: bool = True, known: Mapping[str, Any] | None = None) -> Spent | None:
    """What rounds of so many clients cost in privacy; None where there is none.

    Args:
      asked: the config, resolved.
      population: N.
      calibrate: whether the noise is found where the config gives epsilon.
      known: what run.json has of it, see `Privacy.spent`.
    """
    if asked.privacy is None:
        return None
    return asked.privacy.spent(cohorts.number(asked.cohort, population), population, asked.sampling, calibrate, known)


def links(asked: Asked, spent: Spent | None, population: int) -> list[Link]:
    """The link that makes the noise. Sums are divided by the number of clients that are expected to come back: dropouts are drawn,
    so it is as public as the cohort's. What a round costs is told as if nobody dropped out."""
    if asked.mechanism is None or spent is None:
        return []
    size, found = cohorts.number(asked.cohort, population), asked.mechanism
    real = spent.release.cohort if spent.release.sampling != "local" else size
    size, real = size * (1 - asked.dropout), real * (1 - asked.dropout)
    if spent.strategy is not None:
        return [dp_matrix_mechanism.link(spent.clip, spent.noise, size, real, spent.strategy)]
    return [found.function(spent.clip, spent.noise, size, real, **found.options)]
