"""The devices of a simulation as a mesh, and how arrays get onto it and back.

The mesh has an axis of clients. With `plan.model` a second axis has the devices that hold one network together;
these belong to one process.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.lazy_array import LazyArray

AXIS, MODEL = "clients", "model"


class Plan(NamedTuple):
    """How clients are mapped to devices.

    Attributes:
      chunk: clients that train at once on one device, as one vmap.
      devices: devices of all processes over which the clients are spread.
      model: devices that hold one network together.
    """

    chunk: int
    devices: int
    model: int = 1

    @property
    def client_shards(self) -> int:
        """The number of shards of the clients axis."""
        return self.devices // self.model

    def slots(self, clients: int) -> int:
        """Returns the slots for so many clients: a multiple of what all devices run at once."""
        at_once = self.chunk * self.client_shards
        return -(-clients // at_once) * at_once


def make_mesh(plan: Plan, among: Sequence[Any] | None = None) -> Mesh:
    """Returns a mesh over the plan's devices: the first of `among`, or of those that jax sees."""
    devices = (jax.devices() if among is None else among)[: plan.devices]
    if plan.model == 1:
        return jax.make_mesh((plan.devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=devices)
    axes, types = (AXIS, MODEL), (AxisType.Auto,) * 2
    if len({device.process_index for device in devices}) > 1:
        grouped = group_by_process(devices).reshape(plan.client_shards, plan.model)
        return Mesh(grouped, axes, axis_types=types)
    return jax.make_mesh((plan.client_shards, plan.model), axes, axis_types=types, devices=devices)


def group_by_process(devices: Sequence[Any]) -> np.ndarray:
    """Returns the devices as an array, ordered by process; the order within a process stays."""
    ordered = np.empty(len(devices), object)
    ordered[:] = sorted(devices, key=lambda device: device.process_index)
    return ordered


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def client_sharded(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays [n, ...] whose leading axis is clients."""
    return NamedSharding(mesh, PartitionSpec(AXIS))


def put(tree: PyTree, mesh: Mesh, shardings: PyTree = None) -> PyTree:
    """Puts host arrays on the devices; deferred arrays are read shard by shard.

    Args:
      shardings: a prefix of the tree; None: every device holds all of it.
    """
    shardings = replicated(mesh) if shardings is None else shardings
    is_local = all(sharding.is_fully_addressable for sharding in jax.tree.leaves(shardings))
    if is_local and not any(isinstance(leaf, LazyArray) for leaf in jax.tree.leaves(tree)):
        return jax.device_put(jax.tree.map(np.asarray, tree), shardings)
    return jax.tree.map(_put_leaf, tree, jax.tree.broadcast(shardings, tree))


def _put_leaf(leaf: Any, sharding: Any) -> Array:
    if isinstance(leaf, LazyArray):
        return leaf.put(sharding)
    array = np.asarray(leaf)
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    # Each process provides its own shards; nothing is sent between processes.
    return jax.make_array_from_callback(array.shape, sharding, lambda index: np.asarray(array[index]))


def assemble_shards(shapes: PyTree, mesh: Mesh, make_shard: Callable[[int], Sequence[np.ndarray]]) -> PyTree:
    """Returns client-sharded arrays [n, ...]; each process makes the shards of its own devices.

    Args:
      make_shard: d -> the d-th shards [n / D, ...] of all leaves.
    """
    leaves, structure = jax.tree.flatten(shapes)
    sharding, parts = client_sharded(mesh), mesh.shape[AXIS]

    def assemble(leaf: int, shape: Any) -> Array:
        size = shape.shape[0] // parts
        read = lambda index: make_shard((index[0].start or 0) // size)[leaf]
        return jax.make_array_from_callback(shape.shape, sharding, read, dtype=shape.dtype)

    return structure.unflatten([assemble(leaf, shape) for leaf, shape in enumerate(leaves)])


def fetch(tree: PyTree) -> PyTree:
    """Returns host copies, as `jax.device_get`, also of arrays sharded over this process's devices.

    Raises:
      ValueError: this process does not have all shards of an array.
    """
    return jax.device_get(jax.tree.map(_join_local_shards, tree))


def _join_local_shards(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        return leaf
    whole = np.empty(leaf.shape, leaf.dtype)
    shards = {str(shard.index): shard for shard in leaf.addressable_shards}
    if sum(shard.data.size for shard in shards.values()) != whole.size:
        raise ValueError(f"process {jax.process_index()} does not have all shards of an array {list(leaf.shape)}, {leaf.sharding}")
    for shard in shards.values():
        whole[shard.index] = np.asarray(shard.data)
    return whole
