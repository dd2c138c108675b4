"""From groups of clients, data and settings to what a simulation is made of, checked, before it has programs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_core.algorithm import PyTree, targets_of
from fedjax_core.data.federated_data import FederatedData, pooled
from fedjax_core.data.row_readers import Reader
from fedjax_core.engine import check, check_own_scores, client_loop, contracts, unseen_clients
from fedjax_core.engine import client_sampling as cohorts
from fedjax_core.engine.federation import Evaluation, Federation, Group, Held, acquainted, held_arrays, known_by_shape
from fedjax_core.engine.sharding import data_placement
from fedjax_core.training.few_shot import Episodes
from fedjax_core.uplink import Link, wrapped


@dataclasses.dataclass(frozen=True, eq=False)
class Described:
    """What a simulation is made of.

    Attributes:
      fed: with the plan to begin with, and zeros in place of frozen arrays that are deferred.
      tasks: per group, what `Task.bind` takes, with what is deferred.
      data: the federated data, whose arrays lie as `placed` says.
      placed: where the data lie, and why.
      readers: of "train" and "test", where rows are streamed; else none.
      host: what all rounds read.
      shapes: of states and messages.
      cohort: C; of Poisson cohorts the expected one.
      unserved: why unseen clients, if there are any, are not scored.
    """

    fed: Federation
    tasks: tuple[PyTree, ...]
    data: FederatedData
    placed: data_placement.Placed
    readers: dict[str, Reader]
    host: Held
    shapes: check.Shapes
    cohort: int
    unserved: str


def described(
    groups: Sequence[Group],
    data: FederatedData,
    *,
    cohort: int | float | None,
    dropout: float,
    plan: client_loop.Plan | None,
    evaluation: Evaluation,
    hold: str,
    dispatch: int,
    episodes: Episodes | None,
    data_on: str | None,
    devices: Sequence[Any] | None,
    links: Sequence[Link],
    leave_out: bool,
    sampling: str,
) -> Described:
    """What the arguments of `Simulation` describe.

    Raises:
      ValueError, TypeError: as `Simulation`.
    """
    tasks = tuple(group.task.held for group in groups)
    groups = acquainted(known_by_shape(groups))
    if any(contracts.algorithm(group.build(group.task), group.build).pooled for group in groups):
        if len(groups) > 1:
            raise ValueError("a pooled method trains one network; it cannot have groups")
        data, cohort, dropout = pooled(data), None, 0.0
        task = dataclasses.replace(groups[0].task, population=1)
        groups = acquainted([groups[0]._replace(clients=np.arange(1), task=task)])
    population = len(data.train_index)
    check.settings(groups, population, dropout, hold, evaluation, dispatch, episodes)
    check.targets(groups, data.train)
    check.tokens(groups, data)
    why, newcomers = unseen_clients.reason(tuple(groups)), 0 if data.unseen is None else len(data.unseen.ids)
    evaluation = unseen_clients.scored(evaluation, why, newcomers > 0)
    size = cohorts.number(cohort, population)
    cohorts.check(sampling, size, population)
    rate = size / population if sampling == "poisson" else None
    places = size if rate is None else cohorts.places(size, population)
    plan = client_loop.choose(places, among=devices, **({} if plan is None else plan._asdict()))
    fed = Federation(
        tuple(groups),
        population,
        places,
        dropout,
        evaluation,
        episodes,
        on_host=hold != "device",
        dispatch=dispatch,
        plan=plan,
        mesh=client_loop.mesh(plan, devices),
        center=np.asarray(data.train.y).mean(0, dtype=np.float64) if targets_of(data.train.y) == "numbers" else 0.0,
        rate=rate,
        in_turn=sampling == "cyclic",
    )
    placed = data_placement.choose(data_on, data, fed.mesh)
    data, readers = data_placement.opened(placed, data)
    host = held_arrays(groups, data, episodes)
    shapes = check.shapes(fed, host)
    if links or leave_out:
        fed = _linked(fed, shapes, links, leave_out)
        shapes = check.shapes(fed, host)
    fed = dataclasses.replace(fed, score_bytes=check_own_scores.check_scores(fed, host, shapes))
    return Described(fed, tasks, data, placed, readers, host, shapes, size, why if newcomers else "")


def _linked(fed: Federation, shapes: check.Shapes, links: Sequence[Link], leave_out: bool) -> Federation:
    """With the uplinks of every group's method passed through links."""
    if any(group.build(group.task).pooled for group in fed.groups):
        raise ValueError("a pooled method has no clients that send something; it goes without attacks, rules, compression, privacy")
    pairs = zip(fed.groups, shapes.groups, strict=True)
    groups = [group._replace(build=wrapped(group.build, links, shape.out.uplink, leave_out)) for group, shape in pairs]
    return dataclasses.replace(fed, groups=tuple(groups))
