"""The server's side of a wrapped method: attacks on the stack, reduction, and update."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array, Cohort, PyTree
from fedjax_core.task import count_parameters
from fedjax_core.uplink import sharded_aggregation
from fedjax_core.uplink.layout import check_shape, clamp_variances, masked_sum
from fedjax_core.uplink.transform import ClientContext
from fedjax_core.uplink.wrapped_method import WrappedMethod, WrappedServer, WrappedUplink


def update_server(
    wrapped: WrappedMethod, server: WrappedServer, collected: WrappedUplink, cohort: Cohort, key: Array
) -> tuple[WrappedServer, dict[str, Any]]:
    """Reduces the cohort's uplinks and updates the method's server state."""
    examples = jnp.where(collected.is_counted, cohort.examples, 0)
    counted = cohort._replace(examples=examples)
    memory, metrics = server.memory, dict(collected.metrics)
    if wrapped.leave_out:
        is_left_out = (cohort.examples > 0) & ~collected.is_counted
        metrics["left_out"] = jnp.sum(is_left_out).astype(jnp.float32), jnp.float32(1)
    uplink = collected.uplink
    if wrapped.reduces_vectors:
        uplink, memory, reduce_metrics = _reduce_uplinks(wrapped, collected, counted, memory, key)
        metrics |= reduce_metrics
    reported = _reported_cohort(wrapped, counted)
    new, method_metrics = wrapped.method.server_update(server.inner, uplink, reported, key)
    new = clamp_variances(new) if wrapped.transforms else new
    return WrappedServer(new, memory), {**(method_metrics or {}), **metrics}


def _reported_cohort(wrapped: WrappedMethod, counted: Cohort) -> Cohort:
    """Returns the cohort that the method's server is given."""
    sizes = [transform.reported_cohort_size for transform in wrapped.transforms]
    size = next((size for size in sizes if size is not None), None)
    if size is None:
        return counted
    examples = jnp.arange(len(counted.ids)) < size
    return counted._replace(examples=examples.astype(counted.examples.dtype))


def _reduce_uplinks(
    wrapped: WrappedMethod, collected: WrappedUplink, counted: Cohort, memory: tuple[PyTree, ...], key: Array
) -> tuple[PyTree, tuple[PyTree, ...], dict[str, Any]]:
    """Returns what the method's server gets, the transforms' new memory, and the metrics."""
    deltas, class_means = collected.deltas, collected.class_means
    if wrapped.attack_slots:
        deltas, class_means = _attack_stack(wrapped, deltas, class_means, counted, memory, key)
    layout, reduce, slot = wrapped.layout, wrapped.reduce, wrapped.reduce_slot
    reduce_key = wrapped.reduce_key(key)
    # By id: of vectors that are equally good Krum takes the first, and the cohort's order is the
    # plan's.
    order = jnp.argsort(counted.ids) if reduce.combine == "stack" else None
    delta, class_vectors, metrics = None, [], {}
    if layout.shapes.deltas:
        old_memory = wrapped.reduce_memory(memory)
        delta, new_memory, metrics = sharded_aggregation.finalize(reduce, deltas, old_memory, reduce_key, order)
        source = "the mean" if slot is None else f"{wrapped.transforms[slot].label}, reducing,"
        delta = check_shape(delta, (count_parameters(layout.shapes.deltas),), source)
        if slot is not None:
            memory = (*memory[:slot], new_memory, *memory[slot + 1 :])
    finalize_classes = jax.vmap(
        lambda combined, key: reduce.finalize(combined, (), key),
        (0 if reduce.combine == "add" else 1, 0),
    )
    for part, contributions in enumerate(class_means):
        contributions = sharded_aggregation.reorder(contributions, order)
        keys = jax.random.split(jax.random.fold_in(reduce_key, part + 1), layout.num_classes(part))
        vectors, _, class_metrics = finalize_classes(contributions, keys)
        if not layout.shapes.deltas:
            metrics |= jax.tree.map(lambda x: jnp.sum(x, 0), class_metrics)
        class_vectors.append(vectors)
    return layout.restore(delta, class_vectors, collected.class_weights), memory, metrics


def _attack_stack(
    wrapped: WrappedMethod,
    deltas: tuple,
    class_means: tuple,
    counted: Cohort,
    memory: tuple[PyTree, ...],
    key: Array,
) -> tuple[PyTree, tuple]:
    """Returns contributions to the reduction, of vectors that attackers have changed.

    Args:
      deltas: (vectors [C, D], weights [C]), or a pair of None.
      class_means: (vectors [C, K, D], weights [C, K]) of each.
    """

    def attack(vectors: Array, weights: Array, *folds: Any) -> Array:
        mask = weights > 0
        for slot in wrapped.attack_slots:
            attack_key = functools.reduce(jax.random.fold_in, folds, wrapped.transform_key(key, slot))
            attack_stack = wrapped.transforms[slot].attack_stack
            assert attack_stack is not None
            vectors = attack_stack(vectors, mask, counted.ids, attack_key)
        return jnp.where(mask[:, None], vectors, 0)

    def attack_classes(vectors: Array, weights: Array, part: int) -> Array:
        classes = jnp.arange(vectors.shape[1])
        return jax.vmap(attack, (1, 1, None, 0), 1)(vectors, weights, part, classes)

    vectors, weights = deltas
    vectors = None if vectors is None else attack(vectors, weights, 0)
    class_vectors = tuple(attack_classes(v, w, part) for part, (v, w) in enumerate(class_means, 1))
    class_weights = tuple(weights for _, weights in class_means)
    reduce_key = wrapped.reduce_key(key)
    keys = jax.vmap(lambda i: jax.random.fold_in(reduce_key, i))(counted.ids)
    reduce_memory = wrapped.reduce_memory(memory)

    def map_client(vectors, weights, client, key):
        context = ClientContext(client.ids, client.examples, key, reduce_memory)
        return wrapped.map_vectors(vectors, weights, context)

    contributions = jax.vmap(map_client)((vectors, class_vectors), (weights, class_weights), counted, keys)
    if wrapped.reduce.combine == "stack":
        return contributions
    return masked_sum(contributions, counted.examples > 0)
