"""Reads the data of a config and builds the tasks of its networks, for arrays (images and others)
and for texts.

A `DataPipeline` is the way from a source to a task; `pipeline_of` chooses it.
"""

import json
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_core import nn, registry
from fedjax_core.algorithm import Examples
from fedjax_core.data import federated_data, sources
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.data.hold_out import find_seen_examples, hold_out_clients, hold_out_validation
from fedjax_core.data.partition import DEFAULT_CLIENTS
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.data.sources.dataset import check_scales, is_images
from fedjax_core.data.subsample import match_image_shape, subsample
from fedjax_core.experiment import build_model, config_warnings, input_normalization
from fedjax_core.experiment.lookup import NORMALISATIONS, Network
from fedjax_core.experiment.resolve_config import ResolvedConfig, resolve
from fedjax_core.experiment.schema import Config
from fedjax_core.language import clip_task
from fedjax_core.language import instruction_task as language
from fedjax_core.storage.json_files import to_json_values
from fedjax_core.task import TRAINABLE_PARTS, Model, Task, make_partial_task, make_task
from fedjax_core.training import adapters, few_shot
from fedjax_core.training.augment import pipeline

log = logging.getLogger("fedjax_core")


class DataPipeline(NamedTuple):
    """The way from a kind of data's source to a network's task.

    Attributes:
      federated: (config) -> the data, divided over the clients.
      task: (config, network, data, public examples, shapes_only) -> the task of the clients that
        have the network.
      public: (config, data) -> the public set, with examples like those of the data; `()` without
        one.
    """

    federated: Callable[[ResolvedConfig], FederatedData]
    task: Callable[..., Task]
    public: Callable[[ResolvedConfig, FederatedData], Examples | tuple[()]]


def dataset(config: Config) -> FederatedData:
    """Returns the data of a config, divided over its clients."""
    resolved = resolve(config)
    return hold_out_examples(resolved, pipeline_of(resolved).federated(resolved))


def read_public(config: Config, data: FederatedData) -> Examples | tuple[()]:
    """Returns the public set of a config, with examples like those of the data; `()` without one."""
    resolved = resolve(config)
    return pipeline_of(resolved).public(resolved, data)


def check_texts(resolved: ResolvedConfig, data: FederatedData) -> None:
    """Raises ValueError for a network that would read the words of the source's texts as numbers."""
    source = resolved.data.source
    words = source.option("words") if source.origin == registry.BUILT_IN else None
    if words is None or resolved.is_for_texts:
        return
    for network in resolved.networks:
        if not build_model.reads_tokens(network, data):
            raise ValueError(
                f"model {network.resolved.spec!r} reads numbers, and with words={words} data.source has texts, as token ids; to "
                "classify them take a network of your own whose class says reads_tokens = True"
            )


def hold_out_examples(resolved: ResolvedConfig, data: FederatedData) -> FederatedData:
    """Returns data with unseen clients and validation examples, if the config wants some and the
    data have none, and without offsets too large for float32 (`federated_data.center_features`).

    Raises:
      ValueError: as `hold_out_clients` and `hold_out_validation`, or no client has a validation example.
    """
    if resolved.data.unseen is not None and data.unseen is None:
        data = hold_out_clients(data, resolved.data.unseen, resolved.data.seed)
    part = resolved.data.validation
    if part is not None and not RaggedIndex.from_lists(data.validation_index).total:
        data = hold_out_validation(data, part, resolved.data.seed)
        largest = RaggedIndex.from_lists(data.train_index).size.max(initial=0)
        if largest and not RaggedIndex.from_lists(data.validation_index).total:
            what = f"data.validation={part}: no client has a whole example in it; the largest has {largest} training examples"
            least = (
                f"it must be at least {1 / largest:.2g}, or a number of examples" if largest > 1 else "a client needs at least 2"
            )
            raise ValueError(f"{what}; {least}")
    return federated_data.center_features(data)


def name_inputs(config: Config) -> str:
    """Returns a string of the fields that choose the inputs and targets: configs that share it have
    the same examples."""
    resolved = resolve(config)
    if pipeline_of(resolved) is ARRAYS and resolved.fields["data.test_split"] != "merged":  # others only divide them
        return json.dumps([resolved.fields[f"data.{name}"] for name in ("source", "dir", "size", "examples")])
    fields = {field: value for field, value in resolved.fields.items() if field.startswith("data.") or field == "models"}
    return json.dumps(to_json_values(fields), sort_keys=True)


def is_divided_by_columns(config: Config) -> bool:
    """Returns whether clients are made of columns of the data, as natural ones and domains are, and
    not of targets and a seed alone."""
    takes = registry.read_parameters(resolve(config).data.partition.function)[0]
    return not {"ids", "domains"}.isdisjoint(takes)


def read_instructions(config: Config) -> language.PreparedTask:
    """Reads the instructions of a config, for its model."""
    resolved = resolve(config)
    if not resolved.is_for_texts:
        raise ValueError(f"data.source={resolved.data.source.spec!r} has no texts; instructions(leave_out=...) has")
    return _read_texts(resolved)


def pipeline_of(resolved: ResolvedConfig) -> DataPipeline:
    """Returns the pipeline of the data that a config names."""
    return TEXTS if resolved.is_for_texts else ARRAYS


# arrays


def _read_arrays(resolved: ResolvedConfig) -> FederatedData:
    data = resolved.data
    if data.examples is not None and resolved.fields["data.test_split"] == "merged":
        what = (
            f"data.examples={data.examples} limits training examples; data.test_split='merged' joins them with the whole test set"
        )
        raise ValueError(f"{what}; set one of them to None")
    whole = subsample(sources.read_dataset(data.source, data.directory, data.examples), data.size, data.examples)
    config_warnings.log_lines(config_warnings.check_partition(data.partition, whole))
    return federated_data.federate(whole, data.partition, data.clients, data.seed, **data.tests)


def _read_public(resolved: ResolvedConfig, data: FederatedData) -> Examples | tuple[()]:
    """Returns the labelled public set, adapted to the shape of the data's examples; empty if the
    config has none.

    Raises:
      ValueError: its examples cannot be adapted, or its images are on another scale.
    """
    if resolved.public is None:
        return ()
    source, number = resolved.public
    whole, like = sources.read_dataset(source, resolved.data.directory, number), data.train
    examples = subsample(whole, examples=number).train
    if like.x.dtype == np.float32 and examples.x.dtype != np.uint8:
        offset = 0.0 if data.x_offset is None or examples.x.shape[1:] != like.x.shape[1:] else data.x_offset
        examples = examples._replace(x=(examples.x - offset).astype(np.float32))
    examples = match_image_shape(examples, like)
    check_scales("train_x", like.x, f"public={resolved.fields['public']!r}", examples.x)
    return examples


def _classification_task(
    resolved: ResolvedConfig, network: Network, data: FederatedData, public: Examples | tuple[()], shapes_only: bool
) -> Task:

    def wrap(model: Model) -> Model:
        model = model if resolved.augment is None else pipeline.with_augmentation(model, resolved.augment)
        return model if resolved.episodes is None else few_shot.prototypical_model(model, data.classes)

    if resolved.augment is not None and not shapes_only:
        input_normalization.check_colours(resolved.fields["augment"], data.train)
    if network.resolved.function is clip_task.Spec:
        return _clip_task(resolved, network, data, shapes_only).wrap_model(wrap)
    outputs = data.classes + (int(public.y.max()) + 1 if isinstance(public, Examples) else 0)
    outputs = 1 if resolved.episodes is not None else outputs
    scaling = build_model.scaling_of(network, resolved.normalise, data)
    if not shapes_only:
        _warn_of_inputs(resolved, network, data, public, scaling)
    model = build_model.build_model(network, data, resolved.statistics, outputs, scaling)
    shape = tuple(data.train.x.shape[1:])
    settings: dict[str, Any] = {"classes": data.classes, "population": data.clients, "shape": shape, "public": public}
    if network.file is None and resolved.adapter is None and resolved.train == "all":
        return make_task(wrap(model), **settings)
    image = nn.image_size(shape, **(build_model.read_options(network) | network.input_options))
    arrays = build_model.read_frozen_arrays(
        model, network.file, resolved.train, resolved.seed, image, data.class_names, shapes_only
    )
    if resolved.adapter is None:
        return make_partial_task(model, arrays, resolved.train, **settings).wrap_model(wrap)
    return adapters.adapter_task(model, arrays, resolved.adapter, TRAINABLE_PARTS[resolved.train] or (), **settings).wrap_model(
        wrap
    )


def _clip_task(resolved: ResolvedConfig, network: Network, data: FederatedData, shapes_only: bool) -> Task:
    if not shapes_only and is_images(data.train.x):  # others are refused below
        scaling = input_normalization.Scaling(*NORMALISATIONS["clip"])
        input_normalization.check_inputs("clip", None, scaling, data.train, find_seen_examples(data))
    return clip_task.build_task(network.resolved(), data, resolved.seed, shapes_only)


def _warn_of_inputs(
    resolved: ResolvedConfig,
    network: Network,
    data: FederatedData,
    public: Examples | tuple[()],
    scaling: input_normalization.Scaling | None,
) -> None:
    """Warns of public examples that clients are tested on, once; and of inputs in an unexpected
    form, once for all networks that have the same weights."""
    if isinstance(public, Examples) and network == resolved.networks[0] and (tested := _count_tested(data, public)):
        log.warning(
            "public=%r: %d of its %d examples are test or validation examples of clients: scores are of what has been learnt",
            resolved.fields["public"],
            tested,
            len(public.y),
        )
    if scaling is None:
        return
    if build_model.is_prepared_model(network, data):
        log.warning("%s", _describe_raw_inputs(resolved, network, data))
        return
    lines = input_normalization.check_inputs(resolved.normalise, network.file, scaling, data.train, find_seen_examples(data))
    if build_model.reads_tokens(network, data) is None:
        lines.append(
            f"model {network.resolved.name!r} gets integers as numbers, normalised; if they are token ids its class must say "
            "reads_tokens = True (False where they are none)"
        )
    is_first = next(other for other in resolved.networks if other.file == network.file) == network
    for line in lines if is_first else ():
        log.warning("%s", line)


def _describe_raw_inputs(resolved: ResolvedConfig, network: Network, data: FederatedData) -> str:
    without = f"normalise={resolved.normalise!r} and statistics={resolved.statistics!r} do not reach it"
    line = f"model {network.resolved.name!r} is a Model, which gets inputs as they are: {without}"
    if resolved.augment is None or data.train.x.dtype != np.uint8:
        return line
    return f"{line}, and augment={resolved.fields['augment']!r} trains it on pixels in [0, 1] where scores are of 0 ... 255"


def _count_tested(data: FederatedData, public: Examples) -> int:
    """Returns how many public inputs equal a test or validation example of the clients."""
    if public.x.dtype != data.train.x.dtype or public.x.shape[1:] != data.train.x.shape[1:]:
        return 0
    unseen = () if data.unseen is None else data.unseen.test_index
    tests = [RaggedIndex.from_lists(index).concatenate() for index in (data.test_index, unseen)]
    validation = RaggedIndex.from_lists(data.validation_index).concatenate()
    scored = data.test.x[np.unique(np.concatenate(tests))], data.train.x[np.unique(validation)]
    hashes = {hash(x.tobytes()) for part in scored for x in part}
    return sum(hash(x.tobytes()) in hashes for x in public.x)


# texts


def _read_texts(resolved: ResolvedConfig) -> language.PreparedTask:
    data, (network,) = resolved.data, resolved.networks
    return language.prepare_data(data.source(), data.directory, data.clients or DEFAULT_CLIENTS, data.seed, network.resolved())


def _instruction_task(resolved: ResolvedConfig, network: Network, data: Any, public: Any, shapes_only: bool) -> Task:
    del network, data, public
    return language.build_task(_read_texts(resolved), resolved.adapter, shapes_only)


ARRAYS = DataPipeline(_read_arrays, _classification_task, _read_public)
TEXTS = DataPipeline(lambda resolved: _read_texts(resolved).data, _instruction_task, _read_public)
