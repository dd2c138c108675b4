"""A rule on several devices: each has all clients' values of its part of the coordinates.

A rule that wants the cohort's vectors together would otherwise have all of them, C * D numbers, on every device, and each would
compute the same. Coordinate by coordinate nothing else is needed; sums over all coordinates, such as squared distances, are added
up by `total`, so that a rule that uses it where it sums is written once for one device and for many.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.uplink.transform import Reduction

TILE = 1024  # a device's coordinates are a multiple: XLA compiles for TPUs some fifty times as long for other numbers
_devices: contextvars.ContextVar[tuple[Mesh, str] | None] = contextvars.ContextVar("devices", default=None)
_axis: contextvars.ContextVar[str | None] = contextvars.ContextVar("axis", default=None)


@contextlib.contextmanager
def over(mesh: Mesh, axis: str) -> Iterator[None]:
    """What is traced inside divides coordinates among the devices along an axis of the mesh."""
    with _set(_devices, (mesh, axis) if mesh.shape[axis] > 1 else None):
        yield


@contextlib.contextmanager
def _set(variable: contextvars.ContextVar, value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def total(parts: Array) -> Array:
    """Sums over all coordinates, of sums over those that are here."""
    axis = _axis.get()
    return parts if axis is None else jax.lax.psum(parts, axis)


def lengths(rows: Array) -> Array:
    """[C] of rows [C, D]."""
    return jnp.sqrt(total(jnp.sum(jnp.square(rows), 1)))


def placed(stacks: PyTree, order: Array | None) -> PyTree:
    """Stacks [C, ...] with their rows in that order [C]; as they are without one."""
    return stacks if order is None else jax.tree.map(lambda x: x[order], stacks)


def combine(
    reduction: Reduction, joined: PyTree, memory: PyTree, key: Array, order: Array | None = None
) -> tuple[Array, PyTree, dict]:
    """`reduction.combine` of stacks `placed` in that order, divided where the reduction and the devices allow it."""
    found = _devices.get()
    if found is None or not reduction.divides:
        return reduction.combine(placed(joined, order), memory, key)
    mesh, axis = found
    number, length = mesh.shape[axis], joined[0].shape[1]
    each = -(-length // (number * TILE)) * TILE

    def of_part(joined, memory, key, order):
        gathered = lambda x: jax.lax.all_gather(x, axis, tiled=True)
        padded = lambda x: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, number * each - length)])
        part = lambda x: jax.lax.dynamic_slice_in_dim(padded(x), jax.lax.axis_index(axis) * each, each)
        rows, weights = joined
        rows = jax.lax.all_to_all(padded(rows), axis, 1, 0, tiled=True)  # of some clients all -> of all clients a part
        with _set(_axis, axis):
            made, new, said = reduction.combine(placed((rows, gathered(weights)), order), jax.tree.map(part, memory), key)
        return gathered(made)[:length], jax.tree.map(lambda x: gathered(x)[:length], new), said

    clients, everywhere = PartitionSpec(axis), PartitionSpec()
    manual: dict[str, Any] = {} if mesh.axis_names == (axis,) else {"axis_names": {axis}}
    inputs = clients, everywhere, everywhere, everywhere
    divided = jax.shard_map(of_part, mesh=mesh, in_specs=inputs, out_specs=everywhere, check_vma=False, **manual)
    return divided(joined, memory, key, order)
