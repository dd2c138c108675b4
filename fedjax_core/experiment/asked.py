"""From a config to what it asks for: every name found, every setting checked; what is wrong is said in one line. No data are read.

`resolve(config)` is the one place that reads a config's names; `build` reads what it returns and nothing else.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import optax

from fedjax_core import by_name, nn, outside, values
from fedjax_core.by_name import Found
from fedjax_core.data import partition, poison, sources
from fedjax_core.engine.simulation import Evaluation
from fedjax_core.experiment import fields
from fedjax_core.experiment.methods import METHODS, Config, without_none
from fedjax_core.language import prepare as language
from fedjax_core.learning import augment, episodes, lora, losses, training
from fedjax_core.privacy import Privacy
from fedjax_core.privacy import asked as privacy_asked
from fedjax_core.task import PARTS
from fedjax_core.uplink import Link, attacks, compression, order, privacy, rules

OPTIMIZERS = {"sgd": training.sgd, "adam": training.adam}
LOSSES = {
    **{"cross_entropy": losses.cross_entropy, "smoothed": losses.smoothed, "focal": losses.focal},
    **{"sigmoid_cross_entropy": losses.sigmoid_cross_entropy},
    **{"squared_error": losses.squared_error, "absolute_error": losses.absolute_error},
}
OF_TARGETS = dict.fromkeys(("cross_entropy", "smoothed", "focal"), ("classes", "tokens"))  # what each loss is for
OF_TARGETS |= {"sigmoid_cross_entropy": ("labels",), "squared_error": ("numbers",), "absolute_error": ("numbers",)}
STATISTICS = ("average", "local", "freeze")
NORMALISATIONS = {  # mean and deviation by channel, where the data's own are not taken
    "data": None,
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,), (0.5,)),
    "unit": ((0.0,), (1.0,)),
}
TASKS = {"classification": lambda: None, "episodes": episodes.Episodes}
MODELS: dict[str, Callable] = nn.MODULES | {language.MODEL: language.Spec}
OF_METHODS, OF_MODELS = ("task", "optimizer"), ("classes", "input_shape", "rngs", "dtype", "blocks", "block")
FOR_IMAGES = {"augment": None, "public": None, "weights": None, "task": "classification", "train": "all"}


class Data(NamedTuple):
    """Where the data come from, and who gets which.

    Attributes:
      source: a reader, or of texts `language.Source`.
      directory: where data sets lie, or None.
      size, examples: see `data.smaller`.
      partition: a scheme.
      clients: N.
      seed: of all draws that divide the data.
      tests: what `federated.federate` is told beside: long_tail, test_split, test_examples, those that are given.
      validation: what is held back of each client's training rows, a fraction or a number, or None.
      unseen: which clients never train, a fraction or a number, or None.
    """

    source: Found
    directory: str | None
    size: int | None
    examples: int | None
    partition: Found
    clients: int
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


class Adversary(NamedTuple):
    """Who attacks, and how.

    Attributes:
      attacks: one after another: poisons of data, and changes of what is sent.
      fraction: of the clients.
    """

    attacks: list[Found]
    fraction: float


class Asked(NamedTuple):
    """What a config asks for.

    Attributes:
      seed: of initialisation, sampling and training.
      method: its builder, with its options.
      optimizer: made.
      data: its source and its division.
      networks: client i has network i mod their number.
      public: the source of a set that everybody holds, and how many examples of it; None: no such set.
      episodes: how they are drawn; None where plain examples are classified.
      adapter: what is trained beside a frozen network, or None.
      train: which part of networks is trained, one of `PARTS`.
      normalise: one of `NORMALISATIONS`.
      statistics: one of `STATISTICS`.
      augment: of training images, or None.
      scores: by name, what is scored beside accuracy and loss.
      loss: of labels, in place of cross-entropy, or None.
      cohort: how many clients take part, or their fraction; None: all.
      dropout: probability that a sampled client does not come back.
      evaluation: what is scored.
      chunk, devices, model, hold: how a round is spread, see `parallel.choose`.
      data_on: where the data lie, see `placement.choose`.
      adversary: who attacks and how, or None.
      links: what uplinks pass through beside attacks, see `uplink`.
      leave_out: whether clients that send something not finite are left out.
      sampling: of cohorts, "fixed" or "poisson".
      mechanism: of differential privacy, or None; it takes what `privacy` says.
      privacy: how much, or None.
    """

    seed: int
    method: Found
    optimizer: training.Optimizer
    data: Data
    networks: tuple[Network, ...]
    public: tuple[Found, int | None] | None
    episodes: episodes.Episodes | None
    adapter: lora.Kind | None
    train: str
    normalise: str
    statistics: str
    augment: str | None
    scores: dict[str, Callable]
    loss: Callable | None
    cohort: int | float | None
    dropout: float
    evaluation: Evaluation
    chunk: int | None
    devices: int | None
    model: int
    hold: str
    data_on: str | None
    adversary: Adversary | None
    links: tuple[Link, ...]
    leave_out: bool
    sampling: str
    mechanism: Found | None
    privacy: Privacy | None


def builder(name: str) -> Callable:
    """The builder of a network from outside (`nn/outside.py`).

    Raises:
      ValueError: there is none of that name.
    """
    return by_name.lookup("model", name, MODELS)[0]


def resolve(config: Config) -> Asked:
    """What a config asks for, checked.

    Raises:
      ValueError, TypeError: a name or an option that there is not, or a value that is not allowed; the message names the field.
      AttributeError: the config lacks a field.
    """
    said = fields.check(config)
    cohort = said["cohort.fraction"] if said["cohort.size"] is None else said["cohort.size"]
    asked = Asked(
        said["seed"],
        _method(config),
        optimizer(config),
        _data(said),
        _networks(said),
        _public(said["public"]),
        by_name.find("task", said["task"], TASKS, field="task")(),
        None if said["adapter"] is None else by_name.find("adapter", said["adapter"], lora.ADAPTERS, field="adapter")(),
        by_name.choose("train", said["train"], PARTS),
        by_name.choose("normalise", said["normalise"], NORMALISATIONS),
        by_name.choose("statistics", said["statistics"], STATISTICS),
        said["augment"],
        _scores(said["evaluation.scores"] or ()),
        _loss(said["loss"]),
        cohort,
        said["dropout"],
        Evaluation(
            tuple(said["evaluation.scopes"]),
            said["evaluation.batch"],
            said["evaluation.clients"],
            said["evaluation.newcomer_updates"] or 1,
        ),
        said["plan.chunk"],
        said["plan.devices"],
        said["plan.model"] or 1,
        said["plan.hold"],
        said["plan.data"],
        _adversary(said),
        _links(said),
        _leaves_out(said),
        said["cohort.sampling"] or "fixed",
        *_private(said),
    )
    if asked.augment is not None:
        augment.parse(asked.augment)
    _go_together(asked, said)
    return asked


def check(config: Config) -> None:
    """Raises what `resolve` does."""
    resolve(config)


def _method(config: Config) -> Found:
    options = without_none(config.method.to_dict())
    return by_name.find("method", options.pop("name"), METHODS, given=OF_METHODS, field="method.name", options=options)


def optimizer(config: Config, numbers: Mapping[str, Any] | None = None) -> training.Optimizer:
    """The optimiser that a config names: one of `OPTIMIZERS`; from outside one like them, or one of optax's.

    Args:
      config: whose options are checked.
      numbers: options in place of the config's, that are not (`numbers.Number`).
    """
    options = without_none(config.optimizer.to_dict())
    name = options.pop("name")
    takes = by_name.parameters(by_name.lookup("optimizer", by_name.parse(name, "optimizer.name")[0], OPTIMIZERS)[0])[0]
    rate = "learning_rate" if "lr" not in takes and "learning_rate" in takes else "lr"
    renamed = lambda given: {rate if option == "lr" else option: value for option, value in given.items()}
    found = by_name.find("optimizer", name, OPTIMIZERS, field="optimizer.name", options=renamed(options))
    made = found() if numbers is None else found.function(**found.options | renamed(numbers))
    return (lambda round: made) if isinstance(made, optax.GradientTransformation) else made  # noqa: A006


def algorithm(asked: Asked) -> Callable:
    """The method with its optimiser and options: task -> Algorithm."""
    return functools.partial(asked.method.function, optimizer=asked.optimizer, **asked.method.options)


def _reader(spec: str, field: str) -> Found:
    if by_name.parse(spec, field)[0] == language.SOURCE:
        return by_name.find("data set", spec, {language.SOURCE: language.Source}, field=field)
    found = sources.find(spec, field=field)
    if found.origin == by_name.BUILT_IN and isinstance(of := found.options.get("of"), str):
        _reader(of, field)  # the set that it is made of
    kind, colon, _ = found.name.partition(":")
    of_name = {"path"} if colon and kind in sources.PREFIXED else set()  # what its name says already
    return found._replace(options={key: value for key, value in found.options.items() if key not in of_name})


def _data(said: Mapping[str, Any]) -> Data:
    source = _reader(said["data.source"], "data.source")
    scheme = by_name.find("partition", said["data.partition"], partition.SCHEMES, given=partition.GIVEN, field="data.partition")
    split, rows = said["data.test_split"], said["data.test_examples"]
    if (split == "matched") != (rows is not None):
        raise ValueError(f"data.test_split={split!r}, data.test_examples={rows}: 'matched' needs a number, the others take none")
    tests = without_none({"long_tail": said["data.long_tail"], "test_split": split, "test_examples": rows})
    where = (said["data.dir"], said["data.size"], said["data.examples"])
    kept = said["data.validation"], said["data.unseen_clients"]
    return Data(source, *where, scheme, said["data.clients"], said["data.seed"], tests, *kept)


def _public(spec: str | None) -> tuple[Found, int | None] | None:
    if spec is None:
        return None
    name, options = by_name.parse(spec, "public")
    number = values.check("public: examples", options.pop("examples", None), values.AtLeastOne | None)
    written = f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"
    try:
        return _reader(written, "public"), number
    except (ValueError, TypeError) as error:
        raise type(error)(f"public: {error}") from None


def _networks(said: Mapping[str, Any]) -> tuple[Network, ...]:
    models = said["models"]
    return tuple(network(spec, file) for spec, file in zip(models, files(models, said["weights"]), strict=True))


def files(models: Sequence[str], given: str | Sequence[str | None] | None) -> tuple[str | None, ...]:
    """The file that each of some models begins from, or None.

    Raises:
      ValueError: there are not as many as models.
    """
    found = (given,) * len(models) if given is None or isinstance(given, str) else tuple(given)
    if len(found) != len(models):
        raise ValueError(f"weights={found} must be one file, or one (or None) for each of the {len(models)} models")
    return found


def network(spec: str, file: str | None = None) -> Network:
    """A model by its spec, with its options checked."""
    name, options = by_name.parse(spec, "models")
    function, origin = by_name.lookup("model", name, MODELS)
    of_images = function is not language.Spec
    around = {key: options.pop(key) for key in ("resize", "frame") if key in options and of_images}
    by_name.check(f"model {name!r}", nn.image_size, ("input_shape",), around)
    by_name.check(f"model {name!r}", function, (*OF_MODELS, *nn.FIXED.get(name, ())) if of_images else (), options)
    return Network(Found("model", spec, name, options, function, origin), around, file)


def _scores(specs: Sequence[str]) -> dict[str, Callable]:
    """What is scored beside, by its name in the records."""
    scored, spec_of = {}, {}
    for spec in specs:
        found = by_name.find("score", spec, {}, given=("outputs", "x", "y", "mask"), field="evaluation.scores")
        name = found.name.rpartition(":")[2]
        if name in spec_of:
            both = " and ".join(map(values.short, (spec_of[name], spec)))
            raise ValueError(
                f"evaluation.scores: {both} would both be recorded as {name!r}; give one of them a name of its own, such as by "
                "another function"
            )
        scored[name], spec_of[name] = _score(found), spec
    return scored


def _score(found: Found) -> Callable:
    return functools.partial(found.function, **found.options) if found.options else found.function


def _loss(spec: str | None) -> Callable | None:
    if spec is None:
        return None
    found = by_name.find("loss", spec, LOSSES, given=("logits", "y", "mask"), field="loss")
    return None if found.function is losses.cross_entropy else _score(found)


def _links(said: Mapping[str, Any]) -> tuple[Link, ...]:
    """What uplinks pass through, in its order."""
    parsers = {
        "compression.uplink": compression.parse,
        "compression.downlink": compression.down,
        "aggregation.rule": rules.parse,
    }
    return order([parse(said[field]) for field, parse in parsers.items() if said[field] is not None])


def _leaves_out(said: Mapping[str, Any]) -> bool:
    """Whether clients that send something not finite are left out: as the config says, else where there is a rule or privacy."""
    asked = said["aggregation.not_finite"]
    return bool(said["aggregation.rule"] or said["privacy.mechanism"]) if asked is None else asked == "leave_out"


def _adversary(said: Mapping[str, Any]) -> Adversary | None:
    attack, fraction = said["adversary.attack"], said["adversary.fraction"]
    if (attack is None) != (fraction is None):
        found = f"adversary.attack={values.short(attack)}, adversary.fraction={fraction}"
        raise ValueError(f"{found}: give both, such as 'sign_flip' and 0.2, or none")
    if attack is None:
        return None
    found = attacks.find(attack, poison.POISONS)
    if any(one.function is attacks.not_finite for one in found) and not _leaves_out(said):
        raise ValueError(
            f"adversary.attack={values.short(attack)} ends the run at once; set aggregation.not_finite='leave_out', or a rule"
        )
    return Adversary(found, fraction)


def _private(said: Mapping[str, Any]) -> tuple[Found | None, Privacy | None]:
    """The mechanism, and how much of it."""
    spec = said["privacy.mechanism"]
    if spec is None:
        return None, privacy_asked(said, None)
    if outside.PLACE.fullmatch(by_name.parse(spec, "privacy.mechanism")[0]):
        names = ", ".join(privacy.MECHANISMS)
        raise ValueError(f"privacy.mechanism={spec!r}: only those whose privacy can be accounted for are allowed: {names}")
    found = by_name.find("mechanism", spec, privacy.MECHANISMS, given=privacy.GIVEN, field="privacy.mechanism")
    if said["aggregation.rule"] not in (None, "mean") and not found.name.startswith("local"):
        raise ValueError(
            f"privacy.mechanism={spec!r} and aggregation.rule={said['aggregation.rule']!r} each say how uplinks become one, and of "
            "a rule's result nobody knows how far one client moves it; choose one of them"
        )
    texts = by_name.parse(said["data.source"])[0] == language.SOURCE
    if NORMALISATIONS.get(said["normalise"], ()) is None and not texts:
        names = ", ".join(repr(name) for name, scaling in NORMALISATIONS.items() if scaling is not None)
        raise ValueError(
            f"privacy.mechanism={spec!r} and normalise={said['normalise']!r}: mean and deviation of all clients' rows would come "
            f"without noise, which no epsilon is told of; set normalise to one of {names}"
        )
    return found, privacy_asked(said, found.name, found.options)


def _go_together(asked: Asked, said: Mapping[str, Any]) -> None:
    """Raises ValueError for texts with what is for images, or the other way round, and for episodes with validation rows or
    unseen clients."""
    if asked.episodes is not None and asked.data.validation is not None:
        raise ValueError(f"data.validation={asked.data.validation} is of plain examples; task={said['task']!r} has none")
    texts = asked.data.source.function is language.Source
    if asked.data.unseen is not None and (texts or asked.episodes is not None):
        what = "instructions have tasks that nobody trains on" if texts else "episodes are of unseen classes, and of no client"
        raise ValueError(f"data.unseen_clients={asked.data.unseen} is for clients with labelled rows of their own; {what}")
    for one in asked.networks:
        reads = one.found.function is language.Spec
        if texts and not reads:
            raise ValueError(f"model {one.found.spec!r} cannot read instructions; models must be ('{language.MODEL}(folder=...)',)")
        if reads and not texts:
            raise ValueError(
                f"model {one.found.spec!r} reads texts; data.source={said['data.source']!r} has none, instructions has"
            )
        if reads:
            language.check(one.found())
    if not texts:
        return
    for name, only in FOR_IMAGES.items():
        if said[name] != only:
            raise ValueError(f"{name}={said[name]!r} is for images; with instructions it must be {only!r}")
    if asked.data.partition.spec != language.PARTITION or len(asked.networks) != 1:
        wants = f"instructions need data.partition={language.PARTITION!r} and one model"
        raise ValueError(f"data.partition={asked.data.partition.spec!r}, models={tuple(said['models'])}: {wants}")
