"""Central privacy by noise that is correlated over rounds, generated as a stream: row t of C^-1 z.

The matrices C and their papers are in `privacy/matrix_factorization.py`. The state of the stream is
part of the server's state, so that a resumed run continues the same noise. It has as many vectors
[D] as a tree has levels, as there are bands less one, or as there are buffers.

  z_t   independent Gaussian noise of round t, from the server's stream of keys
  y_t   row t of C^-1 z, which is added to the round's sum

  banded   y_t = z_t - c_1 y_(t-1) - ..., where c_0 is 1
  blt      y_t = z_t - sum_j omega_j s_j, then s_j <- theta_j s_j + y_t
  tree     the estimate of the noise on the sum of rounds 1 ... t, less that of 1 ... t - 1
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array
from fedjax_core.privacy.matrix_factorization import Strategy, honaker_variances, num_levels
from fedjax_core.task import count_parameters
from fedjax_core.uplink.dp_mechanisms import make_central, map_clipped
from fedjax_core.uplink.transform import UplinkTransform, VectorReduce


class Noise(NamedTuple):
    """State of the noise at the server; its field names are part of checkpoints.

    Attributes:
      done: [] number of rounds so far.
      kept: [vectors, D].
    """

    done: Array
    kept: Array


class NoiseStream(NamedTuple):
    """Generates correlated noise row by row.

    Attributes:
      step: (Noise, key) -> (row [D] for z of deviation 1, Noise).
    """

    num_vectors: int
    step: Callable[[Noise, Array], tuple[Array, Noise]]


def make_stream(strategy: Strategy) -> NoiseStream:
    """Returns the stream of the rows of C^-1 z."""
    if strategy.name == "tree":
        return _make_tree_stream(strategy.participation.rounds)
    decays = np.array(strategy.decays, np.float32)
    weights = np.array(strategy.scales or strategy.coefficients[1:], np.float32)

    def step(noise: Noise, key: Array) -> tuple[Array, Noise]:
        z = jax.random.normal(key, noise.kept.shape[1:])
        row = z - jnp.matmul(weights, noise.kept, precision=jax.lax.Precision.HIGHEST)
        if len(decays):
            kept = jnp.asarray(decays)[:, None] * noise.kept + row[None]
        else:
            kept = jnp.concatenate([row[None], noise.kept])[: len(weights)]
        return row, Noise(noise.done + 1, kept)

    return NoiseStream(len(weights), step)


def _make_tree_stream(rounds: int) -> NoiseStream:
    """Keeps, per level, the estimated noise of the last complete node that the current sum uses."""
    variance = jnp.asarray(honaker_variances(num_levels(rounds)), jnp.float32)

    def step(noise: Noise, key: Array) -> tuple[Array, Noise]:
        kept = noise.kept
        completed = jax.lax.population_count(noise.done & ~(noise.done + 1))  # left siblings that join

        def draw(level: Array | int) -> Array:
            return jax.random.normal(jax.random.fold_in(key, level), kept.shape[1:])

        def join_sibling(level: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            node, previous = carry
            below = (kept[level] + node) / (2 * variance[level])
            return variance[level + 1] * (draw(level + 1) + below), previous + kept[level]

        start = draw(0), jnp.zeros(kept.shape[1:])
        node, previous = jax.lax.fori_loop(0, completed, join_sibling, start)
        return node - previous, Noise(noise.done + 1, kept.at[completed].set(node))

    return NoiseStream(num_levels(rounds), step)


def make_mechanism(clip: float, noise: float, cohort: float, real: float, strategy: Strategy) -> UplinkTransform:
    """Returns the mechanism: `dp_mechanisms.gaussian` with correlated noise.

    Args:
      noise: multiplier: deviation of z over the clip times the sensitivity of C. Its epsilon is
        that of one Gaussian mechanism.
    """
    stream = make_stream(strategy)
    scale = noise * clip * strategy.sensitivity() * (cohort / real)
    round_deviations = np.asarray(strategy.round_deviations() * scale / cohort, np.float32)
    sum_deviations = np.asarray(strategy.sum_deviations() * scale / cohort, np.float32)

    def finalize(combined: Any, memory: Noise, key: Array) -> tuple[Array, Noise, dict]:
        total, num_clipped, num_clients = combined
        row, new_memory = stream.step(memory, key)
        index = jnp.minimum(memory.done, len(round_deviations) - 1)
        one = jnp.float32(1)
        metrics = {
            "privacy/clipped": (num_clipped, num_clients),
            "privacy/deviation": (jnp.asarray(round_deviations)[index], one),
            "privacy/deviation_of_sums": (jnp.asarray(sum_deviations)[index], one),
        }
        return (total + scale * row) / cohort, new_memory, metrics

    def init_memory(shapes: Any) -> Noise:
        return Noise(jnp.int32(0), jnp.zeros((stream.num_vectors, count_parameters(shapes.deltas))))

    mechanism = make_central(strategy.name, VectorReduce(map_clipped(clip), "add", finalize), cohort)
    return mechanism._replace(init_memory=init_memory)
