"""Robust rules on several devices, each of which holds some of the coordinates.

Without it every device would hold all vectors of the cohort, C * D numbers, and compute the same.
Most of a rule is coordinate-wise; sums over coordinates, such as squared distances, go through
`sum_over_devices`, so that a rule is written once for one device and for many.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.uplink.transform import VectorReduce

TILE = 1024  # a device's coordinates are a multiple: other sizes take XLA for TPUs 50 times as long to compile
_mesh: contextvars.ContextVar[tuple[Mesh, str] | None] = contextvars.ContextVar("mesh", default=None)
_axis: contextvars.ContextVar[str | None] = contextvars.ContextVar("axis", default=None)


@contextlib.contextmanager
def shard_coordinates(mesh: Mesh, axis: str) -> Iterator[None]:
    """Reductions traced inside shard their coordinates along an axis of the mesh."""
    with _set(_mesh, (mesh, axis) if mesh.shape[axis] > 1 else None):
        yield


@contextlib.contextmanager
def _set(variable: contextvars.ContextVar, value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def sum_over_devices(partial_sums: Array) -> Array:
    """Returns sums over all coordinates, given those over this device's coordinates."""
    axis = _axis.get()
    return partial_sums if axis is None else jax.lax.psum(partial_sums, axis)


def row_norms(vectors: Array) -> Array:
    """Returns the Euclidean norms [C] of vectors [C, D]."""
    return jnp.sqrt(sum_over_devices(jnp.sum(jnp.square(vectors), 1)))


def reorder(stacks: PyTree, order: Array | None) -> PyTree:
    """Returns stacks [C, ...] in the order of the indices [C]; unchanged for None."""
    return stacks if order is None else jax.tree.map(lambda x: x[order], stacks)


def finalize(
    reduce: VectorReduce, combined: PyTree, memory: PyTree, key: Array, order: Array | None = None
) -> tuple[Array, PyTree, dict]:
    """Calls `reduce.finalize` on reordered stacks, sharded where that is possible."""
    placement = _mesh.get()
    if placement is None or not reduce.shardable:
        return reduce.finalize(reorder(combined, order), memory, key)
    mesh, axis = placement
    devices, size = mesh.shape[axis], combined[0].shape[1]
    per_device = -(-size // (devices * TILE)) * TILE

    def pad(x: Array) -> Array:
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, devices * per_device - size)])

    def take_shard(x: Array) -> Array:
        start = jax.lax.axis_index(axis) * per_device
        return jax.lax.dynamic_slice_in_dim(pad(x), start, per_device)

    def gather(x: Array) -> Array:
        return jax.lax.all_gather(x, axis, tiled=True)

    def finalize_shard(combined, memory, key, order):
        vectors, weights = combined
        # From all coordinates of some clients to some coordinates of all clients.
        vectors = jax.lax.all_to_all(pad(vectors), axis, 1, 0, tiled=True)
        stacks = reorder((vectors, gather(weights)), order)
        with _set(_axis, axis):
            vector, memory, metrics = reduce.finalize(stacks, jax.tree.map(take_shard, memory), key)
        return gather(vector)[:size], jax.tree.map(lambda x: gather(x)[:size], memory), metrics

    clients, replicated = PartitionSpec(axis), PartitionSpec()
    manual: dict[str, Any] = {} if mesh.axis_names == (axis,) else {"axis_names": {axis}}
    in_specs = clients, replicated, replicated, replicated
    sharded = jax.shard_map(finalize_shard, mesh=mesh, in_specs=in_specs, out_specs=replicated, check_vma=False, **manual)
    return sharded(combined, memory, key, order)
