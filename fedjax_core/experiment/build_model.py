"""The networks that a config names: built for its data, and what they begin from."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_core import nn
from fedjax_core.algorithm import Net, targets_of
from fedjax_core.data import federated_data
from fedjax_core.data.held_out_clients import seen_rows
from fedjax_core.experiment import input_normalization
from fedjax_core.experiment.lookup import Network, files, network
from fedjax_core.experiment.resolve_config import Config
from fedjax_core.language import instruction_task as language
from fedjax_core.registry import BUILT_IN
from fedjax_core.storage import pretrained_weights
from fedjax_core.task import PARTS, Model


def of_file(one: Network) -> dict[str, Any]:
    """Options that go with a network's file of weights."""
    return dict(pretrained_weights.options(one.file) if one.file else {})


def reads_tokens(one: Network, data: federated_data.FederatedData) -> bool | None:
    """Returns whether a network is given the inputs as they are, as token ids.

    Integers other than uint8 are token ids where the network asks for such, or where each place of a text is to tell the next.

    Returns:
      True or False; None for integers, where a network from outside takes numbers as well and does not say.
    """
    x = data.train.x
    if not np.issubdtype(x.dtype, np.integer) or x.dtype == np.uint8:
        return False
    if targets_of(data.train.y) == "tokens":
        return True
    if one.found.origin == BUILT_IN:
        return one.found.name in nn.TEXTS
    options = of_file(one) | one.found.options | one.around
    return nn.flax_adapter.reads_tokens(one.found.function, one.found.name, data.classes, tuple(x.shape[1:]), options)


def model(
    one: Network, data: federated_data.FederatedData, statistics: str, classes: int, scaled: input_normalization.Scaling | None
) -> Model:
    """The network for the data, with so many outputs, whose inputs are scaled; None: they are token ids."""
    mean, std, limit = scaled or (None, None, None)
    options = of_file(one) | one.found.options | one.around
    shape = data.train.x.shape[1:]
    if one.found.origin != BUILT_IN:
        normalise = functools.partial(nn.normalise, mean=mean, std=std, dtype=None, limit=limit)
        return nn.flax_adapter.build(one.found.function, one.found.name, classes, shape, options, normalise, statistics)
    return nn.build(one.found.name, classes, shape, mean, std, statistics, limit=limit, **options)


def network_of(
    spec: str,
    data: federated_data.FederatedData,
    statistics: str = "average",
    classes: int | None = None,
) -> Model:
    """A model for the data.

    Args:
      spec: name and options, as in `config.models`.
      data: to be classified; inputs are normalised by the training set's mean and deviation.
      statistics: as in configs.
      classes: outputs of the head; None: as many as the data have.
    """
    one = network(spec)
    return model(one, data, statistics, classes or data.classes, scaling_of(one, "data", data))


def scaling_of(one: Network, normalise: str, data: federated_data.FederatedData) -> input_normalization.Scaling | None:
    """Returns by what a network's inputs are normalised; None: they are token ids, which it is given as they are."""
    if reads_tokens(one, data):
        return None
    return input_normalization.of_inputs(normalise, data.train, one.file, seen_rows(data), data.x_offset)


def weight_files(config: Config) -> tuple[str | None, ...]:
    """The file that each of `config.models` begins from, or None.

    Raises:
      ValueError: there are not as many as models.
    """
    return files(config.models, config.weights)


def begun_from(config: Config) -> list[Path]:
    """The files of `weight_files` that are there, each once."""
    return sorted({Path(file) for file in weight_files(config) if file and Path(file).is_file()})


def spelled(spec: str, file: str | None) -> str:
    """The spec of a network that begins from a file: with the options that go with it, where the spec does not say them."""
    own = pretrained_weights.options(file) if file else {}
    if not own:
        return spec
    one = network(spec)
    options = own | one.found.options | one.around
    return f"{one.found.name}({', '.join(f'{option}={value!r}' for option, value in options.items())})"


def drawn_by_seed(config: Config) -> bool:
    """Whether some of what is frozen is drawn by the seed, so that runs of other seeds have other arrays."""
    pairs = zip(config.models, weight_files(config), strict=True)
    begins_anew = any(file is None and network(spec).found.function is not language.Spec for spec, file in pairs)
    return begins_anew and (config.adapter is not None or config.train != "all")


def beginning(
    model: Model, file: str | None, train: str, seed: int, image: tuple[int, int] | None, shapes_only: bool = False
) -> Net:
    """The arrays that a network begins from: those of its file; or if but a part is trained, random ones for the rest.

    Args:
      model: the network.
      file: with its weights, or None.
      train: what is trained, one of `PARTS`.
      seed: of what is random.
      image: height and width of the images that it sees; None: they are no images.
      shapes_only: zeros in place of random ones.
    """
    if file is not None:
        return pretrained_weights.backbone(file, model.name, jax.eval_shape(model.init, jax.random.key(0)), image=image)
    if shapes_only:
        zero = lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
        net = jax.tree.map(zero, jax.eval_shape(model.init, jax.random.key(0)))
    else:
        net = jax.device_get(jax.jit(model.init)(jax.random.key(seed)))
    return net._replace(params={name: entry for name, entry in net.params.items() if name not in (PARTS[train] or ())})
