"""From a config to a simulation, and to a run: what the command line and the notebooks share."""

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fedjax_core import by_name, nn
from fedjax_core.algorithm import Examples, Net
from fedjax_core.data import federated, partition, sources
from fedjax_core.data.smaller import adapted, smaller
from fedjax_core.engine import cohort as cohorts
from fedjax_core.engine import parallel
from fedjax_core.engine.simulation import Build, Evaluation, Group, Simulation, State
from fedjax_core.language import prepare as language
from fedjax_core.learning import augment, episodes, lora, training
from fedjax_core.learning.normalisation import local_statistics
from fedjax_core.run import Finished, restored, run
from fedjax_core.storage import weights
from fedjax_core.storage.checkpoint import Checkpoints
from fedjax_core.storage.workdir import CHECKPOINTS, CONFIG, RUN, read_json
from fedjax_core.task import PARTS, Model, Task, of_model, part_of

Config = Any  # an ml_collections.ConfigDict as configs/base.py makes it; type checkers do not know its fields
OPTIMIZERS = {"sgd": training.sgd, "adam": training.adam}
PROGRAMS = os.path.join("~", ".cache", "fedjax_core", "jax")  # where commands keep compiled programs
STATISTICS = ("average", "local", "freeze")
NORMALISATIONS = {  # mean and deviation by channel, where the data's own are not taken
    "data": None,
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,), (0.5,)),
}
TASKS = {"classification": lambda: None, "episodes": episodes.Episodes}


def names() -> dict[str, str]:
    """The methods that there are, each with the first line of its docstring."""
    modules = [m.name for m in pkgutil.iter_modules(importlib.import_module("methods").__path__) if m.name != "main"]
    return {name: (importlib.import_module(f"methods.{name}").__doc__ or "").partition("\n")[0] for name in modules}


def method(name: str) -> Callable:
    """The builder of a method: the function in `methods/<name>.py` that has its name, or one from outside (`by_name.py`).

    Raises:
      ValueError: there is no such method.
    """
    return by_name.lookup("method", name, _METHODS)[0]


class _Methods(Mapping[str, Callable]):
    """Builders by name, each imported when it is asked for."""

    def __iter__(self):
        return (m.name for m in pkgutil.iter_modules(importlib.import_module("methods").__path__) if m.name != "main")

    def __len__(self):
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Callable:
        if name not in set(iter(self)):
            raise KeyError(name)
        return getattr(importlib.import_module(f"methods.{name}"), name)


_METHODS = _Methods()


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a config leaves at None."""
    return {key: value for key, value in options.items() if value is not None}


def dataset(config: Config) -> federated.FederatedData:
    """The config's data, divided over its clients."""
    if language.named(config.data.source):
        return prepared(config).data
    data = config.data
    name, options = by_name.parse(data.source)
    scheme, arguments = by_name.parse(data.partition)
    return federated.federate(
        smaller(sources.load(name, data.dir, **options), data.size, data.examples),
        {"name": scheme, **arguments},
        data.clients,
        data.seed,
        **_given({"long_tail": data.long_tail, "test_split": data.test_split, "test_examples": data.test_examples}),
    )


def public(config: Config, like: Examples) -> Examples | tuple[()]:
    """The labelled set that everybody holds, as examples of the shape of `like`; empty if the config names none."""
    if config.public is None:
        return ()
    name, options = by_name.parse(config.public)
    examples = options.pop("examples", None)
    return adapted(smaller(sources.load(name, config.data.dir, **options), examples=examples).train, like)


def prepared(config: Config) -> language.Prepared:
    """Instructions, read for the config's one model.

    Raises:
      ValueError: the config has none, or asks for what is for images alone.
    """
    if not language.named(config.data.source):
        raise ValueError(f"data.source={config.data.source!r} has no texts; instructions(leave_out=...) has")
    wanted = {"augment": None, "public": None, "weights": None, "task": "classification", "train": "all"}
    for name, only in wanted.items():
        if config[name] != only:
            raise ValueError(f"{name}={config[name]!r} is for images; with instructions it must be {only!r}")
    if config.data.partition != language.PARTITION or len(config.models) != 1:
        wants = f"instructions need data.partition={language.PARTITION!r} and one model"
        raise ValueError(f"data.partition={config.data.partition!r}, models={tuple(config.models)}: {wants}")
    data = config.data
    return language.prepare(data.source, data.dir, data.clients, data.seed, config.models[0])


def network(
    spec: str,
    data: federated.FederatedData,
    statistics: str = "average",
    classes: int | None = None,
    scaling: tuple[Sequence[float], Sequence[float]] | None = None,
) -> Model:
    """A model for the data.

    Args:
      spec: name and options, as in `config.models`.
      data: to be classified.
      statistics: as in configs.
      classes: outputs of the head; None: as many as the data have.
      scaling: mean and deviation per channel, by which inputs are normalised; None: the training set's.
    """
    name, options = by_name.parse(spec)
    mean, std = scaling or scale(data.train)
    return nn.build(name, classes or data.classes, data.train.x.shape[1:], mean, std, statistics, **options)


def weight_files(config: Config) -> tuple[str | None, ...]:
    """The file that each of `config.models` begins from, or None.

    Raises:
      ValueError: there are not as many as models.
    """
    number, given = len(config.models), config.weights
    files = (given,) * number if given is None or isinstance(given, str) else tuple(given)
    if len(files) != number:
        raise ValueError(f"weights={files} must be one file, or one (or None) for each of the {number} models")
    return files


def spelled(spec: str, file: str | None) -> str:
    """The spec of a network that begins from a file: with the options that go with it, where the spec does not say them."""
    own = weights.options(file) if file else {}
    if not own:
        return spec
    name, options = by_name.parse(spec)
    return f"{name}({', '.join(f'{option}={value!r}' for option, value in (own | options).items())})"


def scaling(config: Config, examples: Examples, file: str | None = None) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and deviation by which a network's inputs are normalised: its file's, if it says so; else as `config.normalise` asks.

    Raises:
      ValueError: an unknown normalisation, or one for other channels.
    """
    by_name.choose("normalise", config.normalise, NORMALISATIONS)
    own = None if file is None else weights.scaling(file)
    found = own or NORMALISATIONS[config.normalise] or scale(examples)
    channels = examples.x.shape[-1]
    if len(found[0]) not in (1, channels):
        origin = f"weights={file!r}" if own else f"normalise={config.normalise!r}"
        raise ValueError(f"{origin} is for images of {len(found[0])} channels, these have {channels}")
    return found


def beginning(config: Config, model: Model, file: str | None, image: tuple[int, int] | None, shapes_only: bool = False) -> Net:
    """The arrays that a network begins from: those of its file; or if but a part is trained, random ones for the rest.

    Args:
      config: says what is trained.
      model: the network.
      file: with its weights, or None.
      image: height and width of the images that it sees; None: they are no images.
      shapes_only: zeros in place of random ones.
    """
    if file is not None:
        return weights.backbone(file, model.name, jax.eval_shape(model.init, jax.random.key(0)), image=image)
    if shapes_only:
        zero = lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
        net = jax.tree.map(zero, jax.eval_shape(model.init, jax.random.key(0)))
    else:
        net = jax.device_get(jax.jit(model.init)(jax.random.key(config.seed)))
    return net._replace(params={name: entry for name, entry in net.params.items() if name not in (PARTS[config.train] or ())})


def scale(examples: Examples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel (the last axis), of uint8 pixels in units of 255."""
    x = np.asarray(examples.x)
    axes = tuple(range(x.ndim - 1))
    if x.dtype == np.uint8:  # sums of whole numbers, block by block: several times faster, and exact
        rows = x.reshape(len(x), -1)
        sums = np.zeros((2, rows.shape[1]), np.uint64)
        for start in range(0, len(rows), 64):
            wide = rows[start : start + 64].astype(np.uint32)
            sums += np.stack([wide.sum(0, dtype=np.uint32), (wide * wide).sum(0, dtype=np.uint32)])
        total, squares = sums.reshape(2, -1, x.shape[-1]).sum(1).tolist()
        number = x.size // x.shape[-1]
        mean = np.array(total) / number / 255
        std = np.array([(q * number - s * s) ** 0.5 for s, q in zip(total, squares, strict=True)]) / number / 255
    else:
        mean, std = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def algorithm(config: Config) -> Build:
    """The method that a config describes, with its optimiser and options: task -> Algorithm.

    Raises:
      ValueError, TypeError: there is no such method, optimiser or option; the message names it.
    """
    builder = method(config.method.name)
    by_name.choose("statistics", config.statistics, STATISTICS)
    options = _given(config.optimizer)
    name = by_name.choose("optimizer", options.pop("name"), OPTIMIZERS)
    optimizer = by_name.call(f"optimizer {name!r}", OPTIMIZERS[name], {}, options)
    options = _given(config.method.to_dict())
    name = options.pop("name")
    by_name.check(f"method {name!r}", builder, ("task", "optimizer"), options)
    make = functools.partial(builder, optimizer=optimizer, **options)
    return local_statistics(make) if config.statistics == "local" else make


def few_shot(config: Config) -> episodes.Episodes | None:
    """How episodes are drawn; None where the task is to classify plain examples."""
    name, options = by_name.parse(config.task)
    by_name.choose("task", name, TASKS)
    return by_name.call(f"task {name!r}", TASKS[name], {}, options)


def check(config: Config) -> None:
    """Raises what `build` would for a method, a setting of it, a model or a partition that there is not, without the data."""
    algorithm(config)
    few_shot(config)
    by_name.choose("train", config.train, PARTS)
    by_name.choose("normalise", config.normalise, NORMALISATIONS)
    weight_files(config)
    if config.adapter is not None:
        lora.parse(config.adapter)
    if language.named(config.data.source):
        language.check(config.data.source, config.models[0])
        return
    for spec in config.models:
        by_name.choose("model", by_name.parse(spec)[0], nn.MODULES)
    if config.augment is not None:
        augment.parse(config.augment)
    if config.public is not None:
        by_name.choose("public data set", by_name.parse(config.public)[0].partition(":")[0], sources.READERS)
    by_name.choose("partition", by_name.parse(config.data.partition)[0], partition.SCHEMES)
    by_name.choose("data set", by_name.parse(config.data.source)[0].partition(":")[0], sources.READERS)


def build(config: Config, data: federated.FederatedData | None = None, shapes_only: bool = False) -> Simulation:
    """The simulation that a config describes.

    Args:
      config: see `configs/base.py`.
      data: in place of the config's, such as mock data of the same shape.
      shapes_only: nothing will run: what is frozen is zeros that take no memory, and files of weights are not looked for.

    Returns:
      The simulation, checked but not compiled; nothing is on a device yet.

    Raises:
      ValueError, TypeError: the config asks for something that is not there or not possible; the message names it.
      FileNotFoundError: the data are not there; the message says where to get and put them.
    """
    make, drawn = algorithm(config), few_shot(config)
    data = dataset(config) if data is None else data
    clients, models = np.arange(data.clients), tuple(config.models)
    if not 1 <= len(models) <= len(clients):
        raise ValueError(f"models={models} must be at least one, and no more than the {len(clients)} clients")
    kinds: dict[tuple[str, str | None], list[int]] = {}
    for i, kind in enumerate(zip(models, weight_files(config), strict=True)):
        kinds.setdefault(kind, []).append(i)
    groups, everybodys = [], public(config, data.train)
    for (spec, file), places in kinds.items():
        mine = clients[np.isin(clients % len(models), places)]
        task = _task(config, spec, None if shapes_only else file, data, drawn, everybodys, shapes_only)
        groups.append(Group(f"{places[0]}: {spec}", make, task, mine))
    evaluation = config.evaluation
    cohort = config.cohort.fraction if config.cohort.size is None else config.cohort.size
    return Simulation(
        groups,
        data,
        cohort=cohort,
        dropout=config.dropout,
        plan=_plan(config, data.clients if cohort is None else cohort, data.clients),
        evaluation=Evaluation(tuple(evaluation.scopes), evaluation.batch, evaluation.clients),
        hold=config.plan.hold,
        episodes=drawn,
    )


def _task(
    config: Config,
    spec: str,
    file: str | None,
    data: federated.FederatedData,
    drawn: episodes.Episodes | None,
    everybodys: Examples | tuple[()],
    shapes_only: bool,
) -> Task:
    """The network of one group, and what of it is trained."""
    if language.named(config.data.source):
        return language.task(prepared(config), config.adapter, shapes_only)

    def wrapped(model: Model) -> Model:
        model = model if config.augment is None else augment.augmented(model, config.augment)
        return model if drawn is None else episodes.prototypical(model, data.classes)

    spec = spelled(spec, file)
    outputs = 1 if drawn is not None else data.classes + (int(everybodys.y.max()) + 1 if isinstance(everybodys, Examples) else 0)
    model = network(spec, data, config.statistics, outputs, scaling(config, data.train, file))
    settings = {"classes": data.classes, "population": data.clients, "shape": tuple(data.train.x.shape[1:])}
    settings["public"] = everybodys
    if file is None and config.adapter is None and by_name.choose("train", config.train, PARTS) == "all":
        return of_model(wrapped(model), **settings)
    arrays = beginning(config, model, file, nn.image_size(settings["shape"], **by_name.parse(spec)[1]), shapes_only)
    if config.adapter is not None:
        return lora.adapted(model, arrays, lora.parse(config.adapter), PARTS[config.train] or (), **settings).wrapped(wrapped)
    return part_of(model, arrays, config.train, **settings).wrapped(wrapped)


def _plan(config: Config, cohort: int | float, population: int) -> parallel.Plan | None:
    if config.plan.chunk is None and config.plan.devices is None:
        return None
    return parallel.choose(cohorts.number(cohort, population), chunk=config.plan.chunk, devices=config.plan.devices)


def execute(
    config: Config,
    workdir: str,
    progress: bool | None = None,
    *,
    data: federated.FederatedData | None = None,
    console: Callable[[str], None] | None = None,
    callbacks: Sequence[Any] = (),
) -> Finished:
    """Builds and runs a config in a work directory, or resumes it there.

    Args:
      config: see `configs/base.py`.
      workdir: a new directory, or one that holds this run.
      progress: True: a bar; False: no bar and no lines; None: a bar on a terminal or in a notebook, lines elsewhere.
      data: in place of the config's, which they must be if the run is resumed.
      console: takes what is said (label table, scores at the end); None: standard error.
      callbacks: told what happens, beside those that the config names: see `fedjax_core/run/callbacks.py`.

    Returns:
      The final state, the summary, the plots and the history; see `fedjax_core.run.run`, also for what it raises.
    """
    simulation = build(config, data)
    try:
        return run(
            simulation,
            workdir,
            config.to_dict(),
            seed=config.seed,
            rounds=config.rounds,
            every=config.evaluation.every,
            targets=tuple(config.evaluation.targets),
            last_k=config.evaluation.last_k,
            checkpoint_seconds=config.checkpoint.seconds,
            keep=config.checkpoint.keep,
            record={"convolution": nn.describe()},
            chosen_plan=config.plan.chunk is not None or config.plan.devices is not None,
            profile=config.profile,
            callbacks=(*config.get("callbacks", ()), *callbacks),
            progress=progress,
            console=console,
        )
    finally:
        simulation.release()  # the next run's base has the room, whenever this one's objects are collected


def load(
    workdir: str | os.PathLike, done: int | None = None, data: federated.FederatedData | None = None
) -> tuple[Config, Simulation, State]:
    """A run as its directory holds it, to score or to analyse; the directory is only read.

    Args:
      workdir: of a run, finished or not.
      done: the round after which; None: the last one that has a checkpoint.
      data: in place of the config's, for a run that was given its data.

    Returns:
      (config, simulation, state).

    Raises:
      ValueError: the directory has no such checkpoint, or its data are not the config's any more.
      OSError: it holds no run, or it cannot be read.
    """
    folder = Path(workdir)
    config: Config = ConfigDict(_tuples(read_json(folder / CONFIG)))
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    done = checkpoints.latest() if done is None else done
    if done is None:
        raise ValueError(f"{folder} has no checkpoint yet; let the run go on until it has one")
    if (config.plan.devices or 1) > jax.device_count():
        config.plan.devices = None
    try:
        simulation = build(config, data)
    except AttributeError as error:
        raise ValueError(f"{folder / CONFIG} has no field {error}; another version of the code wrote it") from None
    before, now = read_json(folder / RUN)["partition"]["hash"], simulation.data.partition_hash
    if before != now:
        raise ValueError(f"{folder} was run on other data: its partition hash is {before[:12]}, now it is {now[:12]}")
    return config, simulation, restored(simulation, checkpoints, done)


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples that configs have."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def keep_programs(directory: str) -> None:
    """Keeps compiled programs in a directory, for this process and the next ones; '' for nowhere."""
    if directory:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(directory))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def use_all_cores() -> None:
    """On a CPU gives jax one device per core, over which clients are spread. Call it before anything touches a device."""
    if (
        "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", "")
        and jax.config.values["jax_num_cpu_devices"] < 1
    ):
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
