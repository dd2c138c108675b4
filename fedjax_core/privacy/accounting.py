"""Epsilon of rounds with noise, and noise for an epsilon, by `dp-accounting`.

Each way of sampling a cohort is an event of dp-accounting, and protects a neighbouring relation:

  "poisson"   each client participates with probability q = C / N: `PoissonSampledDpEvent`. Add or
              remove one client. PLD or RDP.
  "fixed"     C clients of N without replacement: `SampledWithoutReplacementDpEvent`. Replace one
              client, which moves the sum by twice the clip: the accountant gets half of the noise
              multiplier. RDP.
  "all"       every client in every round, or "fixed" with C = N: no sampling. Remove one client's
              part of the sum. PLD or RDP.
  "cyclic"    clients take turns (`Participation`): no sampling and no amplification. Remove all
              that one client sends. PLD or RDP of the rounds in which it participates; with noise
              that is correlated over rounds, one Gaussian mechanism in all
              (`matrix_factorization.py`).
  "local"     what one client sends in every round. Replace all its data: twice the clip. PLD or
              RDP.
"""

import functools
import importlib
import logging
import math
from typing import Any, NamedTuple

import numpy as np

from fedjax_core.privacy.distributed_noise import ORDERS, IntegerSum

ACCOUNTANTS = ("pld", "rdp")
RELATIONS = {
    "poisson": "add or remove one client",
    "fixed": "replace one client",
    "all": "remove what one client sends",
    "cyclic": "remove what one client sends",
    "local": "replace one client's data",
}
# Discretisation of the privacy loss: ten times dp-accounting's default, in a tenth of the time;
# rounded up.
INTERVAL = 1e-3
# Largest numbers of points of a discretised loss, for one round and for all: seconds each.
MAX_POINTS_PER_ROUND, MAX_POINTS = 5 * 10**5, 2 * 10**8
RESOLUTION = 1e-4  # calibrated multipliers are rounded up to it
MAX_MULTIPLIER = 1e6  # divergences of larger ones underflow


class Release(NamedTuple):
    """What leaves in one round.

    Attributes:
      noise: "gaussian", "laplace" or "integers".
      sampling: one of `RELATIONS`.
      arithmetic: of a sum of integers with the clients' noise; its multiplier is not read. None: real
        numbers.
    """

    noise: str
    sampling: str
    cohort: int = 1
    population: int = 1
    arithmetic: IntegerSum | None = None

    @property
    def relation(self) -> str:
        """The neighbouring relation that epsilon protects."""
        return RELATIONS[self.sampling]

    def effective_multiplier(self, multiplier: float) -> float:
        """Returns the multiplier over what one change moves: twice the clip where data are replaced."""
        return multiplier / 2 if self.sampling in ("fixed", "local") else multiplier


def import_library() -> Any:
    """Imports dp-accounting."""
    try:
        library = importlib.import_module("dp_accounting")
        importlib.import_module("dp_accounting.pld")
        importlib.import_module("dp_accounting.rdp")
    except ImportError:
        raise ValueError(
            "privacy.mechanism needs dp-accounting for its epsilon: pip install 'fedjax-core[privacy]', or dp-accounting"
        ) from None
    return library


def make_event(release: Release, multiplier: float) -> Any:
    """Returns one round as dp-accounting's event.

    Args:
      multiplier: deviation, or Laplace's scale, over the clip.
    """
    dp = import_library()
    mechanism = dp.GaussianDpEvent if release.noise == "gaussian" else dp.LaplaceDpEvent
    event = mechanism(release.effective_multiplier(multiplier))
    if release.sampling == "poisson":
        return dp.PoissonSampledDpEvent(release.cohort / release.population, event)
    if release.sampling == "fixed":
        return dp.SampledWithoutReplacementDpEvent(release.population, release.cohort, event)
    return event


def _make_accountant(release: Release, name: str) -> Any:
    dp = import_library()
    relations = dp.NeighboringRelation
    if name == "rdp":
        is_replaced = release.sampling == "fixed"
        relation = relations.REPLACE_ONE if is_replaced else relations.ADD_OR_REMOVE_ONE
        return dp.rdp.RdpAccountant(neighboring_relation=relation)
    return dp.pld.PLDAccountant(relations.ADD_OR_REMOVE_ONE, INTERVAL)


def is_pld_feasible(release: Release, multiplier: float, rounds: int) -> bool:
    """Returns whether the privacy loss of the rounds can be discretised.

    It takes a point for each `INTERVAL` of its range, which grows with the rounds and, for Gaussian
    noise, with the inverse of the squared multiplier.
    """
    scale = release.effective_multiplier(multiplier)
    inverse = 1 / scale if scale else math.inf
    size = 2 * inverse if release.noise == "laplace" else (inverse / 2 + 8) * inverse
    points = size / INTERVAL
    return points <= MAX_POINTS_PER_ROUND and rounds * points <= MAX_POINTS


def choose_accountant(
    release: Release, name: str | None, multiplier: float | None = None, rounds: int = 1, delta: float = 1
) -> str:
    """Returns the named accountant, or the tightest that supports the release.

    Args:
      name: "pld", "rdp" or None.
      multiplier: deviation, or Laplace's scale, over the clip; None: not known yet.

    Raises:
      ValueError: the named accountant does not support it.
    """
    if release.arithmetic is not None:
        if name == "pld":
            raise ValueError(
                f"privacy.accountant='pld' cannot account for {release.arithmetic.noise} noise, whose bounds are Renyi "
                "divergences: use 'rdp'"
            )
        return "rdp"
    if release.sampling == "fixed" and name == "pld":
        raise ValueError(
            "privacy.accountant='pld' cannot account for cohorts of a fixed size, drawn without replacement: use 'rdp', or "
            "cohort.sampling='poisson'"
        )
    tightest = name or ("rdp" if release.sampling == "fixed" else "pld")
    if tightest == "rdp" or multiplier is None or (delta == 0 and release.noise == "laplace"):
        return tightest
    if is_pld_feasible(release, multiplier, rounds):
        return tightest
    if name == "pld":
        raise ValueError(
            f"privacy.accountant='pld' needs too much memory for a noise multiplier of {multiplier:.4g} over {rounds} rounds: "
            "epsilon is in the hundreds or more; use more noise, or 'rdp'"
        )
    return "rdp"


@functools.lru_cache(maxsize=4096)
def compute_epsilon(release: Release, multiplier: float, rounds: int, delta: float, accountant: str) -> float:
    """Returns epsilon of the rounds; infinite if the accountant finds no bound.

    Args:
      rounds: how many; of "cyclic" those in which a client participates.
      delta: 0 for pure differential privacy of Laplace noise, by addition.
    """
    if rounds == 0:
        return 0.0
    if delta == 0 and release.noise == "laplace":
        return rounds / release.effective_multiplier(multiplier)
    if accountant == "rdp":
        try:
            divergences = rounds * _renyi_divergences(release, multiplier)
        except ZeroDivisionError:  # the square of the multiplier underflows
            return math.inf
        rdp = importlib.import_module("dp_accounting.rdp")
        orders = _renyi_orders() if release.arithmetic is None else ORDERS
        return float(rdp.compute_epsilon(orders, divergences, delta)[0])
    composed = _make_accountant(release, accountant)
    composed.compose(make_event(release, multiplier), rounds)
    return float(composed.get_epsilon(delta))


@functools.lru_cache(maxsize=64)
def _renyi_divergences(release: Release, multiplier: float) -> Any:
    """Returns the Renyi divergences of one round by order; those of more rounds are multiples."""
    if release.arithmetic is not None:
        return release.arithmetic._replace(multiplier=multiplier).renyi_divergences()
    accountant = _make_accountant(release, "rdp")
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of each order that it leaves out, which the bound is valid without
    try:
        with np.errstate(divide="ignore", over="ignore"):  # of multipliers with infinite squares
            accountant.compose(make_event(release, multiplier))
    finally:
        logger.setLevel(level)
    return accountant.rdp


@functools.lru_cache(maxsize=1)
def _renyi_orders() -> Any:
    return import_library().rdp.RdpAccountant().orders


@functools.lru_cache(maxsize=64)
def calibrate_noise(release: Release, wanted: float, delta: float, rounds: int, accountant: str) -> float:
    """Returns the smallest noise multiplier, rounded up to 1e-4, for the wanted epsilon.

    The search of `dp_accounting.calibrate_dp_mechanism` ends on other last digits in some cases,
    and the noise of existing configs depends on them.

    Raises:
      ValueError: no multiplier below 1e6 is enough; dp-accounting is not installed.
    """
    import_library()

    def spent(multiplier: float) -> float:
        return compute_epsilon(release, multiplier, rounds, delta, accountant)

    if accountant == "pld" and delta > 0:
        # PLD needs less noise than RDP, and takes long where there is little.
        high = calibrate_noise(release, wanted, delta, rounds, "rdp")
        low = high * 0.9
    else:
        high = low = 1.0
    while spent(high) > wanted:
        low, high = high, high * 2
        if high > MAX_MULTIPLIER:
            raise ValueError(f"no noise multiplier below 1e6 gives epsilon {wanted:g} at delta {delta:g} after {rounds} rounds")
    while low > RESOLUTION and spent(low) <= wanted:
        low, high = low * 0.9 if accountant == "pld" else low / 2, low

    def gap(multiplier: float) -> float:
        return math.log(min(max(spent(multiplier), 1e-12), 1e12) / wanted)

    gap_low, gap_high = gap(low), gap(high)
    while high - low > RESOLUTION / 4:  # regula falsi with bisections: epsilon is smooth and falls
        fraction = min(max(gap_low / max(gap_low - gap_high, 1e-12), 0.05), 0.95)
        guess = low + (high - low) * fraction
        gap_guess = gap(guess)
        if gap_guess <= 0:
            high, gap_high = guess, gap_guess
        else:
            low, gap_low = guess, gap_guess
        if -1e-5 < gap_guess <= 0:
            break
    return round_up(high)


def round_up(multiplier: float) -> float:
    """Returns a noise multiplier, rounded up to `RESOLUTION`."""
    return math.ceil(round(multiplier / RESOLUTION, 6)) * RESOLUTION


def is_spent(spent: float, wanted: float) -> bool:
    """Returns whether recorded noise that spends so much was calibrated to the wanted epsilon; else it is of other rounds."""
    return 0.999 <= spent / wanted <= 1 + 1e-6
