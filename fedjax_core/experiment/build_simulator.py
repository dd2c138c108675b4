"""From what a config asks for to a simulation: data are read and divided, networks built, tasks made of both."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_core import option_types
from fedjax_core.algorithm import TARGETS, targets_of
from fedjax_core.data import federated_data, poisoning
from fedjax_core.engine import client_loop
from fedjax_core.engine import client_sampling as cohorts
from fedjax_core.engine.simulator import Group, Simulation
from fedjax_core.experiment import adversaries, build_task, config_warnings, protection, python_overrides
from fedjax_core.experiment.lookup import OF_TARGETS, trained
from fedjax_core.experiment.resolve_config import Asked, Config, algorithm, resolve
from fedjax_core.task import Task
from fedjax_core.training import backdoor, scored
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
    kind: build_task.Kind | None = None,
    noise: Mapping[str, Any] | None = None,
    accounted: bool = True,
    asked: Asked | None = None,
) -> Simulation:
    """The simulation that a config describes.

    Args:
      config: see `configs/base.py`.
      data: in place of the config's, such as mock data of the same shape.
      method, model, loss, scores: in place of the config's, see `python_overrides.into`.
      shapes_only: nothing will run: what is frozen is zeros that take no memory, and files of weights are not looked for.
      devices: in place of those that jax sees, such as a topology's to compile for.
      kind: in place of the way that the config's data are read (`stand_in.py`).
      noise: what run.json says of a run's privacy, so that its noise is not found anew; None: nothing.
      accounted: False: no accountant is asked, as for a run that is only read.
      asked: what `resolve` made of the config with what is given in its place, which is then not read; None: nothing yet.

    Returns:
      The simulation, checked but not compiled; nothing is on a device yet.

    Raises:
      ValueError, TypeError: the config asks for something that is not there or not possible; the message names it.
      FileNotFoundError: the data are not there; the message says where to get and put them.
    """
    asked = resolve(python_overrides.into(config, method, model, loss, scores)) if asked is None else asked
    kind = build_task.of(asked) if kind is None else kind
    data = build_task.parted(asked, kind.federated(asked) if data is None else data)
    _fits(asked, targets_of(data.train.y))
    updates = asked.said["evaluation.newcomer_updates"]
    if accounted and updates is not None and data.unseen is None:
        raise ValueError(
            f"evaluation.newcomer_updates={updates} is for unseen clients, and no client is unseen; "
            "set data.unseen_clients, such as 0.2, or leave it out"
        )
    clients, networks = np.arange(data.clients), asked.networks
    if not 1 <= len(networks) <= len(clients):
        models = tuple(one.found.spec for one in networks)
        raise ValueError(f"models={models} must be at least one, and no more than the {len(clients)} clients")
    if (size := asked.said["cohort.size"]) is not None and size > len(clients):
        raise ValueError(f"cohort.size={size} must be at most the number of clients that train, {len(clients)}")
    places: dict[tuple[str, str | None], list[int]] = {}
    for i, one in enumerate(networks):
        places.setdefault((one.found.spec, one.file), []).append(i)
    make = algorithm(asked)
    make = local_statistics(make) if asked.statistics == "local" else make
    poisons, links = adversaries.attacked(asked, data.clients)
    trigger = next((one.trigger for one in poisons if one.trigger is not None), None)
    make = make if trigger is None else backdoor.watched(make, trigger)
    if trigger is not None and "backdoor" in asked.scores:
        raise ValueError("evaluation.scores has 'backdoor', the score of adversary.attack; give yours another name")
    scores_of_all = asked.scores | ({} if trigger is None else {"backdoor": backdoor.score(trigger)})
    loss_of_labels = trained(asked.loss)
    groups, fresh, everybodys = [], {}, kind.public(asked, data)
    for (spec, _), mine in places.items():
        one = networks[mine[0]]
        task = kind.task(asked, one._replace(file=None) if shapes_only else one, data, everybodys, shapes_only)
        if scores_of_all or loss_of_labels is not None:
            task = dataclasses.replace(_with_scores(task, scores_of_all), loss=loss_of_labels)
        fresh |= {} if one.file else {spec: task.model}
        groups.append(Group(f"{mine[0]}: {spec}", make, task, clients[np.isin(clients % len(networks), mine)]))
    if asked.adversary is not None and any(group.build(group.task).pooled for group in groups):
        attack = option_types.short(asked.said["adversary.attack"])
        raise ValueError(f"adversary.attack={attack}: a pooled method has no clients that could attack")
    seed, evil = asked.data.seed, adversaries.attackers(asked, data.clients)
    spent = protection.of_asked(asked, data.clients, accounted and not shapes_only, noise)
    if not shapes_only:
        config_warnings.say(asked, data, len(evil), fresh)
    return Simulation(
        groups,
        poisoning.counted(data, poisons, evil) if shapes_only else poisoning.poisoned(data, poisons, evil, seed),
        cohort=asked.cohort,
        dropout=asked.dropout,
        plan=_plan(asked, data.clients, devices),
        evaluation=asked.evaluation,
        hold=asked.hold,
        data_on=asked.data_on,
        episodes=asked.episodes,
        devices=devices,
        links=order([*asked.links, *links, *protection.links(asked, spent, data.clients)]),
        leave_out=asked.leave_out,
        sampling=asked.sampling,
    )


def _fits(asked: Asked, kind: str) -> None:
    """Raises ValueError for what is for other targets than the data have."""
    loss = asked.loss
    if loss is not None and kind not in (fits := OF_TARGETS.get(loss.name, (kind,))):
        raise ValueError(f"loss={loss.spec!r} is for {' or '.join(fits)}, the data have {kind}: {TARGETS[kind]}")
    _scores_fit(asked, kind)
    if kind == "classes":
        return
    for field, is_set in (("task", asked.episodes is not None), ("public", asked.public is not None)):
        if is_set:
            raise ValueError(f"{field}={asked.said[field]!r} needs classes, the data have {kind}: {TARGETS[kind]}")


def _scores_fit(asked: Asked, kind: str) -> None:
    """Raises ValueError for a score that is for other data, or whose name is taken.

    Args:
      asked: what the config asks for.
      kind: of the targets.
    """
    if taken := [name for name in asked.scores if name in scored.NAMES[kind]]:
        raise ValueError(f"evaluation.scores has {taken[0]!r}, which is scored of {kind} already; give yours another name")
    texts = build_task.of(asked) is build_task.TEXTS
    for name, score in asked.scores.items():
        of = scored.unwrap(score)
        if kind not in (fits := getattr(of, "targets", (kind,))):
            raise ValueError(f"evaluation.scores has {name!r}, which is for {' or '.join(fits)}, the data have {kind}")
        if getattr(of, "has_fixed_classes", False) and (texts or asked.episodes is not None):
            why = "instructions have none" if texts else "an episode's are its own"
            raise ValueError(f"evaluation.scores has {name!r}, which is for classes that all rows have in common; {why}")


def _with_scores(task: Task, scores_of_all: Mapping[str, Callable]) -> Task:
    """Returns the task with more scores.

    Raises:
      ValueError: it has one of that name.
    """
    if taken := [name for name in scores_of_all if name in task.scores]:
        raise ValueError(f"evaluation.scores has {taken[0]!r}, which these data are scored by already; give yours another name")
    return dataclasses.replace(task, scores={**task.scores, **scores_of_all})


def _plan(asked: Asked, population: int, devices: Sequence[Any] | None) -> client_loop.Plan | None:
    if asked.chunk is None and asked.devices is None and asked.model == 1:
        return None
    cohort = population if asked.cohort is None else asked.cohort
    number = cohorts.number(cohort, population)
    number = cohorts.places(number, population) if asked.sampling == "poisson" else number
    return client_loop.choose(number, chunk=asked.chunk, devices=asked.devices, model=asked.model, among=devices)
