"""Samples a round's clients, and their dropout.

"fixed" draws a set of C clients, uniformly at random, without replacement. "poisson" draws every client independently
with probability C / N, so that the cohort's size varies around C; more clients than slots are drawn with a probability
below `OVERFLOW` a round, and the last of them are then left out. "cyclic" arranges all clients in a circle, in an order
drawn once, and takes the next C of them in every round.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array

SAMPLINGS = ("fixed", "poisson", "cyclic")
OVERFLOW = 1e-20


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


def check_sampling(sampling: str, size: int, population: int) -> None:
    """Raises ValueError for an unknown sampling, or a cycle too long for int32."""
    if sampling not in SAMPLINGS:
        raise ValueError(f"sampling={sampling!r} is not one of {', '.join(map(repr, SAMPLINGS))}")
    if sampling == "cyclic" and math.lcm(population, size) >= 2**31:
        raise ValueError(
            f"sampling='cyclic': cohorts of {size} of {population} clients begin anew after {math.lcm(population, size)} turns, "
            f"which must be below 2**31; take a cohort that divides the population, such as {math.gcd(population, size)}"
        )


def sample_fixed(key: Array, population: int, size: int) -> Array:
    """Draws `size` of `population` clients uniformly without replacement; [size] ids in no special order.

    Takes time O(size^2) where that is less than the population (Floyd's algorithm), else O(population).
    """
    if size == population:
        return jnp.arange(population, dtype=jnp.int32)
    if size * size > population:
        return jax.random.permutation(key, population)[:size].astype(jnp.int32)

    def draw(i, chosen):
        top = population - size + i
        candidate = jax.random.randint(jax.random.fold_in(key, i), (), 0, top + 1)
        return chosen.at[i].set(jnp.where(jnp.any(chosen == candidate), top, candidate))

    return jax.lax.fori_loop(0, size, draw, jnp.full((size,), -1, jnp.int32))


def poisson_slots(expected: int, population: int) -> int:
    """Returns the slots for a Poisson cohort of `expected` clients, by Chernoff's bound on a binomial's upper tail.

    Example:
      >>> poisson_slots(50, 1_000_000), poisson_slots(10, 20), poisson_slots(20, 20)
      (131, 20, 20)
    """
    rate, least = expected / population, np.log(OVERFLOW)
    for number in range(expected, population):
        a = (number + 1) / population
        divergence = a * np.log(a / rate) + ((1 - a) * np.log((1 - a) / (1 - rate)) if a < 1 else 0)
        if -population * divergence <= least:
            return number
    return population


def sample_poisson(key: Array, population: int, rate: float, size: int) -> Array:
    """Draws each client independently with probability `rate`; [size] ids in ascending order, then N in empty slots."""
    chosen = jax.random.bernoulli(key, rate, (population,), mode="high")
    return jnp.nonzero(chosen, size=size, fill_value=population)[0].astype(jnp.int32)


def sample_cyclic(key: Array, round_num: Array | int, population: int, size: int) -> Array:
    """Returns a round's clients of the circle; [size] ids. The key is the same in all rounds.

    Example:
      >>> [sample_cyclic(jax.random.key(0), round_num, 5, 2).tolist() for round_num in range(3)]
      [[0, 1], [4, 3], [2, 0]]
    """
    period = math.lcm(population, size) // size  # rounds until the circle begins with the same client
    positions = (round_num % period * size + jnp.arange(size)) % population
    return jax.random.permutation(key, population)[positions].astype(jnp.int32)


def draw_stays(key: Array, ids: Array, dropout: float) -> Array:
    """Returns [C] bool, which clients do not drop out; each drops with probability `dropout`, drawn by its id."""
    draw = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i)))(ids)
    return draw >= dropout


def select_members(ids: Array, is_member: Array, population: int, slots: int) -> Array:
    """Selects the cohort's clients of one group.

    Args:
      ids: [C] the cohort.
      is_member: [C] bool, which of them are of the group.
      population: N.
      slots: at least min(C, the group's clients).

    Returns:
      [slots] ids, those of the group first, then N in empty slots.
    """
    first = jnp.where(is_member, ids, population)[jnp.argsort(~is_member, stable=True)]
    return jnp.pad(first, (0, max(0, slots - len(ids))), constant_values=population)[:slots]
