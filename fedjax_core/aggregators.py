"""Many into one: how uplinks cross the client axis, and how the server takes what arrives.

Weights known before training (sample counts, uniform) stream: a running sum inside the client loop, whatever the cohort's size.
Weights found in what came back need the stack. What needs a memory (server momentum, FedAdam) is an optax transformation of
the mean delta, so `optax.chain`, clipping, masking and schedules come for free.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_core.algorithm import Array, Cohort, PyTree, Reduce

TINY = float(jnp.finfo(jnp.float32).tiny)

stack = Reduce()


def by_examples(client: Cohort) -> Array:
    """Weight n_i: the number of training examples."""
    return client.examples.astype(jnp.float32)


def uniform(client: Cohort) -> Array:
    """Weight 1 for whoever took part."""
    return (client.examples > 0).astype(jnp.float32)


WEIGHTS = {"samples": by_examples, "uniform": uniform}


def weights(name: str) -> Callable[[Cohort], Array]:
    """The weighing called "samples" or "uniform".

    Raises:
      ValueError: another name.
    """
    if name not in WEIGHTS:
        raise ValueError(f"weights={name!r} is not one of {', '.join(map(repr, WEIGHTS))}")
    return WEIGHTS[name]


def mean(weigh: Callable[[Cohort], Array] = by_examples) -> Reduce:
    """Mean over the cohort with weights known beforehand, streamed; zero if nobody came.

    Args:
      weigh: one client's Cohort entry -> a scalar weight, 0 for absent clients.

    Returns:
      A Reduce with join "add".
    """

    def lift(part, client):
        w = weigh(client)
        return jax.tree.map(lambda x: w.astype(x.dtype) * x, part), w

    return Reduce(lift, "add", lambda total: jax.tree.map(lambda s: s / jnp.maximum(total[1], TINY).astype(s.dtype), total[0]))


def class_mean() -> Reduce:
    """For uplinks (values [K, ...], counts [K]): per class, the uniform mean over the clients that have it.

    `lower` gives (mean [K, ...], holders [K]); a class that nobody holds has mean zero and no holders.
    """

    def lift(part, client):
        del client
        values, counts = part
        held = counts > 0
        return jnp.where(_like(held, values), values, 0), held.astype(values.dtype)

    def lower(total):
        values, holders = total
        return values / _like(jnp.maximum(holders, 1), values), holders

    return Reduce(lift, "add", lower)


def _like(per_class: Array, values: Array) -> Array:
    return per_class.reshape(per_class.shape + (1,) * (values.ndim - per_class.ndim))


def weighted_mean(stacked: PyTree, w: Array) -> PyTree:
    """Mean over the leading client axis.

    Args:
      stacked: leaves [C, ...], or [C, K, ...] where `w` has classes.
      w: [C], or [C, K] for a weight per client and class; entries of weight 0 may hold anything, NaN too.

    Returns:
      Leaves without the client axis; zero where all weights are.
    """
    total = jnp.maximum(jnp.sum(w, 0), TINY)

    def of(x):
        wx = jnp.where(_like(w > 0, x), _like(w, x).astype(x.dtype) * x, 0)
        return jnp.sum(wx, 0) / total.reshape(total.shape + (1,) * (x.ndim - 1 - total.ndim)).astype(x.dtype)

    return jax.tree.map(of, stacked)


class Aggregator(NamedTuple):
    """How a server takes deltas.

    Attributes:
      collect: the Reduce of the delta.
      init: value -> the review's state.
      update: (value, collected delta, Cohort, state, **context) -> (value, state).
    """

    collect: Reduce
    init: Callable[[PyTree], PyTree]
    update: Callable[..., tuple[PyTree, PyTree]]


def aggregate(
    collect: Reduce = mean(),  # noqa: B008 - a Reduce is immutable
    weigh: Callable[..., Array] | None = None,
    review: optax.GradientTransformation = optax.identity(),  # noqa: B008
) -> Aggregator:
    """Collect, weigh, review. `aggregate()` is FedAvg, `aggregate(review=optax.trace(0.9))` FedAvgM.

    Args:
      collect: how the delta crosses the client axis.
      weigh: with collect=stack: (Cohort, **context) -> weights [C], found in what came back.
      review: transforms the mean *delta* (not a gradient): `optax.trace`, `scale_by_adam`, `clip` fit; an optimiser such as
        `optax.sgd` would flip the sign.

    Returns:
      The aggregator.
    """
    reviewed = optax.with_extra_args_support(review)

    def update(value, delta, cohort, state, **context):
        if weigh is not None:
            delta = weighted_mean(delta, weigh(cohort, **context))
        updates, state = reviewed.update(delta, state, value, **context)
        return optax.apply_updates(value, updates), state

    return Aggregator(collect, reviewed.init, update)
