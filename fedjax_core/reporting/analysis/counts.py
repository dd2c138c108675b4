"""Numbers of parameters and of what is sent, from shapes alone."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_core.algorithm import Net
from fedjax_core.engine.simulation import Simulation
from fedjax_core.learning import metrics


def communication(simulation: Simulation) -> list[dict[str, Any]]:
    """What one client receives and sends in a round, array by array, from shapes alone.

    Returns:
      Rows with "group" (an architecture), "way" ("down", "up"), "part" (a network's "body" and "head", else the path's first name),
      "layer" (the path's beginning), "array" (the whole path), "shape", "dtype", "numbers", "bytes".
    """
    rows = []
    for group, shape in zip(simulation.groups, simulation.shapes.groups, strict=True):
        for way, tree in (("down", shape.sent), ("up", shape.out.uplink)):
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
    """What one client's network has and its messages hold, in numbers, from shapes alone.

    Returns:
      A row per architecture with "group", "clients" (how many), "whole", "body" and "trained" (parameters of the network, those
      without prompts and head, and those that are trained; batch statistics are not counted), "down" and "up" (of a round).
    """
    rows = []
    for group, shape in zip(simulation.groups, simulation.shapes.groups, strict=True):
        model = group.task.model
        trained, whole = jax.eval_shape(lambda key, model=model: (net := model.init(key), model.whole(net)), jax.random.key(0))
        body = {name: entry for name, entry in whole.params.items() if name not in ("prompts", "head")}
        parts = {"whole": whole.params, "body": body, "trained": trained.params, "down": shape.sent, "up": shape.out.uplink}
        numbers = {what: sum(leaf.size for leaf in jax.tree.leaves(tree)) for what, tree in parts.items()}
        rows.append({"group": group.name, "clients": len(group.clients), **numbers})
    return rows


def _part(names: Sequence[str]) -> str:
    """Of "net/params/conv1/kernel" "net/body", of "net/params/head/bias" "net/head", of "transform/key" "transform"."""
    at = next((i for i, name in enumerate(names[:-1]) if name in Net._fields), None)
    return names[0] if at is None else "/".join([*names[:at], "head" if names[at + 1] == "head" else "body"])
