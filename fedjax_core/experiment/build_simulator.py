"""Builds the simulation of a config: reads and divides its data, builds its networks, and makes tasks of both."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_core import option_types
from fedjax_core.algorithm import TARGETS, targets_of
from fedjax_core.data import federated_data, poisoning
from fedjax_core.engine import client_loop
from fedjax_core.engine import client_sampling as cohorts
from fedjax_core.engine.simulator import Build, Group, Simulation
from fedjax_core.experiment import adversaries, build_task, config_warnings, protection, python_overrides
from fedjax_core.experiment.lookup import LOSS_TARGETS, bind_options
from fedjax_core.experiment.resolve_config import Asked, algorithm, resolve
from fedjax_core.experiment.schema import Config
from fedjax_core.task import Task
from fedjax_core.training import backdoor, losses, scored
from fedjax_core.training.local_batch_norm import local_statistics
from fedjax_core.uplink import order


def build(
    config: Config,
    data: federated_data.FederatedData | None = None,
    *,
    method: Callable | None = None,
    model: Any = None,
    loss: Callable | None = None,
    scores: python_overrides.Scores | None = None,
    shapes_only: bool = False,
    devices: Sequence[Any] | None = None,
    kind: build_task.DataPipeline | None = None,
    noise: Mapping[str, Any] | None = None,
    accounted: bool = True,
    by_lane: Callable[[Asked], Build] | None = None,
    asked: Asked | None = None,
) -> Simulation:
    """Builds the simulation of a config. It is checked but not compiled; nothing is on a device yet.

    Args:
      config: see `configs/base.py`.
      data: in place of the config's, such as mock data of the same shape.
      method, model, loss, scores: in place of the config's, see `python_overrides.into`.
      shapes_only: nothing will run: frozen arrays are zeros without memory, and files of weights are not read.
      devices: in place of those that jax sees, such as those of a topology to compile for.
      kind: in place of the config's own data pipeline (`mock_data.py`).
      noise: what run.json records of a run's privacy, so that its noise is not calibrated again; None: nothing.
      accounted: whether privacy is accounted for; False for a run that is only read.
      by_lane: makes the method, in place of its options in the config (`numbers.py`).
      asked: the config, resolved, which is then not read; None: it is resolved here.

    Raises:
      ValueError, TypeError: something that the config names does not exist or is not possible; the message names it.
      FileNotFoundError: the data do not exist; the message says where to get and put them.
    """
    asked = resolve(python_overrides.into(config, method, model, loss, scores)) if asked is None else asked
    pipeline = build_task.pipeline_of(asked) if kind is None else kind
    data = build_task.hold_out_examples(asked, pipeline.federated(asked) if data is None else data)
    _check_targets(asked, targets_of(data.train.y))
    _check_clients(asked, data, accounted)
    poisons, attacks = adversaries.attacked(asked, data.clients)
    trigger = next((poison.trigger for poison in poisons if poison.trigger is not None), None)
    make = algorithm(asked) if by_lane is None else by_lane(asked)
    groups = _build_groups(asked, pipeline, data, make, trigger, shapes_only)
    if asked.adversary is not None and any(group.build(group.task).pooled for group in groups):
        attack = option_types.short(asked.said["adversary.attack"])
        raise ValueError(f"adversary.attack={attack}: a pooled method has no clients that could attack")
    attackers = adversaries.attackers(asked, data.clients)
    spent = protection.of_asked(asked, data.clients, accounted and not shapes_only, noise)
    if shapes_only:
        data = poisoning.counted(data, poisons, attackers)
    else:
        fresh = {network.found.spec for network in asked.networks if not network.file}
        models = {spec: group.task.model for group in groups if (spec := group.name.partition(": ")[2]) in fresh}
        config_warnings.warn(asked, data, len(attackers), models)
        data = poisoning.poisoned(data, poisons, attackers, asked.data.seed)
    return Simulation(
        groups,
        data,
        cohort=asked.cohort,
        dropout=asked.dropout,
        plan=_choose_plan(asked, data.clients, devices),
        evaluation=asked.evaluation,
        hold=asked.hold,
        data_on=asked.data_on,
        episodes=asked.episodes,
        devices=devices,
        links=order([*asked.links, *attacks, *protection.links(asked, spent, data.clients)]),
        leave_out=asked.leave_out,
        sampling=asked.sampling,
    )


def _build_groups(
    asked: Asked,
    pipeline: build_task.DataPipeline,
    data: federated_data.FederatedData,
    make: Callable,
    trigger: Any,
    shapes_only: bool,
) -> list[Group]:
    """Returns a group of clients for each different network.

    Args:
      asked: the config, resolved.
      pipeline: from the data to a task.
      data: divided over the clients.
      make: task -> Algorithm.
      trigger: of a backdoor attack, which is scored, or None.
      shapes_only: see `build`.
    """
    make = local_statistics(make) if asked.statistics == "local" else make
    scores = dict(asked.scores)
    if trigger is not None:
        if "backdoor" in scores:
            raise ValueError("evaluation.scores has 'backdoor', the score of adversary.attack; give yours another name")
        make, scores = backdoor.watched(make, trigger), scores | {"backdoor": backdoor.score(trigger)}
    loss = None  # cross-entropy
    if asked.loss is not None and asked.loss.function is not losses.cross_entropy:
        loss = bind_options(asked.loss)
    public, clients, groups = pipeline.public(asked, data), np.arange(data.clients), []
    members: dict[tuple[str, str | None], list[int]] = {}
    for index, network in enumerate(asked.networks):
        members.setdefault((network.found.spec, network.file), []).append(index)
    for (spec, _), indices in members.items():
        network = asked.networks[indices[0]]
        task = pipeline.task(asked, network._replace(file=None) if shapes_only else network, data, public, shapes_only)
        if scores or loss is not None:
            task = dataclasses.replace(_with_scores(task, scores), loss=loss)
        has_network = np.isin(clients % len(asked.networks), indices)
        groups.append(Group(f"{indices[0]}: {spec}", make, task, clients[has_network]))
    return groups


def _check_clients(asked: Asked, data: federated_data.FederatedData, accounted: bool) -> None:
    """Raises ValueError where there are too few clients for the config, or no unseen ones."""
    updates = asked.said["evaluation.newcomer_updates"]
    if accounted and updates is not None and data.unseen is None:
        raise ValueError(
            f"evaluation.newcomer_updates={updates} is for unseen clients, and no client is unseen; "
            "set data.unseen_clients, such as 0.2, or leave it out"
        )
    if not 1 <= len(asked.networks) <= data.clients:
        models = tuple(network.found.spec for network in asked.networks)
        raise ValueError(f"models={models} must be at least one, and no more than the {data.clients} clients")
    if (size := asked.said["cohort.size"]) is not None and size > data.clients:
        raise ValueError(f"cohort.size={size} must be at most the number of clients that train, {data.clients}")


def _check_targets(asked: Asked, targets: str) -> None:
    """Raises ValueError for options that are for other targets than those of the data (a key of `TARGETS`)."""
    loss = asked.loss
    if loss is not None and targets not in (fits := LOSS_TARGETS.get(loss.name, (targets,))):
        raise ValueError(f"loss={loss.spec!r} is for {' or '.join(fits)}, the data have {targets}: {TARGETS[targets]}")
    _check_scores(asked, targets)
    for field, is_set in (("task", asked.episodes is not None), ("public", asked.public is not None)):
        if is_set and targets != "classes":
            value = asked.said[field]
            raise ValueError(f"{field}={value!r} needs classes, the data have {targets}: {TARGETS[targets]}")


def _check_scores(asked: Asked, targets: str) -> None:
    """Raises ValueError for a score that is for other data, or whose name is taken."""
    if taken := [name for name in asked.scores if name in scored.NAMES[targets]]:
        raise ValueError(f"evaluation.scores has {taken[0]!r}, which is scored of {targets} already; give yours another name")
    for name, score in asked.scores.items():
        function = scored.unwrap(score)
        if targets not in (fits := getattr(function, "targets", (targets,))):
            raise ValueError(f"evaluation.scores has {name!r}, which is for {' or '.join(fits)}, the data have {targets}")
        has_fixed_classes = getattr(function, "has_fixed_classes", False)
        if has_fixed_classes and (asked.is_for_texts or asked.episodes is not None):
            why = "instructions have none" if asked.is_for_texts else "an episode's are its own"
            raise ValueError(f"evaluation.scores has {name!r}, which is for classes that all examples share; {why}")


def _with_scores(task: Task, scores: Mapping[str, Callable]) -> Task:
    """Returns the task with more scores.

    Raises:
      ValueError: it has one of that name.
    """
    if taken := [name for name in scores if name in task.scores]:
        raise ValueError(f"evaluation.scores has {taken[0]!r}, which these data are scored by already; give yours another name")
    return dataclasses.replace(task, scores={**task.scores, **scores})


def _choose_plan(asked: Asked, population: int, devices: Sequence[Any] | None) -> client_loop.Plan | None:
    if asked.chunk is None and asked.devices is None and asked.model == 1:
        return None
    size = cohorts.number(asked.cohort, population)
    size = cohorts.places(size, population) if asked.sampling == "poisson" else size
    return client_loop.choose(size, chunk=asked.chunk, devices=asked.devices, model=asked.model, among=devices)
