"""Exports models of more than one network: the state that a method predicts with.

    save_predictor("model.safetensors", view, "personal", examples, description, experiment.method)
    predictor = load_predictor("model.safetensors", experiment.method)
    outputs = predictor.apply(predictor.arrays, images)

Such a model (FedRoD's second head, FedCAC's parameters without a `Net`, pFedPT's frame) is the
(sent, client state) that the method's predictor reads (`Algorithm.predict`). The file has these
arrays under "held" and frozen ones under "frozen"; its description has the method's name and
options and the network. Loading rebuilds the method and runs no code from the file.
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
from fedjax_core.engine.client_view import ClientView
from fedjax_core.storage.export_model import (
    EXACT,
    Builders,
    build_described_model,
    check_applied,
    check_shapes,
    named_arrays,
    read_description,
    refuse_foreign_network,
    restore_tree,
)
from fedjax_core.storage.json_files import check_schema, lists_to_tuples, to_json_values, unflatten
from fedjax_core.storage.safetensors_files import read_tensors, write_tensors
from fedjax_core.task import TRAINABLE_PARTS, make_partial_task, make_task
from fedjax_core.training import adapters, local_training
from fedjax_core.training.local_batch_norm import with_local_statistics

HOLDS = "predictor"  # field "holds" of a description
FORM = {  # the schema of a description, beside that of `export_model`
    **dict.fromkeys(("method", "predictor", "train"), str),
    **dict.fromkeys(("population", "round"), int),
    "options": dict,
    "adapter": (str, type(None)),
}
Methods = Callable[[str], Callable[..., Algorithm]]  # name -> builder of a method


class Predictor(NamedTuple):
    """A predictor and its arrays.

    Attributes:
      apply: (arrays, x) -> {"logits": [B, K], "features": [B, D]}; not compiled.
      arrays: {"held": (sent, client state), "frozen": a `Net` or ()}.
      description: as it was saved; lists stand for tuples and lists.
    """

    apply: Callable[[PyTree, PyTree], dict[str, Array]]
    arrays: PyTree
    description: dict[str, Any]


def save_predictor(
    path: str | os.PathLike,
    view: ClientView,
    name: str,
    x: PyTree,
    description: Mapping[str, Any],
    methods: Methods,
    builders: Builders = refuse_foreign_network,
) -> None:
    """Writes the state that one of a method's models predicts with, atomically.

    Args:
      path: the file.
      view: of a client; of any client for "global".
      name: of the model.
      x: examples on which the rebuilt predictor must predict as the run does.
      description: that of `export_model.save_model` for the network; also "method", its "options",
        "population": N, "round", and "train" and "adapter" as in configs.
      methods: returns the builder of a method.
      builders: of networks outside of this library.

    Raises:
      ValueError: a field is missing, the method cannot be rebuilt, or it predicts something else
        then.
    """
    saved: dict[str, Any] = to_json_values({**description, "predictor": name, "holds": HOLDS})
    held = view.holds[name]
    is_partial = saved.get("train") != "all" or saved.get("adapter") is not None
    arrays = named_arrays({"held": held, "frozen": view.task.frozen if is_partial else ()})
    rebuilt = _build_predictor(saved, arrays, methods, builders, "the description")
    outputs = view.predict(name, held, x), jax.jit(rebuilt.apply)(rebuilt.arrays, x)
    expected, actual = (np.asarray(output["logits"], np.float64) for output in outputs)
    if expected.shape != actual.shape or not np.abs(actual - expected).max() <= EXACT * max(np.abs(expected).max(), 1e-30):
        raise ValueError(f"the model {name!r} of {saved['method']} predicts something else when it is rebuilt, so it is not saved")
    write_tensors(path, arrays, {"description": json.dumps(saved, allow_nan=False)})


def load_predictor(path: str | os.PathLike, methods: Methods, builders: Builders = refuse_foreign_network) -> Predictor:
    """Reads a file of `save_predictor`.

    Raises:
      ValueError: the file is damaged or is not such a model, or its method is unknown or takes
        other options.
    """
    arrays, metadata = read_tensors(path)
    description = read_description(metadata, path)
    if description.get("holds") != HOLDS:
        raise ValueError(f"{path} holds one network: load_model reads it")
    predictor = _build_predictor(description, arrays, methods, builders, f"the description of {path}")
    return predictor._replace(apply=check_applied(predictor.apply, description))


def _build_predictor(
    description: dict[str, Any], arrays: Mapping[str, Any], methods: Methods, builders: Builders, where: str
) -> Predictor:
    """Builds the predictor of a description from named arrays."""
    network = build_described_model(description, where, builders)
    check_schema(description, FORM, where)
    registry.check_choice("train", description["train"], TRAINABLE_PARTS)
    shape = tuple(description["input_shape"])
    settings = {"classes": description["classes"], "population": description["population"], "shape": shape}
    frozen = unflatten({name: jnp.asarray(arrays[name]) for name in arrays if name.startswith("frozen.")}).get("frozen", {})
    untrained = Net(frozen.get("params", {}), frozen.get("stats", {})) if frozen else ()
    task = make_task(network, **settings)
    if isinstance(untrained, Net):
        entries, adapter = TRAINABLE_PARTS[description["train"]] or (), description["adapter"]
        if adapter is None:
            task = make_partial_task(network, untrained, description["train"], **settings)
        else:
            task = adapters.adapter_task(network, untrained, adapters.parse(adapter), entries, **settings)
    builder, options = methods(description["method"]), lists_to_tuples(description["options"])
    what = f"method {description['method']!r}"
    registry.check_call(what, builder, ("optimizer", *registry.positional_names(what, builder, ("task",))), options)
    build = functools.partial(builder, optimizer=local_training.sgd(1.0), **options)
    build = with_local_statistics(build) if description["statistics"] == "local" else build
    build_algorithm = lambda frozen: build(task.bind((frozen, ()), description["round"]))
    like = jax.eval_shape(lambda frozen: {"held": _initial_states(build_algorithm(frozen)), "frozen": frozen}, untrained)
    check_shapes(like, arrays, where, f"{description['method']} of {network.name}")
    name = description["predictor"]
    if name not in build_algorithm(untrained).predict:
        raise ValueError(f"{where}: {description['method']} has no predictor {name!r}")

    def apply(arrays, x):
        sent, client = arrays["held"]
        return build_algorithm(arrays["frozen"]).predict[name](sent, client, x)

    return Predictor(apply, restore_tree(like, arrays, where), description)


def _initial_states(algorithm: Algorithm) -> tuple[PyTree, PyTree]:
    """Returns (sent, client state) of client 0 before the first round."""
    key, client = jax.random.key(0), jnp.int32(0)
    server = algorithm.server_init(key)
    return algorithm.broadcast(server, client), algorithm.client_init(key, server, client)
