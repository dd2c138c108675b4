"""Finds what a config names: method, optimizer, data, models, loss and scores, with their options
checked.

No data are read. `resolve_config.py` calls these functions. Each takes one spec, or the fields of a
config by dotted name as `schema.read_fields` returns them.
"""

import functools
import os
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import optax

from fedjax_core import nn, option_types, own_packages, registry
from fedjax_core.data import partition, sources
from fedjax_core.experiment.schema import Config, options_of, without_none
from fedjax_core.language import clip_task
from fedjax_core.language import instruction_task as language
from fedjax_core.language.models import clip
from fedjax_core.registry import ResolvedSpec, spell
from fedjax_core.run.callbacks import find_callback
from fedjax_core.training import local_training, losses
from fedjax_core.training.regularizers import REGULARIZERS
from fedjax_core.training.scores import SCORES

OPTIMIZERS = {"sgd": local_training.sgd, "adam": local_training.adam}
LOSSES = {
    "cross_entropy": losses.cross_entropy,
    "smoothed": losses.smoothed_cross_entropy,
    "focal": losses.focal_loss,
    "sigmoid_cross_entropy": losses.sigmoid_cross_entropy,
    "squared_error": losses.squared_error,
    "absolute_error": losses.absolute_error,
}
LOSS_TARGETS = {  # the kinds of targets that each loss is for
    "cross_entropy": ("classes", "tokens"),
    "smoothed": ("classes", "tokens"),
    "focal": ("classes", "tokens"),
    "sigmoid_cross_entropy": ("labels",),
    "squared_error": ("numbers",),
    "absolute_error": ("numbers",),
}
ROBUST = "robust"
NORMALISATIONS = {  # mean and deviation by channel; None: those of the data
    "data": None,
    ROBUST: None,
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,), (0.5,)),
    "unit": ((0.0,), (1.0,)),
    "clip": (clip.MEAN, clip.STD),
}
MODELS: dict[str, Callable] = nn.MODULES | {language.MODEL: language.Spec, clip_task.MODEL: clip_task.Spec}
MODEL_ARGUMENTS = ("classes", "input_shape", "rngs", "dtype", "blocks", "block")  # that `nn.build` passes
SCORE_ARGUMENTS = ("outputs", "x", "y", "mask")
GAP = "gap"  # in the names of scores: the difference between two kinds of clients
NOT_CONFIGS = ("__init__", "base")  # files of configs/ that are no experiments


class Data(NamedTuple):
    """The source of the data, and how they are divided.

    Attributes:
      size, examples: see `data.subsample`.
      clients: N; None: as many as the data have, for a partition that counts them itself.
      seed: of all draws that divide the data.
      tests: further arguments of `federated_data.federate`: long_tail, test_split, test_examples,
        those that are set.
      validation: what is held back of each client's training examples, a fraction or a number, or
        None.
      unseen: which clients never train, a fraction or a number, or None.
    """

    source: ResolvedSpec
    directory: str | None
    size: int | None
    examples: int | None
    partition: ResolvedSpec
    clients: int | None
    seed: int
    tests: dict[str, Any]
    validation: float | int | None
    unseen: float | int | None


class Network(NamedTuple):
    """A model of a config.

    Attributes:
      resolved: a module; for texts `language.Spec`, for CLIP `clip_task.Spec`.
      input_options: of its input wrappers: resize, frame.
      file: the weights that it begins from, or None.
    """

    resolved: ResolvedSpec
    input_options: dict[str, Any]
    file: str | None


class _Methods(Mapping[str, Callable]):
    """The builders in `methods/` by name, each imported when it is needed.

    Papers' spellings are names too: "FedAvg", "LG-FedAvg".
    """

    def __iter__(self) -> Iterator[str]:
        return (name for name in _list_modules(str(own_packages.HOME / "methods")) if name != "main")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Callable:
        module = registry.spell_name(name)
        if module not in iter(self):
            raise KeyError(name)
        return getattr(own_packages.import_bundled(f"methods.{module}"), module)


@functools.cache
def _list_modules(folder: str) -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules([folder]))


METHODS = _Methods()


def method_summaries() -> dict[str, str]:
    """Returns the first line of each method's docstring, by the method's name."""
    docstrings = {name: own_packages.import_bundled(f"methods.{name}").__doc__ for name in METHODS}
    return {name: (text or "").partition("\n")[0] for name, text in docstrings.items()}


def method_builder(name: str) -> Callable:
    """Returns the builder of a method: the function `name` of `methods/<name>.py`, or one that is
    not built in (`registry.py`)."""
    return registry.find_builder("method", name, METHODS)[0]


def model_builder(name: str) -> Callable:
    """Returns the builder of a model (`nn/flax_adapter.py`)."""
    return registry.find_builder("model", name, MODELS)[0]


def load_config(name: str) -> Config:
    """Returns a config that comes with the package, as the command line names it.

    It is found whatever the current folder holds, also where `from configs import fedavg` finds a
    package `configs` of the user's own.

    >>> load_config("fedavg:smoke").method.name
    'fedavg'
    """
    stem, colon, variant = name.partition(":")
    files = (own_packages.HOME / "configs").glob("*.py")
    registry.check_choice("config", stem, sorted(file.stem for file in files if file.stem not in NOT_CONFIGS))
    with own_packages.use_bundled_packages():
        get_config = own_packages.import_bundled(f"configs.{stem}").get_config
        return get_config(variant) if colon else get_config()


def find_method(fields: Mapping[str, Any]) -> ResolvedSpec:
    """Returns the method's builder, with its options; one of ours has its own name, whatever the config calls it.

    Raises:
      TypeError: it does not take a task first and `optimizer` by name, or has no such option.
    """
    spec, options = fields["method.name"], options_of(fields, "method")
    resolved = registry.resolve_spec(
        "method", spec, METHODS, given=("optimizer",), placed=("task",), field="method.name", options=options
    )
    takes, takes_any = registry.read_parameters(resolved.function)
    if "optimizer" not in takes and not takes_any:
        signature = "a method is called as method(task, optimizer=..., ...), with the optimizer that config.optimizer names"
        raise TypeError(f"method {resolved.name!r} must take optimizer=: {signature}; it takes: {', '.join(takes)}.")
    if METHODS.get(own := getattr(resolved.function, "__name__", "")) is resolved.function:
        return resolved._replace(name=own, origin=registry.BUILT_IN)  # by which checks know it
    return resolved


def find_optimizer(fields: Mapping[str, Any]) -> local_training.Optimizer:
    """Builds the optimizer, with sharpness-aware steps if `optimizer.sharpness` names some."""
    optimizer, spec = _find_plain_optimizer(fields), fields["optimizer.sharpness"]
    if spec is None:
        return optimizer
    link = registry.resolve_spec("sharpness", spec, local_training.SHARPNESS, field="optimizer.sharpness")()
    return lambda round_num: optax.chain(link, optimizer(round_num))


def _find_plain_optimizer(fields: Mapping[str, Any]) -> local_training.Optimizer:
    """Builds the optimizer: one of `OPTIMIZERS`, one of optax's, or a similar function that is not
    built in."""
    name, options = fields["optimizer.name"], options_of(fields, "optimizer")
    function, _ = registry.find_builder("optimizer", registry.parse_spec(name, "optimizer.name")[0], OPTIMIZERS)
    takes, _ = registry.read_parameters(function)
    rate = "learning_rate" if "lr" not in takes and "learning_rate" in takes else "lr"  # as optax calls it
    if rate in options and rate != "lr":
        raise ValueError(f"optimizer.{rate}={options[rate]!r}: the rate is optimizer.lr, which is {options.get('lr')!r}")
    options = {rate if option == "lr" else option: value for option, value in options.items()}
    resolved = registry.resolve_spec("optimizer", name, OPTIMIZERS, field="optimizer.name", options=options)
    optimizer: Any = resolved()
    if isinstance(optimizer, optax.GradientTransformation):
        return lambda round_num: optimizer
    if callable(optimizer):
        return cast(local_training.Optimizer, optimizer)
    wanted = "an optax.GradientTransformation, or a function of the round that gives one"
    raise TypeError(f"optimizer {resolved.name!r} must return {wanted}, it returned {option_types.shorten(optimizer)}")


def _find_source(spec: str, field: str) -> ResolvedSpec:
    if registry.parse_spec(spec, field)[0] == language.SOURCE:
        return registry.resolve_spec("data set", spec, {language.SOURCE: language.Source}, field=field)
    resolved = sources.find_reader(spec, field=field)
    if resolved.origin == registry.BUILT_IN and isinstance(inner := resolved.options.get("of"), str):
        _find_source(inner, field)  # which it is made of
    return resolved


def find_data(fields: Mapping[str, Any]) -> Data:
    """Returns the data's source and partition."""
    split, examples = fields["data.test_split"], fields["data.test_examples"]
    source = _find_source(fields["data.source"], "data.source")
    scheme = registry.resolve_spec(
        "partition", fields["data.partition"], partition.SCHEMES, given=partition.GIVEN, field="data.partition"
    )
    if (split == "matched") != (examples is not None):
        values = f"data.test_split={split!r}, data.test_examples={examples}"
        raise ValueError(f"{values}: 'matched' needs a number, the others take none")
    return Data(
        source=source,
        directory=fields["data.dir"],
        size=fields["data.size"],
        examples=fields["data.examples"],
        partition=scheme,
        clients=partition.resolve_num_clients(scheme.name, fields["data.clients"]),
        seed=fields["data.seed"],
        tests=without_none({"long_tail": fields["data.long_tail"], "test_split": split, "test_examples": examples}),
        validation=fields["data.validation"],
        unseen=fields["data.unseen_clients"],
    )


def find_public(spec: str | None) -> tuple[ResolvedSpec, int | None] | None:
    """Returns the source of the public set, and how many of its examples are used (None: all); None
    where there is no such set."""
    if spec is None:
        return None
    name, options = registry.parse_spec(spec, "public")
    number = option_types.check_value("public: examples", options.pop("examples", None), option_types.AtLeastOne | None)
    try:
        return _find_source(spell(name, options), "public"), number
    except (ValueError, TypeError) as error:
        raise type(error)(f"public: {error}") from None


def find_networks(fields: Mapping[str, Any]) -> tuple[Network, ...]:
    """Returns the models, each with the file of weights that it begins from."""
    models, weights = fields["models"], fields["weights"]
    files = (weights,) * len(models) if weights is None or isinstance(weights, str) else tuple(weights)
    files = tuple(None if file is None else os.path.expanduser(file) for file in files)
    if len(files) != len(models):
        raise ValueError(f"weights={files} must be one file, or one (or None) for each of the {len(models)} models")
    return tuple(find_network(spec, file) for spec, file in zip(models, files, strict=True))


def find_network(spec: str, file: str | None = None) -> Network:
    """Returns a model by its spec, with its options checked."""
    name, options = registry.parse_spec(spec, "models")
    function, origin = registry.find_builder("model", name, MODELS)
    is_spec = function in (language.Spec, clip_task.Spec)
    around = {} if is_spec else {key: options.pop(key) for key in ("resize", "frame") if key in options}
    registry.check_call(f"model {name!r}", nn.image_size, ("input_shape",), around)
    given = () if is_spec else (*MODEL_ARGUMENTS, *nn.FIXED_OPTIONS.get(name, ()))
    registry.check_call(f"model {name!r}", function, given, options, is_external=origin != registry.BUILT_IN)
    return Network(ResolvedSpec("model", spec, name, options, function, origin), around, file)


def find_scores(specs: Sequence[str]) -> dict[str, Callable]:
    """Returns further scores by name: the option `name`, or else the function's or class's own
    name."""
    scores, spec_of = {}, {}
    for spec in specs:
        name, score = _find_score(spec)
        if name in spec_of:
            place, options = registry.parse_spec(spec)
            both = " and ".join(map(option_types.shorten, (spec_of[name], spec)))
            raise ValueError(
                f"evaluation.scores: {both} would both be recorded as {name!r}; give one of them a name of its own, such as "
                f"{spell(place, options | {'name': f'{name}_2'})!r}"
            )
        scores[name], spec_of[name] = score, spec
    return scores


def _find_score(spec: str) -> tuple[str, Callable]:
    """Returns a score's name in the records, and the score; of a class an object of it."""
    field = "evaluation.scores"
    place, options = registry.parse_spec(spec, field)
    function, _ = registry.find_builder("score", place, SCORES)
    name, is_class = place.rpartition(":")[2], isinstance(function, type)
    if "name" in options and "name" not in registry.read_parameters(function)[0]:
        name = option_types.check_value(f"{field}: name of {place!r}", options.pop("name"), str)
        spec = spell(place, options)
    if not re.fullmatch(r"[^\W\d]\w*", name) or name == GAP:
        raise ValueError(f"{field}: a score cannot be recorded as {name!r}; a name has letters, digits and _, and is not {GAP!r}")
    resolved = registry.resolve_spec("score", spec, SCORES, placed=() if is_class else SCORE_ARGUMENTS, field=field)
    if not is_class:
        return name, bind_options(resolved)
    score = resolved()
    if not callable(score):
        raise TypeError(f"score {place!r} is a class, whose objects must have __call__({', '.join(SCORE_ARGUMENTS)})")
    registry.positional_names(f"score {place!r}", score, SCORE_ARGUMENTS)
    return name, score


def bind_options(resolved: ResolvedSpec) -> Callable:
    """Returns a resolved function with its options bound."""
    return functools.partial(resolved.function, **resolved.options) if resolved.options else resolved.function


def find_loss(spec: str | None) -> ResolvedSpec | None:
    """Returns the loss of labels; None: the one that fits the targets."""
    return None if spec is None else registry.resolve_spec("loss", spec, LOSSES, placed=("logits", "y", "mask"), field="loss")


def find_regularizers(specs: Sequence[str]) -> tuple[ResolvedSpec, ...]:
    """Returns the terms of features that join the method's loss."""
    found = functools.partial(registry.resolve_spec, "regularizer", field="regularizers", placed=("features", "mask"))
    return tuple(found(spec, REGULARIZERS) for spec in specs)


def find_callbacks(specs: Sequence[str]) -> tuple[ResolvedSpec, ...]:
    """Returns the callbacks of a run."""
    return tuple(find_callback(spec) for spec in specs)
