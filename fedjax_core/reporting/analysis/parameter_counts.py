"""Numbers of parameters and sizes of messages, from shapes."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_core.algorithm import Array, ClientData, Net, PyTree, is_net
from fedjax_core.engine.simulator import Group, Simulator
from fedjax_core.task import count_parameters
from fedjax_core.training import metrics
from fedjax_core.training.param_partition import count_trainable


def count_communication(simulation: Simulator) -> list[dict[str, Any]]:
    """Lists the arrays that one client receives and sends in a round, from shapes.

    Rows have "group" (an architecture), "way" ("down", "up"), "part" (a network's "body" and "head",
    else the path's first name), "layer" (the path's beginning), "array" (the whole path), "shape",
    "dtype", "numbers", "bytes".
    """
    rows = []
    for group, shape in zip(simulation.spec.bound_groups, simulation.spec.shapes.groups, strict=True):
        for way, tree in zip(("down", "up"), shape.wire, strict=True):
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


def count_sizes(simulation: Simulator) -> list[dict[str, Any]]:
    """Counts parameters of a client's network, its training and its messages, by architecture.

    Running statistics of batch normalisation count only in "statistics", so "whole", "trained",
    "down" and "up" are equal for FedAvg. `count_communication` lists everything that is sent.

    Returns:
      Rows of "group" (name), "clients" (their number), and

      - "whole", "body": parameters of the network; without prompts and head.
      - "trained": those that gradient steps of a client's round change. A second copy of the
        network counts again; fine-tuning before evaluation and the server's training do not count.
      - "down", "up": parameters that a client receives and sends in a round.
      - "statistics": of batch normalisation.
    """
    rows = []
    for g, (group, shape) in enumerate(zip(simulation.spec.bound_groups, simulation.spec.shapes.groups, strict=True)):
        whole = jax.eval_shape(functools.partial(_init_whole, group), group.task.bound_arrays, jax.random.key(0))
        body = {name: entry for name, entry in whole.params.items() if name not in ("prompts", "head")}
        numbers = {
            "whole": count_parameters(whole.params),
            "body": count_parameters(body),
            "trained": _count_trained(simulation, g),
            "down": count_parameters(_parameters(shape.wire[0])),
            "up": count_parameters(_parameters(shape.wire[1])),
            "statistics": count_parameters(whole.stats),
        }
        rows.append({"group": group.name, "clients": len(group.clients), **numbers})
    return rows


def _init_whole(group: Group, held: PyTree, key: Array) -> Net:
    model = group.task.bind(held, 0).model
    return model.full_net(model.init(key))


def _count_trained(simulation: Simulator, g: int) -> int:
    """Counts what a client of a group trains in a round, by tracing its update."""
    group, shape, data = simulation.spec.bound_groups[g], simulation.spec.shapes.groups[g], simulation.spec.data

    def update(held, train, index, number, sent, client, key):
        algorithm = group.build(group.task.bind(held, number))
        return algorithm.client_update(sent, client, ClientData(train, index, number, simulation.spec.episodes), key)

    index, number = jax.ShapeDtypeStruct((max(map(len, data.train_index)),), np.int32), jax.ShapeDtypeStruct((), np.int32)
    with count_trainable() as counter:
        jax.eval_shape(update, group.task.bound_arrays, data.train, index, number, shape.sent, shape.client, jax.random.key(0))
    return counter.count


def _parameters(tree: PyTree) -> PyTree:
    """Returns a tree whose networks have no statistics."""
    return jax.tree.map(lambda x: x.params if is_net(x) else x, tree, is_leaf=is_net)


def _part(names: Sequence[str]) -> str:
    """Returns "net/body" of "net/params/conv1/kernel", "transform" of "transform/key"."""
    at = next((i for i, name in enumerate(names[:-1]) if name in Net._fields), None)
    return names[0] if at is None else "/".join([*names[:at], "head" if names[at + 1] == "head" else "body"])
