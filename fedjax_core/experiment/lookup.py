"""What a config names, found by name and checked: method, optimiser, data, networks, losses and scores. No data are read."""

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import optax

from fedjax_core import nn, option_types, registry
from fedjax_core.data import partition, sources
from fedjax_core.experiment.method_registry import METHODS, Config, without_none
from fedjax_core.language import instruction_task as language
from fedjax_core.registry import Found
from fedjax_core.run.callbacks import find as callback
from fedjax_core.training import local_training, losses
from fedjax_core.training.scores import SCORES

OPTIMIZERS = {"sgd": local_training.sgd, "adam": local_training.adam}
LOSSES = {
    **{"cross_entropy": losses.cross_entropy, "smoothed": losses.smoothed, "focal": losses.focal},
    **{"sigmoid_cross_entropy": losses.sigmoid_cross_entropy},
    **{"squared_error": losses.squared_error, "absolute_error": losses.absolute_error},
}
OF_TARGETS = dict.fromkeys(("cross_entropy", "smoothed", "focal"), ("classes", "tokens"))  # what each loss is for
OF_TARGETS |= {"sigmoid_cross_entropy": ("labels",), "squared_error": ("numbers",), "absolute_error": ("numbers",)}
ROBUST = "robust"
NORMALISATIONS = {  # mean and deviation by channel, where the data's own are not taken
    "data": None,
    ROBUST: None,
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,), (0.5,)),
    "unit": ((0.0,), (1.0,)),
}
MODELS: dict[str, Callable] = nn.MODULES | {language.MODEL: language.Spec}
GAP = "gap"  # which stands in the names of scores for the difference between two kinds of clients
OF_MODELS = ("classes", "input_shape", "rngs", "dtype", "blocks", "block")


class Data(NamedTuple):
    """Where the data come from, and who gets which.

    Attributes:
      source: a reader, or of texts `language.Source`.
      directory: where data sets lie, or None.
      size, examples: see `data.subsample`.
      partition: a scheme.
      clients: N; None: all that the data have, for a partition that counts them itself.
      seed: of all draws that divide the data.
      tests: what `federated_data.federate` is told beside: long_tail, test_split, test_examples, those that are given.
      validation: what is held back of each client's training rows, a fraction or a number, or None.
      unseen: which clients never train, a fraction or a number, or None.
    """

    source: Found
    directory: str | None
    size: int | None
    examples: int | None
    partition: Found
    clients: int | None
    seed: int
    tests: dict[str, Any]
    validation: float | int | None
    unseen: float | int | None


class Network(NamedTuple):
    """One of the models.

    Attributes:
      found: a module, or of texts `language.Spec`.
      around: what stands before it: resize, frame.
      file: with the weights that it begins from, or None.
    """

    found: Found
    around: dict[str, Any]
    file: str | None


def method(config: Config) -> Found:
    """The method's builder, with its options.

    Raises:
      TypeError: it does not take a task by place and `optimizer` by name, or has no such option.
    """
    options = without_none(config.method.to_dict())
    spec, given, placed = options.pop("name"), ("optimizer",), ("task",)
    found = registry.find("method", spec, METHODS, given=given, placed=placed, field="method.name", options=options)
    takes, others = registry.parameters(found.function)
    if "optimizer" not in takes and not others:
        called = "a method is called as method(task, optimizer=..., ...), with config.optimizer as it is made"
        raise TypeError(f"method {found.name!r} must take optimizer=: {called}; it takes: {', '.join(takes)}.")
    return found


def optimizer(config: Config) -> local_training.Optimizer:
    """The optimiser that a config names: one of `OPTIMIZERS`; from outside one like them, or one of optax's."""
    options = without_none(config.optimizer.to_dict())
    name = options.pop("name")
    takes = registry.parameters(registry.lookup("optimizer", registry.parse(name, "optimizer.name")[0], OPTIMIZERS)[0])[0]
    rate = "learning_rate" if "lr" not in takes and "learning_rate" in takes else "lr"
    options = {rate if option == "lr" else option: value for option, value in options.items()}
    found = registry.find("optimizer", name, OPTIMIZERS, field="optimizer.name", options=options)
    made: Any = found()
    if isinstance(made, optax.GradientTransformation):
        return lambda round: made  # noqa: A006
    if callable(made):
        return cast(local_training.Optimizer, made)
    wants = "an optax.GradientTransformation, or a function of the round that gives one"
    raise TypeError(f"optimizer {found.name!r} must return {wants}, it returned {option_types.short(made)}")


def _reader(spec: str, field: str) -> Found:
    if registry.parse(spec, field)[0] == language.SOURCE:
        return registry.find("data set", spec, {language.SOURCE: language.Source}, field=field)
    found = sources.find(spec, field=field)
    if found.origin == registry.BUILT_IN and isinstance(of := found.options.get("of"), str):
        _reader(of, field)  # the set that it is made of
    return found


def data(said: Mapping[str, Any]) -> Data:
    """The data's source and division."""
    source = _reader(said["data.source"], "data.source")
    scheme = registry.find("partition", said["data.partition"], partition.SCHEMES, given=partition.GIVEN, field="data.partition")
    split, rows = said["data.test_split"], said["data.test_examples"]
    if (split == "matched") != (rows is not None):
        raise ValueError(f"data.test_split={split!r}, data.test_examples={rows}: 'matched' needs a number, the others take none")
    tests = without_none({"long_tail": said["data.long_tail"], "test_split": split, "test_examples": rows})
    where = (said["data.dir"], said["data.size"], said["data.examples"])
    kept = said["data.validation"], said["data.unseen_clients"]
    clients = partition.clients_of(scheme.name, said["data.clients"])
    return Data(source, *where, scheme, clients, said["data.seed"], tests, *kept)


def public(spec: str | None) -> tuple[Found, int | None] | None:
    """The source of a set that everybody holds, and how many examples of it."""
    if spec is None:
        return None
    name, options = registry.parse(spec, "public")
    number = option_types.check("public: examples", options.pop("examples", None), option_types.AtLeastOne | None)
    try:
        return _reader(_written(name, options), "public"), number
    except (ValueError, TypeError) as error:
        raise type(error)(f"public: {error}") from None


def networks(said: Mapping[str, Any]) -> tuple[Network, ...]:
    """The models, each with the file that it begins from."""
    models = said["models"]
    return tuple(network(spec, file) for spec, file in zip(models, files(models, said["weights"]), strict=True))


def files(models: Sequence[str], given: str | Sequence[str | None] | None) -> tuple[str | None, ...]:
    """The file that each of some models begins from, or None; a "~" in front is the user's home.

    Raises:
      ValueError: there are not as many as models.
    """
    found = (given,) * len(models) if given is None or isinstance(given, str) else tuple(given)
    found = tuple(None if file is None else os.path.expanduser(file) for file in found)
    if len(found) != len(models):
        raise ValueError(f"weights={found} must be one file, or one (or None) for each of the {len(models)} models")
    return found


def network(spec: str, file: str | None = None) -> Network:
    """A model by its spec, with its options checked."""
    name, options = registry.parse(spec, "models")
    function, origin = registry.lookup("model", name, MODELS)
    of_images = function is not language.Spec
    around = {key: options.pop(key) for key in ("resize", "frame") if key in options and of_images}
    registry.check(f"model {name!r}", nn.image_size, ("input_shape",), around)
    registry.check(f"model {name!r}", function, (*OF_MODELS, *nn.FIXED.get(name, ())) if of_images else (), options)
    return Network(Found("model", spec, name, options, function, origin), around, file)


def builder(name: str) -> Callable:
    """The builder of a network from outside (`nn/flax_adapter.py`).

    Raises:
      ValueError: there is none of that name.
    """
    return registry.lookup("model", name, MODELS)[0]


def scores(specs: Sequence[str]) -> dict[str, Callable]:
    """What is scored beside, by its name in the records: the option `name`, or else the function's or class's own name.

    Raises:
      ValueError: there is no such score; two would be recorded under one name, or one under a name that no score can have.
      TypeError: a score is not called as (outputs, x, y, mask), or has no such option.
    """
    scored, spec_of = {}, {}
    for spec in specs:
        name, score = _named_score(spec)
        if name in spec_of:
            both = " and ".join(map(option_types.short, (spec_of[name], spec)))
            raise ValueError(
                f"evaluation.scores: {both} would both be recorded as {name!r}; give one of them a name of its own, such as "
                f"{_with_option(spec, 'name', f'{name}_2')!r}"
            )
        scored[name], spec_of[name] = score, spec
    return scored


def _named_score(spec: str) -> tuple[str, Callable]:
    """Returns the name of a score in the records, and the score: of a class an object of it."""
    field = "evaluation.scores"
    place, options = registry.parse(spec, field)
    function, _ = registry.lookup("score", place, SCORES)
    name, is_class = place.rpartition(":")[2], isinstance(function, type)
    if "name" in options and "name" not in registry.parameters(function)[0]:
        name = option_types.check(f"{field}: name of {place!r}", options.pop("name"), str)
        spec = _written(place, options)
    if not re.fullmatch(r"[^\W\d]\w*", name) or name == GAP:
        raise ValueError(f"{field}: a score cannot be recorded as {name!r}; a name has letters, digits and _, and is not {GAP!r}")
    placed = ("outputs", "x", "y", "mask")
    found = registry.find("score", spec, SCORES, placed=() if is_class else placed, field=field)
    if not is_class:
        return name, _score(found)
    score = found()
    if not callable(score):
        raise TypeError(f"score {place!r} is a class, whose objects must have __call__({', '.join(placed)})")
    registry.by_place(f"score {place!r}", score, placed)
    return name, score


def _with_option(spec: str, option: str, value: str) -> str:
    """Returns a spec with another value of an option."""
    place, options = registry.parse(spec)
    return _written(place, options | {option: value})


def _written(place: str, options: Mapping[str, Any]) -> str:
    """Returns the spec of a name with options."""
    return f"{place}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


def _score(found: Found) -> Callable:
    return functools.partial(found.function, **found.options) if found.options else found.function


def loss(spec: str | None) -> Found | None:
    """The loss of labels; None: the one that fits the targets."""
    return None if spec is None else registry.find("loss", spec, LOSSES, placed=("logits", "y", "mask"), field="loss")


def trained(found: Found | None) -> Callable | None:
    """What a loss trains in place of cross-entropy; None: nothing."""
    return None if found is None or found.function is losses.cross_entropy else _score(found)


def callbacks(specs: Sequence[str]) -> tuple[Found, ...]:
    """What a run tells what happens."""
    return tuple(callback(spec) for spec in specs)
