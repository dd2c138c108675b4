"""Aggregation: how uplinks are reduced over clients, and how the server applies the result.

Weights that are known before training (numbers of examples, uniform) allow a running sum inside the
client loop, with memory independent of the cohort's size; weights that depend on the uplinks need
the stack of them. Server momentum, FedAdam and the like are optax transformations of the mean
delta.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Array, Cohort, PyTree, Reduce

TINY = float(jnp.finfo(jnp.float32).tiny)

stack = Reduce()


def weight_by_examples(client: Cohort) -> Array:
    """Returns n_i, the number of training examples."""
    return client.examples.astype(jnp.float32)


def weight_uniformly(client: Cohort) -> Array:
    """Returns 1 for a client that took part, else 0."""
    return (client.examples > 0).astype(jnp.float32)


WEIGHT_FNS = {"samples": weight_by_examples, "uniform": weight_uniformly}


def make_weight_fn(name: str) -> Callable[[Cohort], Array]:
    """Returns the weights called "samples" or "uniform"; raises ValueError for another name."""
    if name not in WEIGHT_FNS:
        raise ValueError(f"weights={name!r} is not one of {', '.join(map(repr, WEIGHT_FNS))}")
    return WEIGHT_FNS[name]


def mean(weight_fn: Callable[[Cohort], Array] = weight_by_examples) -> Reduce:
    """Returns the weighted mean over the cohort, as a running sum; zero if no client took part.

    The part must be a difference (payload "delta"), such as net - sent: attacks, rules, compression and
    noise work on it as one. For something else take `mean()._replace(payload="")`, which they refuse.

    `weight_fn`: one client's Cohort entry -> a scalar weight, 0 for absent clients.
    """

    def map_part(part, client):
        w = weight_fn(client)
        return multiply_by_weight(part, w), w

    def finalize(total):
        return divide_by_weight(*total)

    return Reduce(map_part, "add", finalize, "delta", weight_fn)


def multiply_by_weight(tree: PyTree, w: Array) -> PyTree:
    """Returns a tree times a weight [], in the dtypes of its leaves."""
    return jax.tree.map(lambda x: (w * x).astype(x.dtype), tree)


def divide_by_weight(total: PyTree, w: Array) -> PyTree:
    """Returns a sum of weighted parts over the sum [] of their weights, in the dtypes of its leaves; zero where both are."""
    return jax.tree.map(lambda x: (x / jnp.maximum(w, TINY)).astype(x.dtype), total)


def mean_by_index(
    number: int,
    weight_fn: Callable[[Cohort], Array],
    split: Callable[[PyTree, Cohort], tuple[PyTree, Array]] = lambda part, client: part,
) -> Reduce:
    """Returns means over the clients of each index, such as a cluster, as running sums.

    Args:
      number: of indices.
      weight_fn: as in `mean`.
      split: (part, Cohort entry) -> (tree, index []); by default the part is that pair.

    Returns:
      A Reduce whose `finalize` gives (means [number, ...], weights [number], numbers of clients
      [number]); means are zero where no client came.
    """

    def map_part(part, client):
        tree, index = split(part, client)
        w = weight_fn(client) * jax.nn.one_hot(index, number)
        return jax.tree.map(lambda d: jnp.tensordot(w.astype(d.dtype), d, 0), tree), w, (w > 0).astype(jnp.float32)

    def finalize(total):
        trees, w, members = total
        return jax.tree.map(lambda d: d / append_axes(jnp.maximum(w, TINY).astype(d.dtype), d), trees), w, members

    return Reduce(map_part, "add", finalize)


def class_mean(weights: str = "uniform") -> Reduce:
    """Returns the mean of each class over clients, of uplinks (values [K, ...], counts [K]).

    With "samples" clients have the weights of their counts of the class, else 1. `finalize` gives
    (mean [K, ...], weight [K]), both zero for a class that no client has. Raises ValueError for
    other weights.
    """
    make_weight_fn(weights)  # raises for another name

    def map_part(part, client):
        del client
        values, counts = part
        held = counts > 0
        w = (counts if weights == "samples" else held).astype(values.dtype)
        return jnp.where(append_axes(held, values), append_axes(w, values) * values, 0), w

    def finalize(total):
        values, weight = total
        return values / append_axes(jnp.maximum(weight, 1), values), weight

    return Reduce(map_part, "add", finalize, "class means")


def append_axes(weights: Array, x: Array) -> Array:
    """Returns weights or a mask [C], or [C, K], with axes of 1 appended: as many axes as x [C, ...] has."""
    return weights.reshape(weights.shape + (1,) * (x.ndim - weights.ndim))


def weighted_mean(stacked: PyTree, w: Array) -> PyTree:
    """Returns the weighted mean over the leading client axis; zero where all weights are.

    Args:
      stacked: leaves [C, ...], or [C, K, ...] where `w` has classes.
      w: [C], or [C, K] for a weight per client and class; entries of weight 0 may be anything, NaN
        too.
    """
    total = jnp.maximum(jnp.sum(w, 0), TINY)

    def mean_leaf(x):
        weighted = jnp.sum(jnp.where(append_axes(w > 0, x), append_axes(w, x).astype(x.dtype) * x, 0), 0)
        return weighted / append_axes(total, weighted).astype(x.dtype)

    return jax.tree.map(mean_leaf, stacked)


def mix_clients(stacked: PyTree, w: Array) -> PyTree:
    """Returns linear combinations [R, ...] of the clients [C, ...]: sum_j w_rj x_j, for w [R, C].

    A client whose column of `w` is zero may be anything, NaN too.
    """
    is_used = jnp.any(w != 0, 0)

    def mix_leaf(x):
        x = jnp.where(append_axes(is_used, x), x, 0)
        return jnp.tensordot(w.astype(x.dtype), x, 1, precision=jax.lax.Precision.HIGHEST)

    return jax.tree.map(mix_leaf, stacked)


def scatter_clients(store: PyTree, cohort: Cohort, rows: PyTree) -> PyTree:
    """Writes the rows [C, ...] of the clients that took part into a server's per-client arrays [N, ...]."""
    ids = lambda kept: jnp.where(cohort.examples > 0, cohort.ids, len(kept))
    return jax.tree.map(lambda kept, new: kept.at[ids(kept)].set(new, mode="drop"), store, rows)


def repeat_row(tree: PyTree, number: int) -> PyTree:
    """Returns rows [number, ...] that all have the values of a tree."""
    return jax.tree.map(lambda p: jnp.broadcast_to(p, (number, *p.shape)), tree)


def take_row(rows: PyTree, i: Array) -> PyTree:
    """Returns row `i` of a server's arrays per client, cluster or edge; rows for an array of indices."""
    return jax.tree.map(lambda x: x[i], rows)


def other_pairs(mask: Array) -> Array:
    """Returns the mask [C, C] of pairs of different clients, or classes, that are both in a mask [C]."""
    return mask[:, None] & mask[None] & ~jnp.eye(len(mask), dtype=bool)


class Aggregator(NamedTuple):
    """How a server aggregates deltas.

    Attributes:
      collect: the Reduce of the delta.
      init: value -> the review's state.
      update: (value, collected delta, Cohort, state, **context) -> (value, state); an empty cohort changes nothing.
    """

    collect: Reduce
    init: Callable[[PyTree], PyTree]
    update: Callable[..., tuple[PyTree, PyTree]]


def make_aggregator(
    collect: Reduce = mean(),  # noqa: B008 - a Reduce is immutable
    review: optax.GradientTransformation = optax.identity(),  # noqa: B008
) -> Aggregator:
    """Builds an aggregator: `make_aggregator()` is FedAvg's, `make_aggregator(review=optax.trace(0.9))` FedAvgM's.

    Args:
      collect: how the delta is reduced over clients.
      review: transformation of the mean *delta* (not a gradient), such as `optax.trace`,
        `scale_by_adam` or `clip`; an optimizer such as `optax.sgd` would flip the sign.
    """
    reviewed = optax.with_extra_args_support(review)

    def update(value, delta, cohort, state, **context):
        updates, new_state = reviewed.update(delta, state, value, **context)
        new, old = (optax.apply_updates(value, updates), new_state), (value, state)
        # A float sum joins the all-reduce of the mean; `jnp.any` would need one of its own.
        has_participants = jnp.sum(cohort.examples.astype(jnp.float32)) > 0
        return optax.tree.where(has_participants, new, old)

    return Aggregator(collect, reviewed.init, update)
