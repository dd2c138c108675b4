"""A trained network in one file, with all that it takes to use it: safetensors, which other programs read too.

    save_model("model.safetensors", net, description)
    model, net, description = load_model("model.safetensors")
    outputs, _ = model.apply(net, images)

The file has the arrays under dotted names (`params.head.kernel`, `stats.norm.mean`) and the description, as JSON, in its metadata.
Loading builds the network anew from the description and runs no code from the file. A round trip is exact, whatever the dtype.

A network of somebody else's is loaded where its builder is given: a file alone must not choose what code is imported.

    model, net, description = load_model("model.safetensors", lambda name: Wide)
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
from fedjax_core.algorithm import Array, Net, PyTree
from fedjax_core.engine.simulator import View
from fedjax_core.nn.kernels.attention import MINUS
from fedjax_core.storage.json_files import check, plain
from fedjax_core.storage.safetensors_files import read_tensors, write_tensors
from fedjax_core.task import Model, Task
from fedjax_core.training import local_training

FIELDS = ("model", "classes", "input_shape", "mean", "std", "statistics", "class_names")
_FORM = {
    **{"model": str, "classes": int, "input_shape": [int], "statistics": str, "class_names": [(str, int)]},
    **{"mean": (float, [float]), "std": (float, [float])},
    **{"offset?": ([float], type(None)), "limit?": (float, type(None))},
}
EXACT = 1e-3  # of the largest logit: how far two programs of one network may differ, but for those that round more coarsely


Builders = Callable[[str], Callable[..., Any]]  # by the name that a description says


def refuse_foreign_network(name: str) -> Callable[..., Any]:
    """`Builders` where none is given: networks of this library alone.

    Raises:
      ValueError: always.
    """
    raise ValueError(f"the network is {name}, code from outside; in Python load_model(path, lambda name: BUILDER) loads it")


class NotOneNetwork(ValueError):
    """A model is more than one network, or several that predict alike; `export_predictor.py` saves such."""


def save_model(
    path: str | os.PathLike, net: Net, description: Mapping[str, Any], builders: Builders = refuse_foreign_network
) -> None:
    """Writes a network, atomically.

    Args:
      path: the file.
      net: its arrays.
      builders: of networks that are not this library's.
      description: JSON values. It must have
        "model": the network as configs name it, such as "cnn(widths=(32, 64))";
        "classes": K; "class_names": K names;
        "input_shape": of one example;
        "mean", "std": what inputs are normalised by, one number or one per channel;
        "statistics": "average", "local" or "freeze", as in configs;
        it may have
        "offset": what is taken off inputs, in float64, before they become float32 and the network is given them;
        "limit": deviations at which normalised inputs are cut;
        and may have anything else, such as the method, the round, the config.

    Raises:
      ValueError: a field is missing, or the arrays are not those of the described model.
      OSError: the file cannot be written.
    """
    told = plain(description)
    model = build_described_model(told, "the description", builders)
    arrays = named_arrays(net)
    check_shapes(_model_shapes(model), arrays, f"the network to be saved in {path}", model.name)
    write_tensors(path, arrays, {"description": json.dumps(told, allow_nan=False)})


def with_use(description: Mapping[str, Any], layout: str = "own") -> dict[str, Any]:
    """Returns a description that also says how another program uses the network, where it does not say so itself.

    "preprocessing" has {"divide", "offset", "mean", "std", "limit", "axes"}: inputs become
    ((x - offset) / divide - mean) / std, one number or one per channel, offset taken off in float64, and are cut to
    [-limit, limit]; divide is 255 for uint8 inputs, else 1; no offset and no limit are null; "axes" are those of an image,
    in order, or null. It is null for inputs that are taken as they are. "final_activation" is "softmax": the network itself
    gives logits.

    Args:
      description: as `save_model` takes it.
      layout: of the tensors; in those of other programs images have their channels first.
    """
    uint8 = description.get("input_dtype", "uint8") == "uint8"
    last = ["height", "width", "channels"]
    axes = last if layout == "own" else [last[2], *last[:2]]
    use = {
        "divide": 255.0 if uint8 else 1.0,
        **{field: description.get(field) for field in ("offset", "mean", "std", "limit")},
        "axes": axes if len(description.get("input_shape", ())) == 3 else None,
    }
    scaled = description.get("mean") is not None
    return {"preprocessing": use if scaled else None, "final_activation": "softmax", **description}


def load_model(path: str | os.PathLike, builders: Builders = refuse_foreign_network) -> tuple[Model, Net, dict[str, Any]]:
    """Reads what `save_model` wrote.

    Args:
      path: the file.
      builders: of networks that are not this library's.

    Returns:
      (model, net, description); lists in the description stand for tuples and lists.

    Raises:
      ValueError: the file is damaged, or is no such model, or not one that there is here; the message names it.
      OSError: it cannot be read.
    """
    arrays, metadata = read_tensors(path)
    description = described_in(metadata, path)
    model = build_described_model(description, str(path), builders)
    if description.get("holds", "network") != "network":
        raise ValueError(f"{path} holds what {description.get('method')} predicts with, not one network: load_predictor reads it")
    like = _model_shapes(model)
    check_shapes(like, arrays, str(path), model.name)
    return model, restore_tree(like, arrays, str(path)), description


def network(view: View, name: str, x: PyTree) -> Net:
    """The one network that a model of a client (or "global") consists of, with what of it is frozen; as `trained_network`."""
    return view.task.model.whole(trained_network(view, name, x))


def trained_network(view: View, name: str, x: PyTree) -> Net:
    """The one network that a model of a client (or "global") consists of: what is trained of it.

    It is looked for in what the model predicts with: a `Net` of the architecture's form whose own logits are the model's, but for
    what two programs round differently: a thousandth of the largest, in bfloat16 some steps of it. So a method that keeps several
    (a previous one, a teacher) is no trouble, and one whose prediction takes more is refused.

    Args:
      view: of any client if the model is "global".
      name: the model's name.
      x: some examples, to compare the logits on.

    Raises:
      ValueError: the method has no such model.
      NotOneNetwork: it is not one network.
    """
    registry.choose("model of this method", name, view.holds)
    held = view.holds[name]
    model = view.task.model
    wanted = np.asarray(view.predict(name, held, x)["logits"], np.float64)
    there = wanted > MINUS / 2  # options that a question does not have are all alike
    scale, nets, far = max(np.abs(wanted[there]).max(), 1e-30), _find_networks(view.task, held), []
    for net in nets:
        own = np.asarray(_compute_logits(view.task.network, view.task.frozen, net, x), np.float64)
        far.append(np.nan_to_num(np.abs(own - wanted)[there].max() / scale, nan=np.inf))
    allowed = EXACT
    if nets and 2 * min(far) > EXACT:  # in a coarse format another may be nearly as near
        rounding = 8 * _rounding_step(view.task.network, view.task.frozen, nets[0], x)
        allowed = max(EXACT, min(rounding, 2 * min(far)))
    found: list[Net] = []
    for net, off in zip(nets, far, strict=True):
        if off <= allowed and not any(_equal(net, other) for other in found):
            found.append(net)
    if len(found) != 1:
        what = "several networks that predict alike" if found else f"no {model.name} that predicts as it does"
        raise NotOneNetwork(f"the model {name!r} holds {what}, so there is no one network to export")
    return found[0]


@functools.partial(jax.jit, static_argnums=0)
def _compute_logits(network: Callable[[PyTree], Model], frozen: PyTree, net: Net, x: PyTree) -> Array:
    """One program for all clients of an architecture."""
    return network(frozen).apply(net, x)[0]["logits"]


def _rounding_step(network: Callable[[PyTree], Model], frozen: PyTree, net: Net, x: PyTree) -> float:
    """From 1 to the next number, in the coarsest format that `_logits` computes in."""
    coarse = re.search(r":bf16\[", str(_compute_logits.trace(network, frozen, net, x).jaxpr))
    return float(jnp.finfo(jnp.bfloat16 if coarse else jnp.float32).eps)


@functools.partial(jax.jit, static_argnums=0)
def _init_net(network: Callable[[PyTree], Model], frozen: PyTree, key: Array) -> Net:
    """Traced once for all clients of an architecture, as `_logits`; only its shapes are asked for."""
    return network(frozen).init(key)


def _find_networks(task: Task, held: tuple[PyTree, PyTree]) -> list[Net]:
    """Everything of the architecture's form in (sent, client state)."""
    like = _init_net.eval_shape(task.network, task.frozen, jax.random.key(0))
    found = [x for x in jax.tree.leaves(held, is_leaf=_is_net) if _is_net(x)]
    client = held[1]
    if isinstance(client, tuple) and len(client) == 2 and _same_form(client[1], like.stats):  # normalisation.local_statistics
        found += [net._replace(stats=client[1]) for net in found]
    form = lambda net: jax.tree.structure(net, is_leaf=lambda leaf: leaf is None)
    parts = [net for net in found if form(net) == jax.tree.structure(like)]  # the leaves that one lacks another may have
    found += [local_training.join(a, b) for a in parts for b in parts if not _same_form(a, like)]
    return [net for net in found if _same_form(net, like)]


def _is_net(x: Any) -> bool:
    return isinstance(x, Net)


def _same_form(a: PyTree, b: PyTree) -> bool:
    shapes = [[leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (a, b)]
    return jax.tree.structure(a) == jax.tree.structure(b) and shapes[0] == shapes[1]


def _equal(a: Net, b: Net) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def described_in(metadata: Mapping[str, str], where: str | os.PathLike) -> dict[str, Any]:
    """The description in a file's metadata.

    Raises:
      ValueError: there is none.
    """
    try:
        description = json.loads(metadata["description"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{where} is no model that this program saved: its metadata have no description") from None
    return description if isinstance(description, dict) else {}


def build_described_model(description: Mapping[str, Any], where: str, builders: Builders = refuse_foreign_network) -> Model:
    """The network of a description; one that is not this library's is made by its builder.

    Raises:
      ValueError: a field is missing or of another kind, or there is no such network; the message begins with `where`.
    """
    missing = [field for field in FIELDS if field not in description]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}; a saved model needs {', '.join(FIELDS)}")
    check(description, _FORM, f"the description of {where}")
    if len(description["class_names"]) != description["classes"]:
        raise ValueError(f"{where} has {len(description['class_names'])} class_names for {description['classes']} classes")
    limit = description.get("limit")
    name, options = registry.parse(description["model"])
    classes, shape, mean, std, statistics = (
        description[field] for field in ("classes", "input_shape", "mean", "std", "statistics")
    )
    if name in nn.MODULES or (builders is refuse_foreign_network and ":" not in name):
        return nn.build(name, classes, shape, mean, std, statistics, limit=limit, **options)
    scaled = functools.partial(nn.normalise, mean=mean, std=std, dtype=None, limit=limit)
    return nn.flax_adapter.build(builders(name), name, classes, tuple(shape), options, scaled, statistics)


def _model_shapes(model: Model) -> Net:
    return jax.eval_shape(model.init, jax.random.key(0))


def check_shapes(like: PyTree, arrays: Mapping[str, Any], where: str, what: str) -> None:
    """Raises ValueError for the first of the arrays, by name, that `like` has not, or has in another shape."""
    wanted = named_arrays(like)
    for name in [*wanted, *arrays]:
        found, in_model = (list(tree[name].shape) if name in tree else "missing" for tree in (arrays, wanted))
        if found != in_model:
            raise ValueError(f"{where} is no {what} as described: {name} is {found}, in the model {in_model}")


def restore_tree(like: PyTree, arrays: Mapping[str, Any], where: str) -> Any:
    """The arrays in the structure of `like`, which they fit.

    Raises:
      ValueError: JAX cannot hold one as it is.
    """
    tree = jax.tree.unflatten(jax.tree.structure(like), [jnp.array(arrays[name]) for name in named_arrays(like)])
    for name, leaf in named_arrays(tree).items():
        if leaf.dtype != arrays[name].dtype:
            raise ValueError(f"{where}: {name} is of {arrays[name].dtype}, which needs jax_enable_x64")
    return tree


def named_arrays(tree: PyTree) -> dict[str, Any]:
    """Leaves under dotted names, such as "params.head.kernel" of a `Net`."""
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
