"""Central privacy by noise that is correlated over rounds, drawn as a stream: row t of C^-1 z from what earlier rounds have left.

`privacy/matrix_factorization.py` has the matrices C and their papers. What is kept from round to round lies in the server's
state, so a resumed run goes on with the noise that it had: as many vectors [D] as a tree has levels, as there are bands less one,
or buffers.

  z_t   independent Gaussian noise of the round, from the server's stream of keys
  y_t   row t of C^-1 z, what is added to the round's sum

banded: y_t = z_t - c_1 y_(t-1) - ... (c_0 is 1); blt: y_t = z_t - sum_j omega_j s_j, then s_j becomes theta_j s_j + y_t; tree: the
estimate of the sum of rounds 1 ... t less that of 1 ... t - 1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array
from fedjax_core.privacy.matrix_factorization import Strategy, honaker, levels
from fedjax_core.uplink.dp_mechanisms import central, lifted
from fedjax_core.uplink.flatten import length
from fedjax_core.uplink.transform import Link, Reduction


class Noise(NamedTuple):
    """What the server keeps of the noise.

    Attributes:
      done: [] rounds so far.
      kept: [vectors, D].
    """

    done: Array
    kept: Array


class Stream(NamedTuple):
    """Noise row by row.

    Attributes:
      vectors: that are kept.
      step: (Noise, key) -> (row [D] for z of deviation 1, Noise).
    """

    vectors: int
    step: Callable[[Noise, Array], tuple[Array, Noise]]


def stream(strategy: Strategy) -> Stream:
    """The rows of C^-1 z."""
    if strategy.name == "tree":
        return _tree(strategy.participation.rounds)
    decays, weights = np.array(strategy.decays, np.float32), np.array(strategy.scales or strategy.coefficients[1:], np.float32)

    def step(noise: Noise, key: Array) -> tuple[Array, Noise]:
        row = jax.random.normal(key, noise.kept.shape[1:]) - jnp.matmul(weights, noise.kept, precision=jax.lax.Precision.HIGHEST)
        if len(decays):
            kept = jnp.asarray(decays)[:, None] * noise.kept + row[None]
        else:
            kept = jnp.concatenate([row[None], noise.kept])[: len(weights)]
        return row, Noise(noise.done + 1, kept)

    return Stream(len(weights), step)


def _tree(rounds: int) -> Stream:
    """Kept is, of each level, the estimate of the noise of the last complete node that stands for itself in the sum so far."""
    variance = jnp.asarray(honaker(levels(rounds)), jnp.float32)

    def step(noise: Noise, key: Array) -> tuple[Array, Noise]:
        kept, ended = (
            noise.kept,
            jax.lax.population_count(noise.done & ~(noise.done + 1)),
        )  # nodes on the left that are complete now
        draw = lambda level: jax.random.normal(jax.random.fold_in(key, level), kept.shape[1:])

        def joined(level: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            node, before = carry
            below = (kept[level] + node) / (2 * variance[level])
            return variance[level + 1] * (draw(level + 1) + below), before + kept[level]

        node, before = jax.lax.fori_loop(0, ended, joined, (draw(0), jnp.zeros(kept.shape[1:])))
        return node - before, Noise(noise.done + 1, kept.at[ended].set(node))

    return Stream(levels(rounds), step)


def link(clip: float, noise: float, cohort: float, real: float, strategy: Strategy) -> Link:
    """The mechanism: as `dp_mechanisms.gaussian`, with other noise.

    Args:
      clip: norm.
      noise: multiplier: deviation of z over the clip times the sensitivity of C. Its epsilon is that of one Gaussian mechanism.
      cohort, real: see `dp_mechanisms.py`.
      strategy: C.
    """
    rows, scale = stream(strategy), noise * clip * strategy.sensitivity() * (cohort / real)
    of_rounds, of_sums = (np.asarray(found() * scale / cohort, np.float32) for found in (strategy.of_rounds, strategy.of_sums))

    def combine(joined: Any, memory: Noise, key: Array) -> tuple[Array, Noise, dict]:
        total, long, number = joined
        row, after = rows.step(memory, key)
        one, at = jnp.float32(1), jnp.minimum(memory.done, len(of_rounds) - 1)
        deviations = {"deviation": jnp.asarray(of_rounds)[at], "deviation_of_sums": jnp.asarray(of_sums)[at]}
        said = {"privacy/clipped": (long, number)} | {f"privacy/{name}": (value, one) for name, value in deviations.items()}
        return (total + scale * row) / cohort, after, said

    made = central(strategy.name, Reduction(lifted(clip), "add", combine), cohort)
    return made._replace(memory=lambda like: Noise(jnp.int32(0), jnp.zeros((rows.vectors, length(like.deltas)))))
