"""Kinds of data: rows of images or of other arrays, and texts; the way of each from its source to a network's task."""

import json
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_core import nn
from fedjax_core.algorithm import Examples
from fedjax_core.data import federated_data, sources
from fedjax_core.data.client_validation_split import hold_out
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.data.held_out_clients import seen_rows, set_apart
from fedjax_core.data.partition import DEFAULT_CLIENTS
from fedjax_core.data.ragged_index import RowLists
from fedjax_core.data.sources.dataset import check_scales
from fedjax_core.data.subsample import adapted, smaller
from fedjax_core.experiment import build_model, input_normalization
from fedjax_core.experiment.lookup import Network
from fedjax_core.experiment.resolve_config import Asked, Config, resolve
from fedjax_core.language import instruction_task as language
from fedjax_core.registry import Found
from fedjax_core.storage.json_files import plain
from fedjax_core.task import PARTS, Model, Task, of_model, part_of
from fedjax_core.training import adapters, few_shot
from fedjax_core.training.augment import pipeline

log = logging.getLogger("fedjax_core")


class Kind(NamedTuple):
    """A kind of data: the way from its source to a network's task.

    Attributes:
      federated: (asked) -> the data, divided over the clients.
      task: (asked, network, data, public examples, shapes_only) -> the task of the clients that have the network.
      public: (asked, data) -> the set that everybody holds, with rows like those of the data; `()` without one.
    """

    federated: Callable[[Asked], federated_data.FederatedData]
    task: Callable[..., Task]
    public: Callable[[Asked, FederatedData], Examples | tuple[()]]


def dataset(config: Config) -> federated_data.FederatedData:
    """The config's data, divided over its clients."""
    asked = resolve(config)
    return parted(asked, of(asked).federated(asked))


def parted(asked: Asked, data: federated_data.FederatedData) -> federated_data.FederatedData:
    """Returns data with unseen clients and validation rows, if the config wants some and the data have none, and without what lies
    too far from 0 for float32 (`federated_data.centre`)."""
    if asked.data.unseen is not None and data.unseen is None:
        data = set_apart(data, asked.data.unseen, asked.data.seed)
    part = asked.data.validation
    if part is not None and not RowLists.of(data.validation_index).total:
        data = hold_out(data, part, asked.data.seed)
    return federated_data.centre(data)


def name_inputs(config: Config) -> str:
    """Returns what of a config says which inputs and targets there are, as text: configs that share it have the same rows."""
    asked = resolve(config)
    fields = config.data.to_dict()
    if of(asked) is ROWS:  # clients, partition and seed say whose they are
        return json.dumps([fields.get(name) for name in ("source", "dir", "size", "examples")])
    return json.dumps([plain(fields), list(config.models)], sort_keys=True)


def prepared(config: Config) -> language.Prepared:
    """Instructions, read for the config's one model.

    Raises:
      ValueError: the config has none, or asks for what is for images alone.
    """
    asked = resolve(config)
    if of(asked) is not TEXTS:
        raise ValueError(f"data.source={asked.data.source.spec!r} has no texts; instructions(leave_out=...) has")
    return _read(asked)


def of(asked: Asked) -> Kind:
    """The kind of the data that a config asks for."""
    return TEXTS if asked.data.source.function is language.Source else ROWS


# rows of images, or of other arrays


def _loaded(source: Found, directory: str | None, examples: int | None = None) -> sources.Dataset:
    return sources.read(source, directory, examples)


def _divided(asked: Asked) -> federated_data.FederatedData:
    data = asked.data
    whole = smaller(_loaded(data.source, data.directory, data.examples), data.size, data.examples)
    return federated_data.federate(whole, data.partition, data.clients, data.seed, **data.tests)


def public(asked: Asked, data: federated_data.FederatedData) -> Examples | tuple[()]:
    """Returns the labelled set that everybody holds, as examples like those of the data; empty if none is asked for.

    Raises:
      ValueError: its examples cannot become such, or its images are on another scale.
    """
    if asked.public is None:
        return ()
    source, number = asked.public
    examples, like = smaller(_loaded(source, asked.data.directory, number), examples=number).train, data.train
    if like.x.dtype == np.float32 and examples.x.dtype != np.uint8:
        offset = 0.0 if data.x_offset is None or examples.x.shape[1:] != like.x.shape[1:] else data.x_offset
        examples = examples._replace(x=(examples.x - offset).astype(np.float32))
    examples = adapted(examples, like)
    check_scales("train_x", like.x, f"public={asked.said['public']!r}", examples.x)
    return examples


def _classified(
    asked: Asked, one: Network, data: federated_data.FederatedData, everybodys: Examples | tuple[()], shapes_only: bool
) -> Task:
    """The task to classify rows: a network for them, and what of it is trained."""

    def wrapped(model: Model) -> Model:
        model = model if asked.augment is None else pipeline.augmented(model, asked.augment)
        return model if asked.episodes is None else few_shot.prototypical(model, data.classes)

    if asked.augment is not None and not shapes_only:
        input_normalization.check_colours(asked.said["augment"], data.train)
    outputs = data.classes + (int(everybodys.y.max()) + 1 if isinstance(everybodys, Examples) else 0)
    outputs = 1 if asked.episodes is not None else outputs
    scaled = build_model.scaling_of(one, asked.normalise, data)
    if not shapes_only:
        _warn_of_inputs(asked, one, data, scaled)
    model = build_model.model(one, data, asked.statistics, outputs, scaled)
    shape = tuple(data.train.x.shape[1:])
    settings: dict[str, Any] = {"classes": data.classes, "population": data.clients, "shape": shape, "public": everybodys}
    if one.file is None and asked.adapter is None and asked.train == "all":
        return of_model(wrapped(model), **settings)
    image = nn.image_size(shape, **(build_model.of_file(one) | one.around))
    arrays = build_model.beginning(model, one.file, asked.train, asked.seed, image, shapes_only)
    if asked.adapter is not None:
        return adapters.adapted(model, arrays, asked.adapter, PARTS[asked.train] or (), **settings).wrapped(wrapped)
    return part_of(model, arrays, asked.train, **settings).wrapped(wrapped)


def _warn_of_inputs(
    asked: Asked, one: Network, data: federated_data.FederatedData, scaled: input_normalization.Scaling | None
) -> None:
    """Warns of inputs that reach a network in an unexpected form, once for all networks alike.

    Raises:
      ValueError: as `input_normalization.check_inputs`.
    """
    if scaled is None:
        return
    lines = input_normalization.check_inputs(asked.normalise, one.file, scaled, data.train, seen_rows(data))
    if build_model.reads_tokens(one, data) is None:
        lines.append(
            f"model {one.found.name!r} is given integers as numbers, normalised; where they are token ids its class must say "
            "reads_tokens = True (False where they are none)"
        )
    is_first = next(other for other in asked.networks if other.file == one.file) == one
    for line in lines if is_first else ():
        log.warning("%s", line)


# texts


def _read(asked: Asked) -> language.Prepared:
    data, (one,) = asked.data, asked.networks
    return language.prepare(data.source(), data.directory, data.clients or DEFAULT_CLIENTS, data.seed, one.found())


def _answered(asked: Asked, one: Network, data: Any, everybodys: Any, shapes_only: bool) -> Task:
    """The task to answer instructions."""
    del one, data, everybodys
    return language.task(_read(asked), asked.adapter, shapes_only)


ROWS = Kind(_divided, _classified, public)
TEXTS = Kind(lambda asked: _read(asked).data, _answered, public)
