"""Samples a round's clients, and their dropout.

A way to sample is a `ClientSampler`. `config.cohort.sampling` names one of `SAMPLERS`, one of a
module or file (`registry.py`), or an entry point of the group `fedjax_core.samplers`. The round, the
buffers of streamed examples and the privacy ledger read what they need from it.
"""

import dataclasses
import functools
import math
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import Array, PyTree
from fedjax_core.engine.client_sampler import ClientFacts, ClientSampler
from fedjax_core.engine.informed_samplers import AvailableSampler, OortSampler, PowerOfChoiceSampler, SizeSampler
from fedjax_core.option_types import shorten

OVERFLOW = 1e-20  # probability that a Poisson cohort has more clients than slots, in one round


class FixedSampler(ClientSampler):
    """A set of C clients, uniformly at random, without replacement."""

    accounting = "fixed"

    def draw(self, key: Array, round_num: Array | int, clients: ClientFacts | None = None, state: PyTree = ()) -> Array:
        return sample_fixed(jax.random.fold_in(key, round_num), self.population, self.size)

    def log_moments(self, exponents: np.ndarray, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Returns the smaller of two bounds.

        One is for independent draws with probability C / N, because membership is negatively
        associated (Joag-Dev and Proschan, Negative Association of Random Variables, 1983). The
        other is for C draws with replacement (Hoeffding, Probability Inequalities for Sums of
        Bounded Random Variables, 1963, theorem 4).
        """
        relative = np.exp(exponents * (values - values[-1])) @ counts / counts.sum()
        with_replacement = self.size * (exponents[:, 0] * values[-1] + np.log(relative))
        return np.minimum(_independent_log_moments(self.size / self.population, exponents, values, counts), with_replacement)


@dataclasses.dataclass(frozen=True)
class CyclicSampler(FixedSampler):
    """All clients in a circle, in an order drawn once; each round takes the next C of them."""

    accounting = "cyclic"
    log_moments = FixedSampler.log_moments  # over all orders, one round's clients are a uniform set

    def __post_init__(self):
        """Raises ValueError for a cycle too long for int32."""
        turns = math.lcm(self.population, self.size)
        if turns >= 2**31:
            raise ValueError(
                f"sampling='cyclic': cohorts of {self.size} of {self.population} clients begin anew after {turns} turns, which "
                f"must be below 2**31; take a cohort that divides the population, such as {math.gcd(self.population, self.size)}"
            )

    def draw(self, key: Array, round_num: Array | int, clients: ClientFacts | None = None, state: PyTree = ()) -> Array:
        """Returns the ids [C].

        Example:
          >>> [CyclicSampler(2, 5).draw(jax.random.key(0), r).tolist() for r in range(3)]
          [[0, 2], [4, 1], [3, 0]]
        """
        period = math.lcm(self.population, self.size) // self.size  # rounds until the circle begins with the same client
        positions = (round_num % period * self.size + jnp.arange(self.size)) % self.population
        return jax.random.permutation(jax.random.fold_in(key, 0), self.population)[positions].astype(jnp.int32)


class PoissonSampler(ClientSampler):
    """Every client independently with probability C / N: the number of clients varies around C.

    Clients beyond the slots are left out, the last ids first.
    """

    accounting = "poisson"

    @functools.cached_property
    def slots(self) -> int:
        """The most clients, by Chernoff's bound on a binomial's upper tail.

        Example:
          >>> [PoissonSampler(*sizes).slots for sizes in ((50, 1_000_000), (10, 20), (20, 20))]
          [131, 20, 20]
        """
        rate, least = self.size / self.population, np.log(OVERFLOW)
        for number in range(self.size, self.population):
            a = (number + 1) / self.population
            divergence = a * np.log(a / rate) + ((1 - a) * np.log((1 - a) / (1 - rate)) if a < 1 else 0)
            if -self.population * divergence <= least:
                return number
        return self.population

    def draw(self, key: Array, round_num: Array | int, clients: ClientFacts | None = None, state: PyTree = ()) -> Array:
        rate, shape = self.size / self.population, (self.population,)
        is_drawn = jax.random.bernoulli(jax.random.fold_in(key, round_num), rate, shape, mode="high")
        return jnp.nonzero(is_drawn, size=self.slots, fill_value=self.population)[0].astype(jnp.int32)

    def log_moments(self, exponents: np.ndarray, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
        return _independent_log_moments(self.size / self.population, exponents, values, counts)


SAMPLERS: dict[str, type[ClientSampler]] = {
    "fixed": FixedSampler,
    "poisson": PoissonSampler,
    "cyclic": CyclicSampler,
    "size": SizeSampler,
    "available": AvailableSampler,
    "power_of_choice": PowerOfChoiceSampler,
    "oort": OortSampler,
}
GIVEN = ("size", "population")
CALLS = {  # the functions of a sampler, and what each is called with
    "init": ("clients",),
    "draw": ("key", "round_num", "clients", "state"),
    "update": ("state", "clients", "round_num", "cohort", "losses"),
}


def find_sampler(spec: str) -> registry.ResolvedSpec:
    """Returns the sampler of a spec, its options checked."""
    return registry.resolve_spec("sampler", spec, SAMPLERS, given=GIVEN, field="cohort.sampling")


def make_sampler(sampling: str, cohort: int | float | None, population: int) -> ClientSampler:
    """Returns the sampler of a config.

    Args:
      sampling: its spec.
      cohort: as in `resolve_cohort_size`.

    Raises:
      TypeError: something from outside returned no sampler, or one whose functions take other arguments.
      ValueError: the sampling is unknown, or the cohort's size is out of range.
    """
    sampler = find_sampler(sampling)(size=resolve_cohort_size(cohort, population), population=population)
    if not isinstance(sampler, ClientSampler):
        raise TypeError(f"cohort.sampling={sampling!r} must be a ClientSampler, it is {shorten(sampler)}")
    if type(sampler).draw is ClientSampler.draw:
        raise TypeError(f"cohort.sampling={sampling!r} has no draw(key, round_num, clients, state), which returns a round's ids")
    for method, arguments in CALLS.items():
        registry.positional_names(f"cohort.sampling={sampling!r}: {method}", getattr(sampler, method), arguments)
    return sampler


def is_known_ahead(sampler: ClientSampler) -> TypeGuard[FixedSampler | PoissonSampler]:
    """Returns whether cohorts are drawn without the run's results, so that `draw_rounds` may draw them before."""
    return isinstance(sampler, FixedSampler | PoissonSampler) and sampler.accounting != ""


@functools.partial(jax.jit, static_argnames=("sampler", "number"))
def draw_rounds(sampler: FixedSampler | PoissonSampler, key: Array, first: Array | int, number: int) -> Array:
    """Returns the cohorts [number, slots] of rounds `first`, `first + 1` ..., one after the other; a program for all keys."""
    return jax.lax.map(lambda round_num: sampler.draw(key, round_num), first + jnp.arange(number, dtype=jnp.int32))


def resolve_cohort_size(cohort: int | float | None, population: int) -> int:
    """Returns C: an int is a number of clients, a float in (0, 1] a fraction of them (rounded, at least one).

    Raises:
      ValueError: out of range.

    Example:
      >>> resolve_cohort_size(0.4, 20), resolve_cohort_size(7, 20), resolve_cohort_size(None, 20)
      (8, 7, 20)
    """
    if cohort is None:
        return population
    if isinstance(cohort, float) and 0 < cohort <= 1:
        return max(1, round(cohort * population))
    if isinstance(cohort, int) and not isinstance(cohort, bool) and 1 <= cohort <= population:
        return cohort
    raise ValueError(
        f"cohort={cohort!r} is neither a number of clients between 1 and the population's {population} nor a fraction in (0, 1]"
    )


def sample_fixed(key: Array, population: int, size: int) -> Array:
    """Draws `size` of `population` clients uniformly without replacement; [size] ids in no special order.

    Takes time O(size^2) where that is less than the population (Floyd's algorithm), else O(population).
    """
    if size == population:
        return jnp.arange(population, dtype=jnp.int32)
    if size * size > population:
        return jax.random.permutation(key, population)[:size].astype(jnp.int32)

    def draw(i, drawn):
        top = population - size + i
        candidate = jax.random.randint(jax.random.fold_in(key, i), (), 0, top + 1)
        return drawn.at[i].set(jnp.where(jnp.any(drawn == candidate), top, candidate))

    return jax.lax.fori_loop(0, size, draw, jnp.full((size,), -1, jnp.int32))


def _independent_log_moments(rate: float, exponents: np.ndarray, values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns log E[exp(a * S)] of independent draws of each client with probability `rate`."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-rate), np.log(rate) + exponents * values) @ counts


def draw_stays(key: Array, ids: Array, dropout: float | Array) -> Array:
    """Returns [C] bool, which clients do not drop out, drawn by their ids.

    Args:
      dropout: probability to drop out, of all clients or [C].
    """
    draw = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i)))(ids)
    return draw >= dropout


def select_members(ids: Array, is_member: Array, population: int, slots: int) -> Array:
    """Selects the cohort's clients of one group.

    Args:
      is_member: [C] bool, which of them are of the group.
      slots: at least min(C, the group's clients).

    Returns:
      [slots] ids, those of the group first, then N in empty slots.
    """
    first = jnp.where(is_member, ids, population)[jnp.argsort(~is_member, stable=True)]
    return jnp.pad(first, (0, max(0, slots - len(ids))), constant_values=population)[:slots]
