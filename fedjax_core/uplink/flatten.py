"""Trees of deltas as vectors, and back."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, PyTree


def vector(tree: PyTree) -> Array:
    """All leaves behind one another, [D] float32."""
    return jnp.concatenate([jnp.zeros(0), *(x.reshape(-1).astype(jnp.float32) for x in jax.tree.leaves(tree))])


def length(like: PyTree) -> int:
    """D of `vector`."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(like))


def of_vector(row: Array, like: PyTree) -> PyTree:
    """The inverse of `vector`: a tree of the shapes and types of `like`."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([math.prod(x.shape) for x in leaves])
    pieces = jnp.split(row, ends[:-1]) if leaves else []
    return structure.unflatten([p.reshape(x.shape).astype(x.dtype) for p, x in zip(pieces, leaves, strict=True)])


def checked(made: Any, shape: tuple[int, ...], who: str) -> Array:
    """What a function from outside has made, whose shape everything behind it relies on.

    Args:
      made: what it returned.
      shape: wanted.
      who: the subject of the message, such as "rule 'mine'".

    Raises:
      ValueError: it is no array, or one of another shape, or of complex numbers.
    """
    found, dtype = getattr(made, "shape", None), getattr(made, "dtype", None)
    if found != shape or dtype is None or jnp.issubdtype(dtype, jnp.complexfloating):
        what = type(made).__name__ if found is None else f"an array {list(found)}"
        what += f" of {dtype}" if found == shape else ""
        raise ValueError(f"{who} returned {what}; an array {list(shape)} is wanted")
    return made


def joined(stacked: PyTree, there: Array) -> PyTree:
    """The sum over the leading axis [C], of those that are `there` [C]."""
    only = lambda x: jnp.where(there.reshape(-1, *[1] * (x.ndim - 1)), x, 0)
    return jax.tree.map(lambda x: jnp.sum(only(x), 0), stacked)


def mean_of(rows: Array, chosen: Array) -> Array:
    """[D], of the chosen [C] of rows [C, D]; zeros if there are none."""
    return joined(rows, chosen) / jnp.maximum(jnp.sum(chosen), 1)
