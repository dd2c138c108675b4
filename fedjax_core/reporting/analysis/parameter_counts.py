"""Numbers of parameters and of what is sent, from shapes alone."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_core.algorithm import Array, ClientData, Net, PyTree
from fedjax_core.engine.simulator import Group, Simulation
from fedjax_core.training import metrics
from fedjax_core.training.trained import watched


def communication(simulation: Simulation) -> list[dict[str, Any]]:
    """What one client receives and sends in a round, array by array, from shapes alone.

    Returns:
      Rows with "group" (an architecture), "way" ("down", "up"), "part" (a network's "body" and "head", else the path's first name),
      "layer" (the path's beginning), "array" (the whole path), "shape", "dtype", "numbers", "bytes".
    """
    rows = []
    for group, shape in zip(simulation.spec.bound_groups, simulation.spec.shapes.groups, strict=True):
        for way, tree in zip(("down", "up"), shape.travels, strict=True):
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
                rows.append(
                    {
                        "group": group.name,
                        "way": way,
                        "part": _part(names),
                        "layer": "/".join(names[:-1][:3] or names),
                        "array": "/".join(names),
                        "shape": "x".join(map(str, leaf.shape)) or "1",
                        "dtype": str(leaf.dtype),
                        "numbers": int(np.prod(leaf.shape, dtype=np.int64)),
                        "bytes": metrics.nbytes(leaf),
                    }
                )
    return rows


def sizes(simulation: Simulation) -> list[dict[str, Any]]:
    """What one client's network has, what the client trains, and what its messages hold, in numbers, from shapes alone.

    The running statistics of batch normalisation count in none of these but "statistics": they are carried along, not trained, so
    that of FedAvg "whole", "trained", "down" and "up" are one number. `communication` has all that travels.

    Returns:
      A row per architecture with

      - "group", "clients": its name, and how many clients have it.
      - "whole", "body": parameters of the network; those without its prompts and head.
      - "trained": what gradient steps of a client's round change, whichever part of the network or whatever beside it that is. A
        second copy of the network counts again; fine-tuning before a score does not count, nor does what the server trains.
      - "down", "up": numbers that a client receives and sends in a round.
      - "statistics": of batch normalisation, in the network.
    """
    rows = []
    for g, (group, shape) in enumerate(zip(simulation.spec.bound_groups, simulation.spec.shapes.groups, strict=True)):
        whole = jax.eval_shape(functools.partial(_whole, group), group.task.held, jax.random.key(0))
        body = {name: entry for name, entry in whole.params.items() if name not in ("prompts", "head")}
        numbers = {
            "whole": _numbers(whole.params),
            "body": _numbers(body),
            "trained": _trained(simulation, g),
            "down": _numbers(_parameters(shape.travels[0])),
            "up": _numbers(_parameters(shape.travels[1])),
            "statistics": _numbers(whole.stats),
        }
        rows.append({"group": group.name, "clients": len(group.clients), **numbers})
    return rows


def _whole(group: Group, held: PyTree, key: Array) -> Net:
    model = group.task.bind(held, 0).model
    return model.whole(model.init(key))


def _trained(simulation: Simulation, g: int) -> int:
    """What a client of a group trains in a round, found by tracing its update."""
    group, shape, data = simulation.spec.bound_groups[g], simulation.spec.shapes.groups[g], simulation.spec.data

    def update(held, train, index, number, sent, client, key):
        algorithm = group.build(group.task.bind(held, number))
        return algorithm.client_update(sent, client, ClientData(train, index, number, simulation.spec.episodes), key)

    index, number = jax.ShapeDtypeStruct((max(map(len, data.train_index)),), np.int32), jax.ShapeDtypeStruct((), np.int32)
    with watched() as watch:
        jax.eval_shape(update, group.task.held, data.train, index, number, shape.sent, shape.client, jax.random.key(0))
    return watch.numbers


def _numbers(tree: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _parameters(tree: PyTree) -> PyTree:
    """A tree whose networks have no statistics."""
    is_net = lambda x: isinstance(x, Net)
    return jax.tree.map(lambda x: x.params if is_net(x) else x, tree, is_leaf=is_net)


def _part(names: Sequence[str]) -> str:
    """Of "net/params/conv1/kernel" "net/body", of "net/params/head/bias" "net/head", of "transform/key" "transform"."""
    at = next((i for i, name in enumerate(names[:-1]) if name in Net._fields), None)
    return names[0] if at is None else "/".join([*names[:at], "head" if names[at + 1] == "head" else "body"])
