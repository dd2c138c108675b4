"""Whether the numbers of a pytree are finite; integers always are."""

from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any


def floating_leaves(tree: PyTree) -> list[jax.Array]:
    """Returns the leaves that can hold NaN or Inf."""
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(tree)]
    return [x for x in leaves if jnp.issubdtype(x.dtype, jnp.inexact)]


def is_finite(tree: PyTree) -> jax.Array:
    """Returns whether all elements are finite, []."""
    leaves = floating_leaves(tree)
    return jnp.all(jnp.stack([jnp.bool(True), *(jnp.all(jnp.isfinite(x)) for x in leaves)]))


def became_nonfinite(new: PyTree, old: PyTree) -> jax.Array:
    """Returns whether an element that was finite in `old` is NaN or Inf in `new`, []."""
    pairs = zip(floating_leaves(new), floating_leaves(old), strict=True)
    changed = (jnp.any(~jnp.isfinite(n) & jnp.isfinite(o)) for n, o in pairs)
    return jnp.any(jnp.stack([jnp.bool(False), *changed]))
