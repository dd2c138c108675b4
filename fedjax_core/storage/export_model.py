"""Exports a trained network as one safetensors file with a description, for other programs too.

    save_model("model.safetensors", net, description)
    model, net, description = load_model("model.safetensors")
    outputs, _ = model.apply(net, images)

The file has arrays under dotted names (`params.head.kernel`, `stats.norm.mean`) and the description
as JSON in its metadata. Loading rebuilds the network from the description and runs no code from the
file. A round trip is exact for every dtype. A network outside of this library needs its builder as
an argument, `load_model(path, lambda name: Wide)`: a file alone must not choose what code is
imported.
"""

import functools
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import nn, registry
from fedjax_core.algorithm import Array, Net, PyTree, find_nets
from fedjax_core.engine.client_view import ClientView, check_inputs
from fedjax_core.nn.kernels.attention import MASKED_SCORE
from fedjax_core.storage.json_files import check_schema, to_json_values
from fedjax_core.storage.safetensors_files import read_tensors, write_tensors
from fedjax_core.task import Model, Task
from fedjax_core.training import local_training
from fedjax_core.training.adapters import CORRECTION
from fedjax_core.training.param_partition import drop_entry

FORM = {  # the schema of a description
    **{"model": str, "classes": int, "input_shape": [int], "statistics": str, "class_names": [(str, int)]},
    **{"mean": (float, [float]), "std": (float, [float])},
    **{"offset?": ([float], type(None)), "limit?": (float, type(None)), "code?": {str: str}},
}
EXACT = 1e-3  # tolerance between two programs of one network, relative to the largest logit; coarser formats get more


Builders = Callable[[str], Callable[..., Any]]  # name in a description -> builder


def refuse_foreign_network(name: str) -> Callable[..., Any]:
    """Raises ValueError: the default of `Builders`, without networks outside of this library."""
    raise ValueError(f"the network {name} is not part of this library; load it in Python by load_model(path, lambda name: BUILDER)")


class NotOneNetwork(ValueError):
    """A model is not exactly one network; `export_predictor.py` saves such models."""


def save_model(
    path: str | os.PathLike, net: Net, description: Mapping[str, Any], builders: Builders = refuse_foreign_network
) -> None:
    """Writes a network, atomically.

    Args:
      path: the file.
      net: its arrays.
      description: JSON values. It must have
        "model": the network as in configs, such as "cnn(widths=(32, 64))";
        "classes": K; "class_names": K names;
        "input_shape": of one example;
        "mean", "std": input normalisation, one number or one per channel;
        "statistics": "average", "local" or "freeze", as in configs;
        it may have
        "offset": subtracted from inputs in float64, before they become float32;
        "limit": deviations at which normalised inputs are clipped;
        "code": digests of the user's own files behind it, by name;
        and anything else, such as the method, the round, the config.
      builders: of networks outside of this library.

    Raises:
      ValueError: a field is missing, or the arrays do not match the described model.
    """
    description = to_json_values(description)
    model = build_described_model(description, "the description", builders)
    arrays = named_arrays(net)
    check_shapes(jax.eval_shape(model.init, jax.random.key(0)), arrays, f"the network to be saved in {path}", model.name)
    write_tensors(path, arrays, {"description": json.dumps(description, allow_nan=False)})


def add_usage(description: Mapping[str, Any], layout: str = "own") -> dict[str, Any]:
    """Returns a description with fields that tell other programs how to use the network.

    "preprocessing" has {"divide", "offset", "mean", "std", "limit", "axes"}: inputs become ((x -
    offset) / divide - mean) / std, one number or one per channel, with the offset subtracted in
    float64, and are clipped to [-limit, limit]; divide is 255 for uint8 inputs, else 1; a missing
    offset or limit is null; "axes" is the order of an image's axes, or null. It is null for inputs
    without normalisation. "final_activation" is "softmax", because the network returns logits.

    Args:
      description: as `save_model` takes it; its own fields stay.
      layout: of the tensors; other programs' have channels first.
    """
    uint8 = description.get("input_dtype", "uint8") == "uint8"
    axes = ["height", "width", "channels"] if layout == "own" else ["channels", "height", "width"]
    preprocessing = {
        "divide": 255.0 if uint8 else 1.0,
        **{field: description.get(field) for field in ("offset", "mean", "std", "limit")},
        "axes": axes if len(description.get("input_shape", ())) == 3 else None,
    }
    is_normalised = description.get("mean") is not None
    return {"preprocessing": preprocessing if is_normalised else None, "final_activation": "softmax", **description}


def load_model(path: str | os.PathLike, builders: Builders = refuse_foreign_network) -> tuple[Model, Net, dict[str, Any]]:
    """Reads a file of `save_model`; the description has lists for tuples.

    Raises:
      ValueError: the file is damaged, is not such a model, or is of an unknown network; when called, `apply` refuses inputs
        of another shape or type than in training, where the description has it.
    """
    arrays, metadata = read_tensors(path)
    description = read_description(metadata, path)
    model = build_described_model(description, f"the description of {path}", builders)
    if description.get("holds", "network") != "network":
        raise ValueError(f"{path} holds what {description.get('method')} predicts with, not one network: load_predictor reads it")
    like = jax.eval_shape(model.init, jax.random.key(0))
    check_shapes(like, arrays, str(path), model.name)
    return model._replace(apply=check_applied(model.apply, description)), restore_tree(like, arrays, str(path)), description


def check_applied(apply: Callable[..., Any], description: Mapping[str, Any]) -> Callable[..., Any]:
    """Returns the function (arrays, x, ...) of a described network, which refuses other inputs than those of its training."""

    @functools.wraps(apply)
    def checked(arrays, x, *args, **options):
        check_inputs(x, description["input_shape"], description.get("input_dtype"), description.get("offset"))
        return apply(arrays, x, *args, **options)

    return checked


def find_network(view: ClientView, name: str, x: PyTree) -> Net:
    """Returns the network of a client's model (or "global") with its frozen arrays."""
    return view.task.model.full_net(find_trained_network(view, name, x))


def find_trained_network(view: ClientView, name: str, x: PyTree) -> Net:
    """Returns the trained arrays of the one network of a client's model (or "global").

    It is the `Net` of the architecture's structure, in the state that the model predicts with,
    whose logits are the model's up to rounding: a thousandth of the largest logit, in bfloat16 some
    steps of the format. A method may thus keep other networks (a previous one, a teacher); a model
    that predicts with more than one is refused.

    Args:
      view: of a client; of any client for "global".
      name: of the model.
      x: examples to compare the logits on.

    Raises:
      ValueError: the method has no such model.
      NotOneNetwork: it is not one network.
    """
    registry.check_choice("model of this method", name, view.holds)
    held = view.holds[name]
    model = view.task.model
    expected = np.asarray(view.predict(name, held, x)["logits"], np.float64)
    mask = expected > MASKED_SCORE / 2  # without options that a question does not have
    scale, nets, distances = max(np.abs(expected[mask]).max(), 1e-30), _find_networks(view.task, held), []
    for net in nets:
        logits = np.asarray(_compute_logits(view.task.network, view.task.frozen, net, x), np.float64)
        distances.append(np.nan_to_num(np.abs(logits - expected)[mask].max() / scale, nan=np.inf))
    tolerance = EXACT
    if nets and 2 * min(distances) > EXACT:  # in a coarse format another network may be almost as close
        rounding = 8 * _rounding_step(view.task.network, view.task.frozen, nets[0], x)
        tolerance = max(EXACT, min(rounding, 2 * min(distances)))
    matching: list[Net] = []
    for net, distance in zip(nets, distances, strict=True):
        leaves = jax.tree.leaves(net)
        is_twin = lambda other: all(map(np.array_equal, leaves, jax.tree.leaves(other)))  # noqa: B023 (called at once)
        if distance <= tolerance and not any(map(is_twin, matching)):
            matching.append(net)
    if len(matching) != 1:
        what = "several networks that predict alike" if matching else f"no {model.name} that predicts as it does"
        raise NotOneNetwork(f"the model {name!r} holds {what}, so there is no one network to export")
    return matching[0]


@functools.partial(jax.jit, static_argnums=0)
def _compute_logits(network: Callable[[PyTree], Model], frozen: PyTree, net: Net, x: PyTree) -> Array:
    """Computes logits, with one program for all clients of an architecture."""
    return network(frozen).apply(net, x)[0]["logits"]


def _rounding_step(network: Callable[[PyTree], Model], frozen: PyTree, net: Net, x: PyTree) -> float:
    """Returns the machine epsilon of the coarsest format in `_compute_logits`."""
    coarse = re.search(r":bf16\[", str(_compute_logits.trace(network, frozen, net, x).jaxpr))
    return float(jnp.finfo(jnp.bfloat16 if coarse else jnp.float32).eps)


@functools.partial(jax.jit, static_argnums=0)
def _init_net(network: Callable[[PyTree], Model], frozen: PyTree, key: Array) -> Net:
    """Initialises a network; only its shapes are used, traced once per architecture."""
    return network(frozen).init(key)


def _find_networks(task: Task, held: tuple[PyTree, PyTree]) -> list[Net]:
    """Returns every `Net` of the architecture's structure in (sent, client state)."""
    like = _init_net.eval_shape(task.network, task.frozen, jax.random.key(0))
    nets = find_nets(held)
    client = held[1]
    if isinstance(client, tuple) and len(client) == 2 and _same_shapes(client[1], like.stats):  # local statistics
        nets += [net._replace(stats=client[1]) for net in nets]
    structure = lambda net: jax.tree.structure(net, is_leaf=lambda leaf: leaf is None)
    parts = [net for net in nets if structure(net) == jax.tree.structure(like)]  # leaves may be split over nets
    nets += [local_training.join_params(a, b) for a in parts for b in parts if not _same_shapes(a, like)]
    return [net for net in nets if _same_shapes(drop_entry(net, CORRECTION), like)]


def _same_shapes(a: PyTree, b: PyTree) -> bool:
    shapes = [[leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (a, b)]
    return jax.tree.structure(a) == jax.tree.structure(b) and shapes[0] == shapes[1]


def read_description(metadata: Mapping[str, str], where: str | os.PathLike) -> dict[str, Any]:
    """Returns the description in a file's metadata; raises ValueError if there is none."""
    try:
        description = json.loads(metadata["description"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{where} is not a model saved by this program: its metadata have no description") from None
    return description if isinstance(description, dict) else {}


def build_described_model(description: Mapping[str, Any], where: str, builders: Builders) -> Model:
    """Builds the network of a description; one outside of this library by its builder.

    Raises:
      ValueError: a field is missing or malformed, or the network is unknown.
    """
    check_schema(description, FORM, where)
    if len(description["class_names"]) != description["classes"]:
        raise ValueError(f"{where} has {len(description['class_names'])} class_names for {description['classes']} classes")
    limit = description.get("limit")
    name, options = registry.parse_spec(description["model"])
    classes, shape = description["classes"], description["input_shape"]
    mean, std, statistics = description["mean"], description["std"], description["statistics"]
    if name in nn.MODULES or (builders is refuse_foreign_network and ":" not in name):
        return nn.build(name, classes, shape, mean, std, statistics, limit=limit, **options)
    scaled = functools.partial(nn.normalize_inputs, mean=mean, std=std, dtype=None, limit=limit)
    return nn.flax_adapter.build(builders(name), name, classes, tuple(shape), options, scaled, statistics)


def check_shapes(like: PyTree, arrays: Mapping[str, Any], where: str, what: str) -> None:
    """Raises ValueError for the first named array that is missing, unexpected or of another shape."""
    expected = named_arrays(like)
    for name in [*expected, *arrays]:
        in_file, in_model = (list(tree[name].shape) if name in tree else "missing" for tree in (arrays, expected))
        if in_file != in_model:
            raise ValueError(f"{where} is no {what} as described: {name} is {in_file}, in the model {in_model}")


def restore_tree(like: PyTree, arrays: Mapping[str, Any], where: str) -> Any:
    """Returns named arrays in the structure of `like`; raises ValueError if JAX lacks a dtype."""
    tree = jax.tree.unflatten(jax.tree.structure(like), [jnp.array(arrays[name]) for name in named_arrays(like)])
    for name, leaf in named_arrays(tree).items():
        if leaf.dtype != arrays[name].dtype:
            raise ValueError(f"{where}: {name} is of {arrays[name].dtype}, which needs jax_enable_x64")
    return tree


def named_arrays(tree: PyTree) -> dict[str, Any]:
    """Returns leaves by dotted name, such as "params.head.kernel" of a `Net`."""
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
