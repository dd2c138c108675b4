"""From a config to a simulation, and to a run: what the command line and the notebooks share."""

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import methods
from fedjax_core import by_name, nn, parallel, training
from fedjax_core import cohort as cohorts
from fedjax_core.algorithm import Examples
from fedjax_core.data import federated, sources
from fedjax_core.normalisation import local_statistics
from fedjax_core.run import Finished, run
from fedjax_core.simulation import Evaluation, Group, Simulation
from fedjax_core.task import Model, of_model

Config = Any  # an ml_collections.ConfigDict as configs/base.py makes it; type checkers do not know its fields
OPTIMIZERS = {"sgd": training.sgd, "adam": training.adam}
STATISTICS = ("average", "local", "freeze")
_NOT_METHODS = {"experiment", "main"}


def names() -> dict[str, str]:
    """The methods that there are, each with the first line of its docstring."""
    modules = [m.name for m in pkgutil.iter_modules(methods.__path__) if m.name not in _NOT_METHODS]
    return {name: (importlib.import_module(f"methods.{name}").__doc__ or "").partition("\n")[0] for name in modules}


def method(name: str) -> Callable:
    """The builder of a method: the function in `methods/<name>.py` that has its name.

    Raises:
      ValueError: there is no such method.
    """
    by_name.choose("method", name, names())
    return getattr(importlib.import_module(f"methods.{name}"), name)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a config leaves at None."""
    return {key: value for key, value in options.items() if value is not None}


def dataset(config: Config) -> federated.FederatedData:
    """The config's data, divided over its clients."""
    data = config.data
    name, options = by_name.parse(data.source)
    scheme, arguments = by_name.parse(data.partition)
    return federated.federate(
        sources.load(name, data.dir, **options),
        {"name": scheme, **arguments},
        data.clients,
        data.seed,
        **_given({"long_tail": data.long_tail, "test_split": data.test_split, "test_examples": data.test_examples}),
    )


def network(spec: str, data: federated.FederatedData, statistics: str = "average") -> Model:
    """A model for the data, its inputs normalised by the training set's mean and deviation per channel."""
    name, options = by_name.parse(spec)
    mean, std = scale(data.train)
    return nn.build(name, data.classes, data.train.x.shape[1:], mean, std, statistics, **options)


def scale(examples: Examples) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel (the last axis), of uint8 pixels in units of 255."""
    x = np.asarray(examples.x)
    axes = tuple(range(x.ndim - 1))
    unit = 255.0 if x.dtype == np.uint8 else 1.0
    mean = x.mean(axes, dtype=np.float64) / unit
    std = x.std(axes, dtype=np.float64) / unit
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def build(config: Config, data: federated.FederatedData | None = None) -> Simulation:
    """The simulation that a config describes.

    Args:
      config: see `configs/base.py`.
      data: in place of the config's, such as mock data of the same shape.

    Returns:
      The simulation, checked but not compiled.

    Raises:
      ValueError, TypeError: the config asks for something that is not there or not possible; the message names it.
      FileNotFoundError: the data are not there; the message says where to get and put them.
    """
    builder = method(config.method.name)
    by_name.choose("statistics", config.statistics, STATISTICS)
    options = _given(config.optimizer)
    name = by_name.choose("optimizer", options.pop("name"), OPTIMIZERS)
    optimizer = by_name.call(f"optimizer {name!r}", OPTIMIZERS[name], {}, options)
    options = _given(config.method)
    name = options.pop("name")
    by_name.check(f"method {name!r}", builder, ("task", "optimizer"), options)
    make = functools.partial(builder, optimizer=optimizer, **options)
    if config.statistics == "local":
        make = local_statistics(make)
    data = dataset(config) if data is None else data
    clients, models = np.arange(data.clients), tuple(config.models)
    if not 1 <= len(models) <= len(clients):
        raise ValueError(f"models={models} must be at least one, and no more than the {len(clients)} clients")
    groups = []
    for i, spec in enumerate(models):
        task = of_model(network(spec, data, config.statistics), classes=data.classes, population=data.clients)
        groups.append(Group(f"{i}: {spec}", make, task, clients[i :: len(models)]))
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
    )


def _plan(config: Config, cohort: int | float, population: int) -> parallel.Plan | None:
    if config.plan.chunk is None and config.plan.devices is None:
        return None
    return parallel.choose(cohorts.number(cohort, population), chunk=config.plan.chunk, devices=config.plan.devices)


def execute(config: Config, workdir: str, progress: bool | None = None) -> Finished:
    """Builds and runs a config in a work directory, or resumes it there.

    Args:
      config: see `configs/base.py`.
      workdir: a new directory, or one that holds this run.
      progress: True: a bar; False: silent; None: a bar on a terminal or in a notebook, lines elsewhere.

    Returns:
      The final state, the summary and the plots; see `fedjax_core.run.run`, also for what it raises.
    """
    return run(
        build(config),
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
        progress=progress,
    )


def use_all_cores() -> None:
    """On a CPU gives jax one device per core, over which clients are spread. Call it before anything touches a device."""
    if (
        "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", "")
        and jax.config.values["jax_num_cpu_devices"] < 1
    ):
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
