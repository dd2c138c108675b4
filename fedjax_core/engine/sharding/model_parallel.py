"""Shardings of a simulation's arrays, also where `plan.model` devices hold one network together.

The rules are in each network's `Model.model_axes`: the end of an array's path, and the axis that is sharded, counted
from the array's end. So they apply to whatever is nested like the network, with any leading axes: frozen and trained
parameters, deltas, moments of optimisers, client states [N, ...]. An array without a rule, or that cannot be divided
evenly, is replicated. Methods know nothing of it.
"""

import functools
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_core.algorithm import PyTree
from fedjax_core.data.row_readers import format_bytes
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.sharding.mesh import AXIS, MODEL, client_sharded, replicated
from fedjax_core.engine.simulation_spec import SimulationSpec, State
from fedjax_core.task import Axes, find_model_axis
from fedjax_core.training.metrics import nbytes

MAX_NAMED = 3  # arrays that a warning names
log = logging.getLogger("fedjax_core")


class Layout(NamedTuple):
    """Shardings, or prefixes of trees of them.

    Attributes:
      arrays: of `DeviceArrays`.
      state: of `State`.
      server: of a server's state.
      client_rows: of all groups' client states [C, ...], sharded by client; with `plan.model` per group.
      client_blocks: per group, of client states [E, ...], not sharded by client.
      view: of what one client holds; None: the compiler's choice.
    """

    arrays: Any
    state: Any
    server: Any
    client_rows: Any
    client_blocks: Sequence[Any]
    view: Any

    @property
    def is_model_parallel(self) -> bool:
        """Whether some array of a network is sharded over devices."""
        if not isinstance(self.arrays, DeviceArrays):
            return False
        leaves = jax.tree.leaves((self.arrays.tasks, self.server, self.client_blocks))
        return any(MODEL in sharding.spec for sharding in leaves)


def make_layout(spec: SimulationSpec) -> Layout:
    """Returns the shardings of a simulation's arrays under its plan."""
    mesh, whole = spec.mesh, replicated(spec.mesh)
    if spec.plan.model == 1:
        return Layout(whole, whole, whole, client_sharded(mesh), [whole] * len(spec.groups), whole)
    models, tasks = [group.task.model for group in spec.groups], spec.host_arrays.tasks
    server, clients = spec.shapes.groups[0].server, [shapes.client for shapes in spec.shapes.groups]
    for model, task, client in zip(models, tasks, clients, strict=True):
        if model.model_axes:
            _warn_of_replicated(model.name, (task, server, client), model.model_axes, spec.plan.model)
        else:
            _warn_once(
                f"plan.model={spec.plan.model}: the network {model.name!r} does not say how it is divided "
                "(model_axes), so each device holds all of it"
            )
    axes = [model.model_axes for model in models]
    of_tasks = tuple(shardings(task, own, mesh) for task, own in zip(tasks, axes, strict=True))
    of_arrays = DeviceArrays(*[cast(Any, whole)] * len(DeviceArrays._fields))._replace(tasks=of_tasks)
    of_server = shardings(server, sum(axes, ()), mesh)
    blocks = [shardings(client, own, mesh, None) for client, own in zip(clients, axes, strict=True)]
    by_client = [shardings(client, own, mesh, AXIS) for client, own in zip(clients, axes, strict=True)]
    of_clients = ((),) * len(clients) if spec.is_offloaded else tuple(blocks)
    rest: Any = whole
    of_state = State(of_server, of_clients, round=rest, key=rest, ring=rest, sampler=rest)
    return Layout(of_arrays, of_state, of_server, by_client, blocks, None)


def _warn_of_replicated(name: str, trees: PyTree, axes: Axes, devices: int) -> None:
    """Warns of arrays that have a rule and cannot be divided evenly, or if no array has a rule."""
    named, size, whole = 0, 0, {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
        shape = tuple(getattr(leaf, "shape", ()))
        keys = jax.tree_util.keystr(path, simple=True, separator="/")
        axis = find_model_axis(keys, axes)
        if axis is None:
            continue
        named += 1
        if not _is_divisible(shape, axis, devices):
            size += nbytes(leaf)
            whole["/".join(keys.split("/")[-3:])] = shape
    if not named:
        _warn_once(
            f"plan.model={devices}: no array's path ends as model_axes of the network {name!r} say, so each device holds all of it"
        )
    elif whole:
        first = ", ".join(f"{end} {list(shape)}" for end, shape in list(whole.items())[:MAX_NAMED])
        more = f" and {len(whole) - MAX_NAMED} more" if len(whole) > MAX_NAMED else ""
        _warn_once(f"plan.model={devices} does not divide evenly {first}{more}: each device holds their {format_bytes(size)} whole")


@functools.cache
def _warn_once(text: str) -> None:
    """Logs a warning, once, in process 0."""
    if jax.process_index() == 0:
        log.warning("%s", text)


def _is_divisible(shape: tuple[int, ...], axis: int, devices: int) -> bool:
    return -axis <= len(shape) and shape[axis] % devices == 0


def shardings(tree: PyTree, axes: Axes, mesh: Mesh, *front: str | None) -> PyTree:
    """Returns the sharding of each array or shape of a tree, by the rules.

    `front`: the mesh axes of leading axes that the arrays have and the tree's shapes do not, such as clients.
    """

    def shard(path: Any, leaf: Any) -> NamedSharding:
        shape = tuple(getattr(leaf, "shape", ()))
        names: list[str | None] = [None] * len(shape)
        axis = find_model_axis(jax.tree_util.keystr(path, simple=True, separator="/"), axes)
        if axis is not None and _is_divisible(shape, axis, mesh.shape[MODEL]):
            names[axis] = MODEL
        return NamedSharding(mesh, PartitionSpec(*front, *names))

    return jax.tree_util.tree_map_with_path(shard, tree)
