"""A model that is more than one network, in one file: what its method predicts with, and what builds the method's predictor again.

    save_predictor("model.safetensors", view, "personal", examples, description, experiment.method)
    predictor = load_predictor("model.safetensors", experiment.method)
    outputs = predictor.apply(predictor.arrays, images)

FedRoD's second head, FedCAC's parameters without a `Net`, pFedPT's frame: such a model is the (sent, client state) that a method's
predictor reads (`Algorithm.predict`). The file has their arrays under "held", those that nobody trains under "frozen", and in its
description the method's name and options and the network. Loading builds the method anew and runs no code from the file.
"""

import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import Algorithm, Array, Net, PyTree
from fedjax_core.engine.client_view import View
from fedjax_core.storage.export_model import (
    EXACT,
    Builders,
    build_described_model,
    check_shapes,
    described_in,
    named_arrays,
    refuse_foreign_network,
    restore_tree,
)
from fedjax_core.storage.json_files import check, plain
from fedjax_core.storage.safetensors_files import read_tensors, write_tensors
from fedjax_core.task import PARTS, Task, of_model, part_of
from fedjax_core.training import adapters, local_training
from fedjax_core.training.local_batch_norm import local_statistics

HOLDS = "predictor"  # what a description says that its file holds
FIELDS = ("method", "options", "predictor", "population", "round", "train", "adapter")
_FORM = {
    **dict.fromkeys(("method", "predictor", "train"), str),
    **dict.fromkeys(("population", "round"), int),
    "options": dict,
    "adapter": (str, type(None)),
}
Methods = Callable[[str], Callable[..., Algorithm]]  # a method's builder by its name


class Predictor(NamedTuple):
    """Attributes:
    apply: (arrays, x) -> {"logits": [B, K], "features": [B, D]}; not compiled.
    arrays: {"held": (sent, client state), "frozen": a `Net` or ()}.
    description: as it was saved; lists stand for tuples and lists.
    """

    apply: Callable[[PyTree, PyTree], dict[str, Array]]
    arrays: PyTree
    description: dict[str, Any]


def save_predictor(
    path: str | os.PathLike,
    view: View,
    name: str,
    x: PyTree,
    description: Mapping[str, Any],
    methods: Methods,
    builders: Builders = refuse_foreign_network,
) -> None:
    """Writes what one of a method's models predicts with, atomically.

    Args:
      path: the file.
      view: of any client if the model is "global".
      name: the model's name.
      x: some examples: what is to be saved must predict on them as the run does, when it is built again.
      description: as in `export_model.save_model`, of the network alone; also "method", its "options", "population": N, "round",
        and
        "train" and "adapter" as configs have them.
      methods: a method's builder by its name.
      builders: of networks that are not this library's.

    Raises:
      ValueError: a field is missing, or the method cannot be built from these fields or then predicts something else.
      OSError: the file cannot be written.
    """
    told = plain({**description, "predictor": name, "holds": HOLDS})
    held = view.holds[name]
    partly = told.get("train") != "all" or told.get("adapter") is not None
    arrays = named_arrays({"held": held, "frozen": view.task.frozen if partly else ()})
    again = _build_predictor(told, arrays, methods, builders, "the description")
    wanted, found = (np.asarray(outputs["logits"], np.float64) for outputs in (view.predict(name, held, x), _predict(again, x)))
    if wanted.shape != found.shape or not np.abs(found - wanted).max() <= EXACT * max(np.abs(wanted).max(), 1e-30):
        raise ValueError(f"the model {name!r} of {told['method']} predicts something else when it is built again; it is not saved")
    write_tensors(path, arrays, {"description": json.dumps(told, allow_nan=False)})


def load_predictor(path: str | os.PathLike, methods: Methods, builders: Builders = refuse_foreign_network) -> Predictor:
    """Reads what `save_predictor` wrote.

    Args:
      path: the file.
      methods: a method's builder by its name.
      builders: of networks that are not this library's.

    Raises:
      ValueError: the file is damaged, or is no such model, or its method is not there or takes other options; the message names it.
      OSError: it cannot be read.
    """
    arrays, metadata = read_tensors(path)
    description = described_in(metadata, path)
    if description.get("holds") != HOLDS:
        raise ValueError(f"{path} holds one network: load_model reads it")
    return _build_predictor(description, arrays, methods, builders, str(path))


def _predict(predictor: Predictor, x: PyTree) -> dict[str, Array]:
    return jax.jit(predictor.apply)(predictor.arrays, x)


def _build_predictor(
    description: dict[str, Any], arrays: Mapping[str, Any], methods: Methods, builders: Builders, where: str
) -> Predictor:
    """The predictor of a description, with the arrays that are saved under their names."""
    network = build_described_model(description, where, builders)
    if missing := [field for field in FIELDS if field not in description]:
        raise ValueError(f"{where} lacks {', '.join(missing)}; a saved predictor needs {', '.join(FIELDS)}")
    check(description, _FORM, f"the description of {where}")
    registry.choose("train", description["train"], PARTS)
    shape = tuple(description["input_shape"])
    settings = {"classes": description["classes"], "population": description["population"], "shape": shape}
    frozen = _unflatten({name: arrays[name] for name in arrays if name.startswith("frozen.")}).get("frozen", {})
    untrained = Net(frozen.get("params", {}), frozen.get("stats", {})) if frozen else ()
    task = of_model(network, **settings)
    if isinstance(untrained, Net):
        entries, adapter = PARTS[description["train"]] or (), description["adapter"]
        if adapter is None:
            task = part_of(network, untrained, description["train"], **settings)
        else:
            task = adapters.adapted(network, untrained, adapters.parse(adapter), entries, **settings)
    builder, options = methods(description["method"]), _lists_to_tuples(description["options"])
    what = f"method {description['method']!r}"
    registry.check(what, builder, ("optimizer", *registry.by_place(what, builder, ("task",))), options)
    build = functools.partial(builder, optimizer=local_training.sgd(1.0), **options)
    build = local_statistics(build) if description["statistics"] == "local" else build
    at = functools.partial(_algorithm, build, task, description["round"])
    like = jax.eval_shape(lambda frozen: {"held": _initial_states(at(frozen)), "frozen": frozen}, untrained)
    check_shapes(like, arrays, where, f"{description['method']} of {network.name}")
    name = description["predictor"]
    if name not in at(untrained).predict:
        raise ValueError(f"{where}: {description['method']} has no predictor {name!r}")

    def apply(arrays, x):
        sent, client = arrays["held"]
        return at(arrays["frozen"]).predict[name](sent, client, x)

    return Predictor(apply, restore_tree(like, arrays, where), description)


def _algorithm(build: Callable[[Task], Algorithm], task: Task, done: int, frozen: PyTree) -> Algorithm:
    return build(task.bind((frozen, ()), done))


def _initial_states(algorithm: Algorithm) -> tuple[PyTree, PyTree]:
    """(sent, client state) of client 0 before the first round: of the form that they always have."""
    key, client = jax.random.key(0), jnp.int32(0)
    server = algorithm.server_init(key)
    return algorithm.broadcast(server, client), algorithm.client_init(key, server, client)


def _unflatten(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": x} as {"a": {"b": x}}."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *above, last = name.split(".")
        inner = tree
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = jnp.asarray(array)
    return tree


def _lists_to_tuples(value: Any) -> Any:
    """JSON's lists as the tuples that configs have."""
    if isinstance(value, dict):
        return {key: _lists_to_tuples(item) for key, item in value.items()}
    return tuple(_lists_to_tuples(item) for item in value) if isinstance(value, list) else value
