"""How networks are divided over devices: where arrays lie if `plan.model` devices hold a network together.

The rules stand beside each network, `Model.model_axes`: an end of an array's path, and the axis that is divided, counted from the
array's end. So they hold for whatever is nested like the network, with any axes in front: frozen and trained parameters, deltas,
moments of optimisers, states of clients [N, ...]. What no rule is for stays whole on each device, and so does an array that cannot
be divided evenly. Methods know nothing of it.
"""

import functools
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_core.algorithm import PyTree
from fedjax_core.data.row_readers import format_bytes
from fedjax_core.engine import client_loop
from fedjax_core.engine.check import Shapes
from fedjax_core.engine.federation import Federation, Held, State
from fedjax_core.task import Axes, axis_of

FEW = 3  # arrays that a line names
log = logging.getLogger("fedjax_core")


class Layout(NamedTuple):
    """Shardings, or prefixes of trees of them.

    Attributes:
      held: of `Held`.
      state: of `State`.
      server: of a server's state.
      rows: of all groups' client states [C, ...], divided as clients are.
      blocks: per group, of client states [E, ...] that every part of the clients has whole.
      view: of what one client holds; None: as the compiler likes.
    """

    held: Any
    state: Any
    server: Any
    rows: Any
    blocks: Sequence[Any]
    view: Any


def layout(fed: Federation, held: Held, shapes: Shapes) -> Layout:
    """Where all that a simulation has lies.

    Args:
      fed: with its plan.
      held: what all rounds read, on the host.
      shapes: of states.
    """
    whole, on = client_loop.replicated(fed.mesh), fed.mesh
    if fed.plan.model == 1:
        return Layout(whole, whole, whole, client_loop.spread(on), [whole] * len(fed.groups), whole)
    models = [group.task.model for group in fed.groups]
    axes = [model.model_axes for model in models]
    for model in models:
        if not model.model_axes:
            what = f"the network {model.name!r} does not say how it is divided (model_axes)"
            _tell(f"plan.model={fed.plan.model}: {what}, so each device holds all of it")
    for task, client, model in zip(held.tasks, (group.client for group in shapes.groups), models, strict=True):
        if model.model_axes:
            _kept_whole(model.name, (task, shapes.groups[0].server, client), model.model_axes, fed.plan.model)
    tasks = tuple(shardings(task, own, on) for task, own in zip(held.tasks, axes, strict=True))
    everything = Held(*[cast(Any, whole)] * len(Held._fields))._replace(tasks=tasks)
    server = shardings(shapes.groups[0].server, sum(axes, ()), on)
    states = [group.client for group in shapes.groups]
    blocks, rows = ([shardings(*each, on, front) for each in zip(states, axes, strict=True)] for front in (None, client_loop.AXIS))
    clients = ((),) * len(states) if fed.on_host else tuple(blocks)
    return Layout(everything, State(server, clients, *[cast(Any, whole)] * 2), server, rows, blocks, None)


def divided(lies: Layout) -> bool:
    """Whether there is an array that is."""
    if not isinstance(lies.held, Held):
        return False
    places = jax.tree.leaves((lies.held.tasks, lies.server, lies.blocks))
    return any(client_loop.MODEL in place.spec for place in places)


def _kept_whole(name: str, trees: PyTree, axes: Axes, devices: int) -> None:
    """Says which arrays a rule names and cannot divide, or that the rules name none."""
    named, size, whole = 0, 0, {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(trees):
        shape, where = tuple(getattr(leaf, "shape", ())), jax.tree_util.keystr(path, simple=True, separator="/")
        axis = axis_of(where, axes)
        if axis is None:
            continue
        named += 1
        if not _divides(shape, axis, devices):
            size += int(np.prod(shape)) * np.dtype(leaf.dtype).itemsize
            whole["/".join(where.split("/")[-3:])] = shape
    if not named:
        _tell(
            f"plan.model={devices}: no array's path ends as model_axes of the network {name!r} say, so each device holds all of it"
        )
    elif whole:
        first = ", ".join(f"{end} {list(shape)}" for end, shape in list(whole.items())[:FEW])
        more = f" and {len(whole) - FEW} more" if len(whole) > FEW else ""
        _tell(f"plan.model={devices} does not divide evenly {first}{more}: each device holds their {format_bytes(size)} whole")


@functools.cache
def _tell(text: str) -> None:
    """Says it once, in process 0."""
    if jax.process_index() == 0:
        log.warning("%s", text)


def _divides(shape: tuple[int, ...], axis: int, devices: int) -> bool:
    return -axis <= len(shape) and shape[axis] % devices == 0


def shardings(tree: PyTree, axes: Axes, on: Mesh, *front: str | None) -> PyTree:
    """One for each array or shape of a tree, by the rules; `front` names axes that stand before it, such as that of clients."""

    def one(path: Any, leaf: Any) -> NamedSharding:
        shape = tuple(getattr(leaf, "shape", ()))
        names: list[str | None] = [None] * len(shape)
        axis = axis_of(jax.tree_util.keystr(path, simple=True, separator="/"), axes)
        if axis is not None and _divides(shape, axis, on.shape[client_loop.MODEL]):
            names[axis] = client_loop.MODEL
        return NamedSharding(on, PartitionSpec(*front, *names))

    return jax.tree_util.tree_map_with_path(one, tree)
