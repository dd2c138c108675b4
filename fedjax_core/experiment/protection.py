"""What a config's privacy costs, and the link that makes its noise."""

from collections.abc import Mapping
from typing import Any

from fedjax_core.engine import cohort as cohorts
from fedjax_core.engine.simulation import Simulation
from fedjax_core.experiment.asked import Asked, Config, resolve
from fedjax_core.privacy import Spent
from fedjax_core.uplink import Link, correlated


def spent(config: Config, simulation: Simulation, known: Mapping[str, Any] | None = None) -> Spent | None:
    """What rounds of a config's simulation cost in privacy; None where there is none. `known`: as `of_asked` takes it."""
    return of_asked(resolve(config), simulation.population, known=known)


def of_asked(asked: Asked, population: int, calibrate: bool = True, known: Mapping[str, Any] | None = None) -> Spent | None:
    """As `spent`, of so many clients.

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
    """The link that makes the noise."""
    if asked.mechanism is None or spent is None:
        return []
    size, found = cohorts.number(asked.cohort, population), asked.mechanism
    real = spent.release.cohort if spent.release.sampling != "local" else size
    if spent.strategy is not None:
        return [correlated.link(spent.clip, spent.noise, size, real, spent.strategy)]
    return [found.function(spent.clip, spent.noise, size, real, **found.options)]
