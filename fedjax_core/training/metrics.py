"""Metrics as (sum, weight) pairs: they merge by adding, over batches, clients and devices alike."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, PyTree

Pair = tuple[Array, Array]


def mean_of(values: Array, mask: Array) -> Pair:
    """The pair of the masked mean of `values` [B]; masked entries may hold anything, NaN too. Booleans and whole numbers are added
    up in float32, for a sum of booleans is at most True."""
    values = values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(jnp.float32)
    return jnp.sum(jnp.where(mask, values, 0)), jnp.sum(mask, dtype=values.dtype)


def accuracy(logits: Array, y: Array, mask: Array) -> Pair:
    """Top-1 accuracy of `logits` [B, K] against `y` [B] over the rows in `mask` [B]; or of [B, T, V] against tokens [B, T], where
    they are not negative."""
    there = mask if y.ndim == 1 else mask[:, None] & (y >= 0)
    return mean_of((jnp.argmax(logits, -1) == y).astype(jnp.float32), there)


def value(pair: Pair) -> Array:
    """sum / weight; 0 where nothing was weighed."""
    return pair[0] / jnp.maximum(pair[1], jnp.finfo(jnp.float32).tiny)


def nbytes(tree: PyTree) -> int:
    """Bytes of a pytree of arrays or shapes: what it costs to send it."""
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
