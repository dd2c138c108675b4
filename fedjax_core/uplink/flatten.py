"""Uplinks as vectors and back, masked sums, and running statistics among what is sent."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, Net, PyTree

VARIANCE = "var"  # the last key of a running variance's path, in Flax modules and in ours


def flatten(tree: PyTree) -> Array:
    """Returns all leaves concatenated, [D] float32."""
    leaves = (x.reshape(-1).astype(jnp.float32) for x in jax.tree.leaves(tree))
    return jnp.concatenate([jnp.zeros(0), *leaves])


def unflatten(vector: Array, shapes: PyTree) -> PyTree:
    """Inverts `flatten`: returns a tree with the shapes and dtypes of `shapes`."""
    leaves, structure = jax.tree.flatten(shapes)
    ends = np.cumsum([math.prod(x.shape) for x in leaves])
    pieces = zip(jnp.split(vector, ends[:-1]) if leaves else [], leaves, strict=True)
    return structure.unflatten([piece.reshape(x.shape).astype(x.dtype) for piece, x in pieces])


def check_shape(value: Any, shape: tuple[int, ...], source: str) -> Array:
    """Returns the result of a user's function, if it is a real array of the expected shape.

    Args:
      value: the result.
      shape: the expected shape.
      source: subject of the message, such as "rule 'mine'".

    Raises:
      ValueError: it is no array, has another shape, or is complex.
    """
    actual, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if actual != shape or dtype is None or jnp.issubdtype(dtype, jnp.complexfloating):
        what = type(value).__name__ if actual is None else f"an array {list(actual)}"
        what += f" of {dtype}" if actual == shape else ""
        raise ValueError(f"{source} returned {what}; expected a real array {list(shape)}")
    return value


def masked_sum(stacked: PyTree, mask: Array) -> PyTree:
    """Returns the sums over the leading axis [C] of the entries that the mask [C] selects."""

    def sum_leaf(x: Array) -> Array:
        return jnp.sum(jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, 0), 0)

    return jax.tree.map(sum_leaf, stacked)


def masked_mean(vectors: Array, mask: Array) -> Array:
    """Returns the mean [D] of the vectors [C, D] that the mask selects; zeros if there are none."""
    return masked_sum(vectors, mask) / jnp.maximum(jnp.sum(mask), 1)


def _is_net(x: Any) -> bool:
    return isinstance(x, Net)


def has_statistics(tree: PyTree) -> bool:
    """Returns whether a network in the tree has running statistics."""
    nets = [x for x in jax.tree.leaves(tree, is_leaf=_is_net) if _is_net(x)]
    return any(jax.tree.leaves(net.stats) for net in nets)


def clamp_variances(tree: PyTree) -> PyTree:
    """Returns the tree with all running variances of networks at least 0.

    Attacks and majority votes can make them negative. States of optax transformations are left as
    they are: the momentum of a variance is negative wherever the variance falls.
    """

    def clamp(path, leaf):
        last = getattr(path[-1], "key", getattr(path[-1], "name", None)) if path else None
        return jnp.maximum(leaf, 0) if last == VARIANCE else leaf

    def clamp_net(x):
        return x._replace(stats=jax.tree.map_with_path(clamp, x.stats)) if _is_net(x) else x

    def is_whole(x):
        return _is_net(x) or type(x).__module__.partition(".")[0] == "optax"

    return jax.tree.map(clamp_net, tree, is_leaf=is_whole)
