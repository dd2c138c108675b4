"""Distances among the vectors of a cohort."""

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array
from fedjax_core.uplink.sharded_aggregation import lengths, total


def squared(rows: Array, there: Array) -> Array:
    """[C, C] squared distances of rows [C, D]; infinite from and to those that are not there, and where they overflow.

    By one product of matrices, of the rows less that of the median length: an honest one's if most are, so that no attacker's
    length decides over the rounding of the others' distances.
    """
    sizes = jnp.where(there, lengths(rows), jnp.inf)
    middle = jnp.argsort(sizes)[jnp.maximum(jnp.sum(there) - 1, 0) // 2]
    away = rows - rows[middle][None]
    gram = total(jnp.matmul(away, away.T, precision=jax.lax.Precision.HIGHEST))
    gram = (gram + gram.T) / 2  # two vectors are as far from one another either way, to the last bit
    own = jnp.diagonal(gram)
    apart = jnp.maximum(own[:, None] + own[None] - 2 * gram, 0)
    apart = jnp.where(jnp.eye(len(rows), dtype=bool), 0, apart)
    return jnp.where(there[:, None] & there[None] & jnp.isfinite(apart), apart, jnp.inf)


def nearest(apart: Array, there: Array, number: Array) -> Array:
    """[C, C] 1 for each of the `number` rows nearest to a row, itself first; 0 for the others, and of rows that are not there."""
    own = jnp.where(jnp.eye(len(apart), dtype=bool), -1, apart)
    rank = jnp.argsort(jnp.argsort(own, 1, stable=True), 1, stable=True)
    near = (rank < number) & there[:, None] & there[None]
    return near.astype(jnp.float32)
