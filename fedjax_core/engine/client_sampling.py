"""Who takes part: sampling and dropout.

"fixed" takes a set of C clients, uniformly at random, without replacement. "poisson" takes every client by a draw of its own with
probability C / N, so that the number of those who come varies about C; they have places enough that more than fit come with a
probability below `OVERFLOW` a round. The last of them are then left out. "cyclic" has all clients in a circle, in an order drawn
once, and takes the next C of them in every round: none comes again before its turn.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array

SAMPLINGS = ("fixed", "poisson", "cyclic")
OVERFLOW = 1e-20


def number(cohort: int | float | None, population: int) -> int:
    """C from a setting: an int is a number of clients, a float in (0, 1] a fraction of them (rounded, at least one).

    Raises:
      ValueError: out of range.

    Example:
      >>> number(0.4, 20), number(7, 20), number(None, 20)
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


def check(sampling: str, size: int, population: int) -> None:
    """Raises ValueError for a sampling that there is not, or a circle that int32 cannot count in."""
    if sampling not in SAMPLINGS:
        raise ValueError(f"sampling={sampling!r} is not one of {', '.join(map(repr, SAMPLINGS))}")
    if sampling == "cyclic" and math.lcm(population, size) >= 2**31:
        raise ValueError(
            f"sampling='cyclic': cohorts of {size} of {population} clients begin anew after {math.lcm(population, size)} turns, "
            f"which must be below 2**31; take a cohort that divides the population, such as {math.gcd(population, size)}"
        )


def sample(key: Array, population: int, size: int) -> Array:
    """A uniformly random set of `size` clients out of `population`, without replacement; [size] ids in no special order.

    The time depends on `size` alone when it is small beside the population (Floyd's algorithm), else on the population.
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


def places(expected: int, population: int) -> int:
    """Places for a Poisson cohort of `expected` clients; found by Chernoff's bound on a binomial's upper tail.

    Example:
      >>> places(50, 1_000_000), places(10, 20), places(20, 20)
      (131, 20, 20)
    """
    rate, least = expected / population, np.log(OVERFLOW)
    for number in range(expected, population):
        a = (number + 1) / population
        divergence = a * np.log(a / rate) + ((1 - a) * np.log((1 - a) / (1 - rate)) if a < 1 else 0)
        if -population * divergence <= least:
            return number
    return population


def poisson(key: Array, population: int, rate: float, size: int) -> Array:
    """Each client with probability `rate`, by a draw of its own; [size] ids in ascending order, then N for empty places."""
    chosen = jax.random.bernoulli(key, rate, (population,), mode="high")
    return jnp.nonzero(chosen, size=size, fill_value=population)[0].astype(jnp.int32)


def cyclic(key: Array, round: Array | int, population: int, size: int) -> Array:  # noqa: A002
    """The round's clients of a circle; [size] ids. The key is the same in all rounds.

    Example:
      >>> [cyclic(jax.random.key(0), round, 5, 2).tolist() for round in range(3)]
      [[0, 1], [4, 3], [2, 0]]
    """
    again = math.lcm(population, size) // size  # rounds until the circle begins with the same client
    places = (round % again * size + jnp.arange(size)) % population
    return jax.random.permutation(key, population)[places].astype(jnp.int32)


def stays(key: Array, ids: Array, dropout: float) -> Array:
    """[C] bool: which clients do not drop out; each drops with probability `dropout`, drawn by its id."""
    draw = jax.vmap(lambda i: jax.random.uniform(jax.random.fold_in(key, i)))(ids)
    return draw >= dropout


def members(ids: Array, belongs: Array, population: int, places: int) -> Array:
    """The cohort's clients of one group.

    Args:
      ids: [C] the cohort.
      belongs: [C] bool, which of them are of the group.
      population: N.
      places: at least min(C, the group's clients).

    Returns:
      [places] ids, those of the group first, then N for empty places.
    """
    first = jnp.where(belongs, ids, population)[jnp.argsort(~belongs, stable=True)]
    return jnp.pad(first, (0, max(0, places - len(ids))), constant_values=population)[:places]
