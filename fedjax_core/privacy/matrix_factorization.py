"""Correlated noise: which matrix C the noise of all rounds is made with, and how far one client moves what it hides.

Of the rounds' sums x_1 ... x_n the server has x + C^-1 z, with rows of z that are Gaussian and independent. Whoever sees them sees
no more than C x + z: one Gaussian mechanism, with the sensitivity of C under the participation of clients (`participation.py`).
Noise of one round is in part taken back in the next ones, so that sums of rounds, which a model is, have less of it.

  tree     C counts, for each node of a binary tree over the rounds, what its leaves have; a sum of rounds is estimated by all nodes
           below it: Honaker. Efficient Use of Differentially Private Binary Trees. 2015; Kairouz, McMahan, Song, Thakkar, Thakurta,
           Xu. Practical and Private (Deep) Learning without Sampling or Shuffling. ICML 2021.
  banded   C has `bands` diagonals, the same number in all of each: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu.
           (Amplified) Banded Matrix Factorization. NeurIPS 2023; McKenna. Scaling up the Banded Matrix Factorization. 2024.
  blt      diagonals of C decay as the sum of a few exponentials, so that the noise needs as many buffers: Dvijotham, McMahan,
           Pillutla, Steinke, Thakurta. Efficient and Near-Optimal Noise Generation for Streaming Differential Privacy. FOCS 2024;
           McMahan, Xu, Zhang. A Hassle-free Algorithm for Strong Differential Privacy in Federated Learning Systems. EMNLP 2024.

The numbers of `banded` and `blt` are those with the least mean square of the noise on all sums, times the squared sensitivity; they
are found before the run, in float64, and stand in run.json. Entries of a column never rise, and none is negative, so that the
sensitivity is known: of a client that comes as often and as early as it may, with the same delta each time (Theorem 2 there).
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedjax_core import option_types
from fedjax_core.privacy.participation import Participation

Bands = Annotated[int, option_types.Limit("in [1, 256]", lambda v: 1 <= v <= 256)]
Buffers = Annotated[int, option_types.Limit("in [1, 6]", lambda v: 1 <= v <= 6)]
DIGITS = 9  # of the numbers of C that are kept


class Strategy(NamedTuple):
    """A matrix C, and what is to be known of its noise.

    Attributes:
      name: "tree", "banded" or "blt".
      participation: of clients.
      coefficients: of "banded" the entries of C's first column, [bands]; of the others `()`.
      decays, scales: of "blt" theta and omega: the first column is 1 and then sum_j omega_j theta_j^(i - 1); else `()`.
    """

    name: str
    participation: Participation
    coefficients: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()

    @property
    def column(self) -> np.ndarray:
        """[n] the first column of C, for as many rounds as there are; not of a tree."""
        n = self.participation.rounds
        if self.decays:
            return _column(np.array(self.decays), np.array(self.scales), n)
        return np.pad(np.array(self.coefficients), (0, max(0, n - len(self.coefficients))))[:n]

    def sensitivity(self, done: int | None = None) -> float:
        """How far one client of norm 1 moves C x, over the first `done` rounds; None: over all. Of a tree an upper bound."""
        done = self.participation.rounds if done is None else done
        separation, times = self.participation.separation, self.participation.by(done)
        if self.name == "tree":
            return _of_tree(done, separation, times) ** 0.5
        return _of_column(self.column[:done], separation, times) ** 0.5

    def round_deviations(self) -> np.ndarray:
        """[n] deviation of the noise on each round's sum, for z of deviation 1."""
        n = self.participation.rounds
        if self.name != "tree":
            return np.sqrt(np.cumsum(self._undone(np.eye(1, n)[0]) ** 2))
        v = honaker_variances(num_levels(n))
        return np.array([v[h] + v[:h].sum() - 2 * v[h] * (1 - 0.5**h) for h in map(_ends, range(1, n + 1))]) ** 0.5

    def sum_deviations(self) -> np.ndarray:
        """[n] deviation of the noise on the sum of all rounds up to each, for z of deviation 1."""
        n = self.participation.rounds
        if self.name != "tree":
            return np.sqrt(np.cumsum(self._undone(np.ones(n)) ** 2))
        v = honaker_variances(num_levels(n))
        return np.array([sum(v[h] for h in range(len(v)) if t >> h & 1) for t in range(1, n + 1)]) ** 0.5

    def _undone(self, right: np.ndarray) -> np.ndarray:
        """C^-1 times `right` [n], in memory of n times the vectors of noise."""
        if not self.decays:
            return _solved(self.column, right)
        found, kept = [], [0.0] * len(self.decays)
        for value in right.tolist():  # numbers of Python: of a few buffers they are faster than arrays
            row = value - sum(scale * buffer for scale, buffer in zip(self.scales, kept, strict=True))
            kept = [decay * buffer + row for decay, buffer in zip(self.decays, kept, strict=True)]
            found.append(row)
        return np.array(found)

    def facts(self) -> dict[str, Any]:
        """For run.json: the numbers of C."""
        said = {"coefficients": self.coefficients, "decays": self.decays, "scales": self.scales}
        return {name: list(numbers) for name, numbers in said.items() if numbers}


def tree(participation: Participation) -> Strategy:
    """Noise by a binary tree over the rounds, with Honaker's estimate from below; as many vectors of noise are kept as the tree has
    levels, log2 of the rounds."""
    return Strategy("tree", participation)


@functools.lru_cache(maxsize=64)
def banded(participation: Participation, *, bands: Bands = 4) -> Strategy:
    """Noise by a banded Toeplitz matrix, optimised for the run's rounds and the clients' participation.

    Args:
      participation: of clients.
      bands: diagonals; noise keeps as many vectors, less one. No more than the rounds between a client's turns are of use.

    Raises:
      ValueError: there are more bands than rounds.
    """
    n = participation.rounds
    if bands > n:
        raise ValueError(f"privacy.mechanism: bands={bands} must be at most the {n} rounds")
    weights = np.arange(n, 0, -1) / n

    def column(u: np.ndarray) -> np.ndarray:
        return np.concatenate([[1.0], np.cumprod(_part(u))])

    def loss(u: np.ndarray) -> tuple[float, np.ndarray]:
        """log of error times squared sensitivity, and its gradient."""
        c = column(u)
        padded = np.pad(c, (0, n - bands))
        sums = _solved(c, np.ones(n))
        further = _solved(c, sums)
        error = float(weights @ sums**2)
        turns = [np.arange(n - j * participation.separation) for j in range(participation.times)]
        moved = np.zeros(n)
        for j, at in enumerate(turns):
            moved[at + j * participation.separation] += padded[at]
        size = float(moved @ moved)
        of_error = np.array([-2 * (weights[k:] * sums[k:]) @ further[: n - k] for k in range(bands)])
        of_size = np.array([2 * sum(moved[k + j * participation.separation] for j, at in enumerate(turns) if k < len(at))
                            for k in range(bands)])  # fmt: skip
        of_column = of_error / error + of_size / size
        inward = np.cumsum((of_column[1:] * c[1:])[::-1])[::-1] * (1 - _part(u))
        return math.log(error * size), inward

    begin = np.arange(1, bands)
    u = _least(loss, np.log(2 * begin - 1.0), True) if bands > 1 else np.zeros(0)  # ratios (2k - 1) / 2k: the square root's
    return Strategy("banded", participation, coefficients=_kept(column(u)))


@functools.lru_cache(maxsize=64)
def blt(participation: Participation, *, buffers: Buffers = 3) -> Strategy:
    """Noise by a buffered linear Toeplitz matrix, optimised for the run's rounds and the clients' participation.

    Args:
      participation: of clients.
      buffers: exponentials, and vectors of noise that are kept; three to five are near the best for thousands of rounds.
    """
    n = participation.rounds
    weights = np.arange(n, 0, -1) / n

    def both(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """theta and those of the inverse, which stand between them: 1 > theta_1 > hat_1 > theta_2 > ... > 0."""
        falling = np.cumprod(_part(u))
        return falling[::2], falling[1::2]

    def loss(u: np.ndarray) -> float:
        theta, hat = both(u)
        c, inverse = _column(theta, _scales(theta, hat), n), _column(hat, _scales(hat, theta), n)
        found = float(weights @ np.cumsum(inverse) ** 2) * _of_column(c, participation.separation, participation.times)
        return math.log(found) if np.isfinite(found) and found > 0 else 1e6

    gaps = max(n, 2.0) ** -(1 - (np.arange(2 * buffers) + 0.5) / (2 * buffers))
    falling = 1 - gaps
    ratios = np.clip(falling / np.concatenate([[1.0], falling[:-1]]), 1e-6, 1 - 1e-9)
    theta, hat = both(_least(loss, np.log(ratios / (1 - ratios)), False))
    return Strategy("blt", participation, decays=_kept(theta), scales=_kept(_scales(theta, hat)))


def recorded(name: str, participation: Participation, facts: Mapping[str, Any]) -> Strategy | None:
    """The matrix whose numbers run.json has, which is not optimised again.

    Args:
      name: "tree", "banded" or "blt".
      participation: of clients.
      facts: what run.json says of privacy.

    Returns:
      It; None if there are no numbers, or they are of another participation.

    Raises:
      ValueError: the numbers are not of a matrix whose sensitivity is known.
    """
    of = tuple(facts.get(field) for field in ("rounds", "min_separation", "participations"))
    numbers = {field: facts[field] for field in ("coefficients", "decays", "scales") if isinstance(facts.get(field), list)}
    if of != participation or not numbers:
        return None
    made = Strategy(name, participation, **{field: tuple(map(float, each)) for field, each in numbers.items()})
    if len(made.decays) != len(made.scales) or bool(made.decays) == bool(made.coefficients):
        raise ValueError(f"run.json: privacy has {', '.join(numbers)}; {name} has coefficients, or as many scales as decays")
    if made.column[0] != 1 or np.min(made.column) < 0 or np.max(np.diff(made.column), initial=0) > 0:
        raise ValueError(
            f"run.json: {' and '.join(numbers)} of privacy must give a column that begins with 1 and falls; restore it"
        )
    return made


STRATEGIES: dict[str, Callable[..., Strategy]] = {"tree": tree, "banded": banded, "blt": blt}


def num_levels(rounds: int) -> int:
    """Of the tree over so many rounds."""
    return rounds.bit_length()


def honaker_variances(number: int) -> np.ndarray:
    """[levels] variance of the best estimate of a node's noise by itself and by those below it, which is 1 of a leaf."""
    v = [1.0]
    for _ in range(1, number):
        v.append(1 / (1 + 1 / (2 * v[-1])))
    return np.array(v)


def _ends(t: int) -> int:
    """Level of the largest node that ends with round t, counted from 1."""
    return (t & -t).bit_length() - 1


def _of_tree(rounds: int, separation: int, times: int) -> float:
    """Squared sensitivity of a tree, from above: on each level a node of s rounds has a client at most s / separation times,
    rounded up, and there are as many nodes as fit."""
    found = 0
    for level in range(num_levels(rounds)):
        most, nodes = min(times, -(-(2**level) // separation)), rounds >> level
        full = min(times // most, nodes)
        found += full * most**2 + (min(times - full * most, most) ** 2 if nodes > full else 0)
    return float(found)


def _of_column(column: np.ndarray, separation: int, times: int) -> float:
    """Squared sensitivity of a Toeplitz matrix whose first column falls and is not negative."""
    rows = np.pad(column, (0, -len(column) % separation)).reshape(-1, separation)
    moved = np.cumsum(rows, 0)
    moved[times:] -= moved[:-times].copy() if times < len(moved) else 0
    return float(np.sum(moved.reshape(-1)[: len(column)] ** 2))


def _column(decays: np.ndarray, scales: np.ndarray, n: int) -> np.ndarray:
    """[n] of a buffered linear Toeplitz matrix."""
    return np.concatenate([[1.0], (decays ** np.arange(n - 1)[:, None]) @ scales])


def _scales(theta: np.ndarray, hat: np.ndarray) -> np.ndarray:
    """omega of prod_i (1 - hat_i x) / prod_i (1 - theta_i x) = 1 + sum_j omega_j x / (1 - theta_j x)."""
    apart = theta[:, None] - theta[None] + np.eye(len(theta))
    return np.prod(theta[:, None] - hat[None], 1) / np.prod(apart, 1)


def _solved(column: np.ndarray, right: np.ndarray) -> np.ndarray:
    """C^-1 times `right` [n], of a lower triangular Toeplitz matrix with that first column, most of which is zero."""
    from scipy.linalg import solve_banded

    last = int(np.flatnonzero(column)[-1])
    return solve_banded((last, 0), np.repeat(column[: last + 1, None], len(right), 1), right)


def _part(u: np.ndarray) -> np.ndarray:
    """In (0, 1)."""
    return 1 / (1 + np.exp(-np.clip(u, -40, 40)))


def _least(loss: Callable, begin: np.ndarray, gradient: bool) -> np.ndarray:
    from scipy.optimize import minimize

    return minimize(loss, begin, jac=gradient, method="L-BFGS-B", options={"maxiter": 500, "maxfun": 20000, "ftol": 1e-12}).x


def _kept(numbers: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{number:.{DIGITS}g}") for number in numbers)
