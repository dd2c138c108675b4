"""Builds the networks of a config for its data, and reads the arrays that they begin from."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_core import nn
from fedjax_core.algorithm import Net, targets_of
from fedjax_core.data import federated_data
from fedjax_core.data.hold_out import find_seen_examples
from fedjax_core.experiment import input_normalization
from fedjax_core.experiment.lookup import Network
from fedjax_core.experiment.resolve_config import ResolvedConfig
from fedjax_core.language import clip_task
from fedjax_core.language import instruction_task as language
from fedjax_core.lazy_array import blank_array
from fedjax_core.registry import BUILT_IN, ResolvedSpec, spell
from fedjax_core.storage import pretrained_weights
from fedjax_core.task import TRAINABLE_PARTS, Model


def read_options(network: Network) -> dict[str, Any]:
    """Returns the options that a network's file of weights sets."""
    return dict(pretrained_weights.read_options(network.file) if network.file else {})


def all_options(network: Network) -> dict[str, Any]:
    """Returns the options of a network: those of its file, its own, and those of its input
    wrappers."""
    return read_options(network) | network.resolved.options | network.input_options


def reads_tokens(network: Network, data: federated_data.FederatedData) -> bool | None:
    """Returns whether a network gets the inputs as they are, as token ids.

    Integers other than uint8 are token ids where the network asks for them, or where each position
    of a text predicts the next.

    Returns:
      True or False; None for integers where a network that is not built in takes numbers as well
      and does not say.
    """
    x = data.train.x
    if not np.issubdtype(x.dtype, np.integer) or x.dtype == np.uint8:
        return False
    if targets_of(data.train.y) == "tokens":
        return True
    resolved = network.resolved
    if resolved.origin == BUILT_IN:
        return resolved.name in nn.TEXT_MODULES
    shape = tuple(x.shape[1:])
    return nn.flax_adapter.reads_tokens(resolved.function, resolved.name, data.classes, shape, all_options(network))


def is_prepared_model(network: Network, data: federated_data.FederatedData) -> bool:
    """Returns whether a network is a user's `Model`, which gets inputs as they are."""
    resolved, shape = network.resolved, tuple(data.train.x.shape[1:])
    if resolved.origin == BUILT_IN:
        return False
    return nn.flax_adapter.builds_model(resolved.function, resolved.name, data.classes, shape, all_options(network))


def build_model(
    network: Network,
    data: federated_data.FederatedData,
    statistics: str,
    classes: int,
    scaling: input_normalization.Scaling | None,
) -> Model:
    """Builds a network for the data.

    Args:
      statistics: one of `resolve_config.STATISTICS`.
      classes: outputs of the head.
      scaling: by which inputs are normalised; None: they are token ids.
    """
    mean, std, limit = scaling or (None, None, None)
    resolved, shape, options = network.resolved, data.train.x.shape[1:], all_options(network)
    if resolved.origin != BUILT_IN:
        normalise = functools.partial(nn.normalize_inputs, mean=mean, std=std, dtype=None, limit=limit)
        return nn.flax_adapter.build(resolved.function, resolved.name, classes, shape, options, normalise, statistics)
    return nn.build(resolved.name, classes, shape, mean, std, statistics, limit=limit, **options)


def scaling_of(network: Network, normalise: str, data: federated_data.FederatedData) -> input_normalization.Scaling | None:
    """Returns the mean and deviation by which a network's inputs are normalised; None for token
    ids, which are not."""
    if reads_tokens(network, data):
        return None
    return input_normalization.find_scaling(normalise, data.train, network.file, find_seen_examples(data), data.x_offset)


def spell_network(network: Network) -> str:
    """Returns the spec of a network; of one that begins from a file with the options that the file
    sets."""
    if not read_options(network):
        return network.resolved.spec
    return spell(network.resolved.name, all_options(network))


def _has_folder(resolved: ResolvedSpec) -> bool:
    """Returns whether a network is read from a folder in the public layout."""
    return resolved.function is language.Spec or (
        resolved.function is clip_task.Spec and resolved.options.get("folder") is not None
    )


def has_random_frozen_arrays(resolved: ResolvedConfig) -> bool:
    """Returns whether frozen arrays are drawn by the seed, so that runs of other seeds have other
    arrays."""
    begins_random = any(network.file is None and not _has_folder(network.resolved) for network in resolved.networks)
    return begins_random and (resolved.fields["adapter"] is not None or resolved.train != "all")


def read_frozen_arrays(
    model: Model,
    file: str | None,
    train: str,
    seed: int,
    image: tuple[int, int] | None,
    class_names: Sequence[str],
    shapes_only: bool,
) -> Net:
    """Returns the frozen arrays of a network: those of its file, or random ones.

    Args:
      train: what is trained, one of `TRAINABLE_PARTS`; without a file it is left out.
      seed: of random arrays.
      image: height and width of the images that it sees; None: they are no images.
      class_names: of the data; a file's head for other classes is left out.
      shapes_only: zeros in place of random arrays.
    """
    if file is not None:
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        return pretrained_weights.read_backbone(file, model.name, shapes, image=image, class_names=class_names)
    if shapes_only:
        net = jax.tree.map(blank_array, jax.eval_shape(model.init, jax.random.key(0)))
    else:
        net = jax.device_get(jax.jit(model.init)(jax.random.key(seed)))
    return net._replace(params={name: entry for name, entry in net.params.items() if name not in (TRAINABLE_PARTS[train] or ())})
