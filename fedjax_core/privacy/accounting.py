"""Epsilon of rounds of noise, and noise for an epsilon; by `dp-accounting`, which the extra `[privacy]` installs.

Which event a round is, and whom its epsilon protects (the neighbouring relation):

  "poisson"   each client comes with probability q = C / N: `PoissonSampledDpEvent`. Add or remove one client. PLD or RDP.
  "fixed"     C clients of N without replacement: `SampledWithoutReplacementDpEvent`. Replace one client, by which the sum moves
              by twice the clip, so the accountant is given half of the noise multiplier. RDP alone has it.
  "all"       every client in every round, or "fixed" with C = N: no sampling. Remove one client's part of the sum. PLD or RDP.
  "cyclic"    clients come in turn (`participation.py`): no sampling, nothing amplified. Remove all that one client sends, in the
              rounds in which it takes part. PLD or RDP, of as many rounds as these; of noise that is correlated over rounds one
              Gaussian mechanism in all (`matrix_factorization.py`).
  "local"     what one client itself sends in every round. Replace all its data: twice the clip. PLD or RDP.
"""

import functools
import importlib
import math
from typing import Any, NamedTuple

import numpy as np

ACCOUNTANTS = ("pld", "rdp")
RELATIONS = {
    "poisson": "add or remove one client",
    "fixed": "replace one client",
    "all": "remove what one client sends",
    "cyclic": "remove what one client sends",
    "local": "replace one client's data",
}
INTERVAL = 1e-3  # of the discretised privacy loss; ten times dp-accounting's default, at a tenth of the time; rounded upwards
MOST_OF_ONE, MOST = 5 * 10**5, 2 * 10**8  # numbers of a discretised loss, of one round and of all: seconds each
FINEST = 1e-4  # to which calibrated multipliers are rounded, upwards


class Release(NamedTuple):
    """What leaves in one round.

    Attributes:
      noise: "gaussian" or "laplace".
      sampling: one of `RELATIONS`.
      cohort: C.
      population: N.
    """

    noise: str
    sampling: str
    cohort: int = 1
    population: int = 1

    @property
    def relation(self) -> str:
        """Which two sets of clients are told apart by no more than epsilon."""
        return RELATIONS[self.sampling]


def library() -> Any:
    """dp-accounting.

    Raises:
      ValueError: it is not installed.
    """
    try:
        found = importlib.import_module("dp_accounting")
        importlib.import_module("dp_accounting.pld")
        importlib.import_module("dp_accounting.rdp")
    except ImportError:
        raise ValueError(
            "privacy.mechanism needs dp-accounting for its epsilon: pip install 'fedjax-core[privacy]', or dp-accounting"
        ) from None
    return found


def event(release: Release, multiplier: float) -> Any:
    """One round as dp-accounting's event; `multiplier`: deviation, or Laplace's scale, over the clip."""
    dp = library()
    plain = dp.GaussianDpEvent if release.noise == "gaussian" else dp.LaplaceDpEvent
    if release.sampling == "poisson":
        return dp.PoissonSampledDpEvent(release.cohort / release.population, plain(multiplier))
    if release.sampling == "fixed":
        return dp.SampledWithoutReplacementDpEvent(release.population, release.cohort, plain(multiplier / 2))
    return plain(multiplier / 2 if release.sampling == "local" else multiplier)


def _accountant(release: Release, name: str) -> Any:
    """A fresh one."""
    dp = library()
    relations = dp.NeighboringRelation
    if name == "rdp":
        replaced = release.sampling == "fixed"
        return dp.rdp.RdpAccountant(neighboring_relation=relations.REPLACE_ONE if replaced else relations.ADD_OR_REMOVE_ONE)
    return dp.pld.PLDAccountant(relations.ADD_OR_REMOVE_ONE, INTERVAL)


def fits_pld(release: Release, multiplier: float, rounds: int) -> bool:
    """Returns whether the privacy loss of so many rounds can be discretised: it takes a number for each
    `INTERVAL` of its range, which grows with the rounds and, of Gaussian noise, with one over the squared
    multiplier."""
    scale = multiplier / 2 if release.sampling == "local" else multiplier
    inverse = 1 / scale if scale else math.inf
    numbers = (2 * inverse if release.noise == "laplace" else (inverse / 2 + 8) * inverse) / INTERVAL
    return numbers <= MOST_OF_ONE and rounds * numbers <= MOST


def choose(release: Release, name: str | None, multiplier: float | None = None, rounds: int = 1, delta: float = 1) -> str:
    """Returns the accountant to take: the one that is named, or the tightest that can account for the release.

    Args:
      release: of one round.
      name: "pld", "rdp" or None.
      multiplier: deviation, or Laplace's scale, over the clip; None: it is not known yet.
      rounds: how many, as `epsilon` takes them.
      delta: see `epsilon`.

    Raises:
      ValueError: the one that is named cannot.
    """
    if release.sampling == "fixed" and name == "pld":
        raise ValueError(
            "privacy.accountant='pld' cannot account for cohorts of a fixed size, drawn without replacement: take 'rdp', or "
            "cohort.sampling='poisson'"
        )
    tight = name or ("rdp" if release.sampling == "fixed" else "pld")
    if tight == "rdp" or multiplier is None or (delta == 0 and release.noise == "laplace"):
        return tight
    if fits_pld(release, multiplier, rounds):
        return tight
    if name == "pld":
        raise ValueError(
            f"privacy.accountant='pld' has no room for a noise multiplier of {multiplier:.4g} over {rounds} rounds: "
            "there is so little noise that epsilon is in the hundreds or more; take more noise, or 'rdp'"
        )
    return "rdp"


@functools.lru_cache(maxsize=4096)
def epsilon(release: Release, multiplier: float, rounds: int, delta: float, accountant: str) -> float:
    """Epsilon of so many rounds; infinite where the accountant finds no bound.

    Args:
      release: of one round.
      multiplier: deviation, or Laplace's scale, over the clip.
      rounds: how many; of "cyclic" those in which a client takes part.
      delta: 0 for pure differential privacy, which Laplace noise has: by adding up.
      accountant: "pld" or "rdp".

    Raises:
      ValueError: dp-accounting is not installed.
    """
    if rounds == 0:
        return 0.0
    if delta == 0 and release.noise == "laplace":
        return rounds / (multiplier / 2 if release.sampling == "local" else multiplier)
    if accountant == "rdp":
        try:
            spent = rounds * _renyi(release, multiplier)
        except ZeroDivisionError:  # the square of the multiplier is zero in floats
            return math.inf
        return float(importlib.import_module("dp_accounting.rdp").compute_epsilon(_orders(), spent, delta)[0])
    made = _accountant(release, accountant)
    made.compose(event(release, multiplier), rounds)
    return float(made.get_epsilon(delta))


@functools.lru_cache(maxsize=64)
def _renyi(release: Release, multiplier: float) -> Any:
    """Renyi divergences of one round by order: those of more rounds are multiples."""
    made = _accountant(release, "rdp")
    with np.errstate(divide="ignore", over="ignore"):  # of a multiplier whose square is no number
        made.compose(event(release, multiplier))
    return made.rdp


@functools.lru_cache(maxsize=1)
def _orders() -> Any:
    return library().rdp.RdpAccountant().orders


@functools.lru_cache(maxsize=64)
def calibrated(release: Release, wanted: float, delta: float, rounds: int, accountant: str) -> float:
    """The least noise multiplier, to 1e-4 and rounded upwards, with which so many rounds have at most an epsilon.

    Args:
      release: of one round.
      wanted: epsilon.
      delta: see `epsilon`.
      rounds: how many.
      accountant: "pld" or "rdp".

    Raises:
      ValueError: no multiplier below 1e6 is enough; dp-accounting is not installed.
    """
    library()
    spent = lambda z: epsilon(release, z, rounds, delta, accountant)
    if accountant == "pld" and delta > 0:
        high = calibrated(release, wanted, delta, rounds, "rdp")  # PLD needs less, and is slow where there is little noise
        low = high * 0.9
    else:
        high = low = 1.0
    while spent(high) > wanted:
        low, high = high, high * 2
        if high > 1e6:
            raise ValueError(f"no noise multiplier below 1e6 gives epsilon {wanted:g} at delta {delta:g} after {rounds} rounds")
    while low > FINEST and spent(low) <= wanted:
        low, high = low * 0.9 if accountant == "pld" else low / 2, low
    gap = lambda z: math.log(min(max(spent(z), 1e-12), 1e12) / wanted)
    left, right = gap(low), gap(high)
    while high - low > FINEST / 4:  # regula falsi with halvings: epsilon falls with the multiplier, smoothly
        guess = low + (high - low) * min(max(left / max(left - right, 1e-12), 0.05), 0.95)
        found = gap(guess)
        low, left, high, right = (low, left, guess, found) if found <= 0 else (guess, found, high, right)
        if -1e-5 < found <= 0:
            break
    return math.ceil(round(high / FINEST, 6)) * FINEST
