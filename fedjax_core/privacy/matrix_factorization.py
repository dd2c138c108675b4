"""Correlated noise: the matrices C that generate it, and how far one client moves what it hides.

The server gets the rounds' sums x_1 ... x_n plus C^-1 z, where the rows of z are Gaussian and
independent. That reveals no more than C x + z: one Gaussian mechanism with the sensitivity of C
under the clients' participation (`Participation`). The next rounds take back a part of one
round's noise, so that sums of rounds, which a model is, have less of it.

  tree     C counts the leaves below each node of a binary tree over the rounds; a sum of rounds is
           estimated from all nodes below it.
           Honaker. Efficient Use of Differentially Private Binary Trees. 2015.
           Kairouz, McMahan, Song, Thakkar, Thakurta, Xu. Practical and Private (Deep) Learning
           without Sampling or Shuffling. ICML 2021.
  banded   C is Toeplitz with `bands` diagonals.
           Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu. (Amplified) Banded Matrix
           Factorization. NeurIPS 2023.
           McKenna. Scaling up the Banded Matrix Factorization Mechanism. 2024.
  blt      C is Toeplitz, and its diagonals decay as a sum of a few exponentials, so that the noise
           needs as many buffers.
           Dvijotham, McMahan, Pillutla, Steinke, Thakurta. Efficient and Near-Optimal Noise
           Generation for Streaming Differential Privacy. FOCS 2024.
           McMahan, Xu, Zhang. A Hassle-free Algorithm for Strong Differential Privacy in Federated
           Learning Systems. EMNLP 2024.

The numbers of `banded` and `blt` minimise the mean square of the noise on all sums times the
squared sensitivity. They are computed before the run in float64, and are in run.json. Columns never
rise and are not negative, so that the sensitivity is known: that of a client that participates as
often and as early as it may, with the same delta each time (NeurIPS 2023, Theorem 2).

The optimiser of jax_privacy, to which the tests compare, minimises the loss of `banded` for a
single participation, and needs float64 in JAX; these need NumPy and SciPy.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedjax_core import option_types

Bands = Annotated[int, option_types.Limit("in [1, 256]", lambda v: 1 <= v <= 256)]
Buffers = Annotated[int, option_types.Limit("in [1, 6]", lambda v: 1 <= v <= 6)]
DIGITS = 9  # that are kept of the numbers of C


class Participation(NamedTuple):
    """The papers' "b-min-separation with at most k participations", for every client.

    Attributes:
      rounds: n, all rounds of the run.
      separation: b, the smallest number of rounds from one participation to the next; 1: every
        round.
      times: k, the largest number of participations.
    """

    rounds: int
    separation: int
    times: int

    def times_by(self, done: int) -> int:
        """Returns the largest number of participations in the first `done` rounds."""
        return min(self.times, -(-done // self.separation))


def cyclic_participation(rounds: int, cohort: int, population: int) -> Participation:
    """Returns the bounds where each round takes the next `cohort` clients of a circle.

    Between two cohorts that share a client there are as many rounds as whole cohorts fit the
    circle. A client has rounds * cohort / population turns, rounded up.

    Example:
      >>> cyclic_participation(rounds=10, cohort=8, population=20)
      Participation(rounds=10, separation=2, times=4)
    """
    return Participation(rounds, population // cohort, -(-rounds * cohort // population))


def weaken(actual: Participation, separation: int | None, times: int | None) -> Participation:
    """Returns the bounds that noise is calibrated to, if a config declares weaker ones.

    Args:
      actual: bounds of the cohorts.
      separation: `privacy.min_separation`, or None.
      times: `privacy.participations`, or None.

    Raises:
      ValueError: the cohorts exceed the declared bounds.
    """
    if separation is not None and separation > actual.separation:
        raise ValueError(
            f"privacy.min_separation={separation}: a client returns after {actual.separation} rounds; "
            "use smaller cohorts, or more clients"
        )
    if times is not None and times < actual.times:
        raise ValueError(
            f"privacy.participations={times}: in {actual.rounds} rounds a client participates up to "
            f"{actual.times} times; use fewer rounds, smaller cohorts, or more clients"
        )
    return Participation(actual.rounds, separation or actual.separation, times or actual.times)


class Strategy(NamedTuple):
    """A matrix C, and the properties of its noise.

    Attributes:
      name: "tree", "banded" or "blt".
      coefficients: of "banded": the first column of C, [bands]; else `()`.
      decays, scales: of "blt": theta and omega. The first column is 1, then
        sum_j omega_j theta_j^(i - 1); else `()`.
    """

    name: str
    participation: Participation
    coefficients: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()

    @property
    def column(self) -> np.ndarray:
        """The first column [n] of C; not for a tree."""
        n = self.participation.rounds
        if self.decays:
            return _blt_column(np.array(self.decays), np.array(self.scales), n)
        return np.pad(np.array(self.coefficients), (0, max(0, n - len(self.coefficients))))[:n]

    def sensitivity(self, done: int | None = None) -> float:
        """Returns how far one client of norm 1 moves C x; for a tree an upper bound.

        Args:
          done: over the first `done` rounds; None: all.
        """
        done = self.participation.rounds if done is None else done
        separation, times = self.participation.separation, self.participation.times_by(done)
        if self.name == "tree":
            return _tree_sensitivity_squared(done, separation, times) ** 0.5
        return _toeplitz_sensitivity_squared(self.column[:done], separation, times) ** 0.5

    def round_deviations(self) -> np.ndarray:
        """Returns the deviations [n] of the noise on each round's sum, for z of deviation 1."""
        n = self.participation.rounds
        if self.name != "tree":
            return np.sqrt(np.cumsum(self._solve(np.eye(1, n)[0]) ** 2))
        v = honaker_variances(num_levels(n))
        ends = ((t & -t).bit_length() - 1 for t in range(1, n + 1))  # level of the largest node that ends
        return np.array([v[h] + v[:h].sum() - 2 * v[h] * (1 - 0.5**h) for h in ends]) ** 0.5

    def sum_deviations(self) -> np.ndarray:
        """Returns the deviations [n] of the noise on the sums of the first rounds, likewise."""
        n = self.participation.rounds
        if self.name != "tree":
            return np.sqrt(np.cumsum(self._solve(np.ones(n)) ** 2))
        v = honaker_variances(num_levels(n))
        return np.array([sum(v[h] for h in range(len(v)) if t >> h & 1) for t in range(1, n + 1)]) ** 0.5

    def _solve(self, right: np.ndarray) -> np.ndarray:
        """Returns C^-1 times `right` [n], in the memory of n vectors of noise."""
        if not self.decays:
            return _solve_banded(self.column, right)
        rows, buffers = [], [0.0] * len(self.decays)
        for value in right.tolist():  # Python floats are faster than arrays of a few buffers
            row = value - sum(scale * buffer for scale, buffer in zip(self.scales, buffers, strict=True))
            buffers = [decay * buffer + row for decay, buffer in zip(self.decays, buffers, strict=True)]
            rows.append(row)
        return np.array(rows)

    def facts(self) -> dict[str, Any]:
        """Returns the numbers of C, for run.json."""
        facts = {"coefficients": self.coefficients, "decays": self.decays, "scales": self.scales}
        return {name: list(numbers) for name, numbers in facts.items() if numbers}


def tree(participation: Participation) -> Strategy:
    """Noise by a binary tree over the rounds, with Honaker's estimate from below.

    It keeps as many vectors of noise as the tree has levels, log2 of the rounds.
    """
    return Strategy("tree", participation)


@functools.lru_cache(maxsize=64)
def banded(participation: Participation, *, bands: Bands = 4) -> Strategy:
    """Noise by a banded Toeplitz matrix, optimised for the rounds and the clients' participation.

    Args:
      bands: diagonals; the noise keeps as many vectors, less one. More than the rounds between a
        client's turns are of no use.

    Raises:
      ValueError: there are more bands than rounds.
    """
    n, separation = participation.rounds, participation.separation
    if bands > n:
        raise ValueError(f"privacy.mechanism: bands={bands} must be at most the {n} rounds")
    weights = np.arange(n, 0, -1) / n

    def make_column(u: np.ndarray) -> np.ndarray:
        return np.concatenate([[1.0], np.cumprod(_sigmoid(u))])

    def loss_and_gradient(u: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the log of error times squared sensitivity."""
        column = make_column(u)
        padded = np.pad(column, (0, n - bands))
        sums = _solve_banded(column, np.ones(n))
        solved_sums = _solve_banded(column, sums)
        error = float(weights @ sums**2)
        turns = [np.arange(n - j * separation) for j in range(participation.times)]
        moved = np.zeros(n)
        for j, index in enumerate(turns):
            moved[index + j * separation] += padded[index]
        sensitivity = float(moved @ moved)
        error_gradient = [-2 * (weights[k:] * sums[k:]) @ solved_sums[: n - k] for k in range(bands)]
        sensitivity_gradient = [
            2 * sum(moved[k + j * separation] for j, index in enumerate(turns) if k < len(index)) for k in range(bands)
        ]
        gradient = np.array(error_gradient) / error + np.array(sensitivity_gradient) / sensitivity
        by_ratio = np.cumsum((gradient[1:] * column[1:])[::-1])[::-1] * (1 - _sigmoid(u))
        return math.log(error * sensitivity), by_ratio

    k = np.arange(1, bands)
    start = np.log(2 * k - 1.0)  # ratios (2k - 1) / 2k, those of the square root
    u = _minimize(loss_and_gradient, start, True) if bands > 1 else np.zeros(0)
    return Strategy("banded", participation, coefficients=_round(make_column(u)))


@functools.lru_cache(maxsize=64)
def blt(participation: Participation, *, buffers: Buffers = 3) -> Strategy:
    """Noise by a buffered linear Toeplitz matrix, optimised likewise.

    Args:
      buffers: number of exponentials, and of vectors of noise that are kept. Three to five are
        close to the best for thousands of rounds.
    """
    n = participation.rounds
    weights = np.arange(n, 0, -1) / n

    def make_decays(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns theta, and those of the inverse: 1 > theta_1 > hat_1 > theta_2 > ... > 0."""
        falling = np.cumprod(_sigmoid(u))
        return falling[::2], falling[1::2]

    def loss(u: np.ndarray) -> float:
        theta, hat = make_decays(u)
        column = _blt_column(theta, _blt_scales(theta, hat), n)
        inverse = _blt_column(hat, _blt_scales(hat, theta), n)
        error = float(weights @ np.cumsum(inverse) ** 2)
        product = error * _toeplitz_sensitivity_squared(column, participation.separation, participation.times)
        return math.log(product) if np.isfinite(product) and product > 0 else 1e6

    gaps = max(n, 2.0) ** -(1 - (np.arange(2 * buffers) + 0.5) / (2 * buffers))
    falling = 1 - gaps
    ratios = np.clip(falling / np.concatenate([[1.0], falling[:-1]]), 1e-6, 1 - 1e-9)
    theta, hat = make_decays(_minimize(loss, np.log(ratios / (1 - ratios)), False))
    return Strategy("blt", participation, decays=_round(theta), scales=_round(_blt_scales(theta, hat)))


def restore_strategy(name: str, participation: Participation, facts: Mapping[str, Any]) -> Strategy | None:
    """Returns the strategy whose numbers are in run.json, which is not optimised again.

    Args:
      facts: what run.json has about privacy.

    Returns:
      The strategy; None if there are no numbers, or they are for another participation.

    Raises:
      ValueError: the sensitivity of the numbers is unknown.
    """
    bounds = tuple(facts.get(field) for field in ("rounds", "min_separation", "participations"))
    fields = ("coefficients", "decays", "scales")
    numbers = {field: facts[field] for field in fields if isinstance(facts.get(field), list)}
    if bounds != participation or not numbers:
        return None
    strategy = Strategy(name, participation, **{field: tuple(map(float, each)) for field, each in numbers.items()})
    if len(strategy.decays) != len(strategy.scales) or bool(strategy.decays) == bool(strategy.coefficients):
        raise ValueError(f"run.json: privacy has {', '.join(numbers)}; {name} has coefficients, or as many scales as decays")
    column = strategy.column
    if column[0] != 1 or np.min(column) < 0 or np.max(np.diff(column), initial=0) > 0:
        raise ValueError(
            f"run.json: {' and '.join(numbers)} of privacy must give a column that begins with 1 and falls; restore it"
        )
    return strategy


STRATEGIES: dict[str, Callable[..., Strategy]] = {"tree": tree, "banded": banded, "blt": blt}


def num_levels(rounds: int) -> int:
    """Returns the number of levels of a tree over the rounds."""
    return rounds.bit_length()


def honaker_variances(levels: int) -> np.ndarray:
    """Returns the variances [levels] of a node's noise, estimated from below; 1 for a leaf."""
    v = [1.0]
    for _ in range(1, levels):
        v.append(1 / (1 + 1 / (2 * v[-1])))
    return np.array(v)


def _tree_sensitivity_squared(rounds: int, separation: int, times: int) -> float:
    """Returns an upper bound.

    On each level a node of s rounds has a client at most s / separation times, rounded up, and there
    are as many nodes as fit.
    """
    total = 0
    for level in range(num_levels(rounds)):
        per_node, nodes = min(times, -(-(2**level) // separation)), rounds >> level
        full = min(times // per_node, nodes)
        total += full * per_node**2
        total += min(times - full * per_node, per_node) ** 2 if nodes > full else 0
    return float(total)


def _toeplitz_sensitivity_squared(column: np.ndarray, separation: int, times: int) -> float:
    """Returns it for a Toeplitz matrix whose first column falls and is not negative."""
    turns = np.pad(column, (0, -len(column) % separation)).reshape(-1, separation)
    moved = np.cumsum(turns, 0)
    moved[times:] -= moved[:-times].copy() if times < len(moved) else 0
    return float(np.sum(moved.reshape(-1)[: len(column)] ** 2))


def _blt_column(decays: np.ndarray, scales: np.ndarray, n: int) -> np.ndarray:
    return np.concatenate([[1.0], (decays ** np.arange(n - 1)[:, None]) @ scales])


def _blt_scales(theta: np.ndarray, hat: np.ndarray) -> np.ndarray:
    """Returns omega with

    prod_i (1 - hat_i x) / prod_i (1 - theta_i x) = 1 + sum_j omega_j x / (1 - theta_j x).
    """
    differences = theta[:, None] - theta[None] + np.eye(len(theta))
    return np.prod(theta[:, None] - hat[None], 1) / np.prod(differences, 1)


def _solve_banded(column: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns C^-1 times `right` [n] for a lower triangular Toeplitz matrix."""
    from scipy.linalg import solve_banded

    last = int(np.flatnonzero(column)[-1])
    return solve_banded((last, 0), np.repeat(column[: last + 1, None], len(right), 1), right)


def _sigmoid(u: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(u, -40, 40)))


def _minimize(loss: Callable, start: np.ndarray, has_gradient: bool) -> np.ndarray:
    from scipy.optimize import minimize

    options = {"maxiter": 500, "maxfun": 20000, "ftol": 1e-12}
    return minimize(loss, start, jac=has_gradient, method="L-BFGS-B", options=options).x


def _round(numbers: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{number:.{DIGITS}g}") for number in numbers)
