"""A client's models: which there are, and what they make of examples."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_core.algorithm import TARGETS, Net, PyTree
from fedjax_core.engine.simulator import Simulation, State, View

BATCH = 256  # examples that a network is run on at once, unless the config says


def model_of(simulation: Simulation, state: State, model: str | None = None) -> str:
    """The name of a predictor that the method has: `model` itself, or what None stands for.

    Raises:
      ValueError: the method has no such predictor.
    """
    return chosen(simulation.view(state, 0), model)


def chosen(view: View, model: str | None) -> str:
    names = list(view.holds)
    if model is None:
        return "personal" if "personal" in names else names[0]
    if model not in names:
        raise ValueError(f"model {model!r} is not one that the method has: {', '.join(names)}")
    return model


def rows_at_once(simulation: Simulation) -> int:
    """Returns how many examples analyses run a network on at once: `evaluation.batch`, or `BATCH` where it is None."""
    return simulation.spec.evaluation.batch or BATCH


def outputs(view: View, model: str, x: PyTree, batch: int = BATCH, most: int | None = None) -> dict[str, np.ndarray]:
    """What a client's model makes of examples: {"logits": [n, K], "features": [n, D], ...}.

    Args:
      view: of the client.
      model: a predictor.
      x: leaves [n, ...].
      batch: rows at once.
      most: rows of the longest call of several; then all of them run one compiled program, whatever their n. None: n.
    """
    n = len(jax.tree.leaves(x)[0])
    b = min(batch, n if most is None else max(most, 1))
    parts = []
    for start in range(0, n, b):
        rows = np.minimum(np.arange(start, start + b), n - 1)  # one shape, one program
        found = view.predict(model, view.holds[model], jax.tree.map(lambda a, rows=rows: np.asarray(a)[rows], x))
        parts.append(jax.device_get({name: a for name, a in found.items() if isinstance(a, jax.Array)}))
    return {name: np.concatenate([part[name] for part in parts])[:n] for name in parts[0]}


def longest(index: Sequence[np.ndarray]) -> int:
    """Rows of the client that has most."""
    return max(map(len, index), default=0)


def nets_in(tree: PyTree) -> list[Net]:
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Net)) if isinstance(leaf, Net)]


def spaced(rows: np.ndarray, most: int) -> np.ndarray:
    """At most so many of some rows, evenly spaced."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int))]


def take(x: PyTree, rows: np.ndarray) -> PyTree:
    return jax.tree.map(lambda a: np.asarray(a)[rows], x)


def output(made: Mapping[str, Any], key: str) -> Any:
    if key not in made:
        raise ValueError(f"the model has no output {key!r}; it has {', '.join(made)}")
    return made[key]


def need_classes(simulation: Simulation, what: str) -> None:
    """Raises ValueError where an analysis reads one class of each row, and the data have other targets."""
    if (kind := simulation.spec.targets) != "classes":
        raise ValueError(f"{what} needs classes, the data have {kind}: {TARGETS[kind]}")
