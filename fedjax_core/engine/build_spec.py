"""Builds the spec of a simulation from groups of clients, data and options, and checks everything that needs no training."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_core.algorithm import ClientSettings, targets_of
from fedjax_core.data.federated_data import FederatedData, pool_clients
from fedjax_core.devices import ClientDevices, Schedule
from fedjax_core.engine import (
    asynchronous,
    check_own_scores,
    client_facts,
    client_loop,
    client_sampling,
    client_work,
    contracts,
    information_flow,
    participation,
    unseen_clients,
)
from fedjax_core.engine.arrival_windows import BufferSampler
from fedjax_core.engine.client_sampler import ClientSampler
from fedjax_core.engine.data_feed.device_arrays import make_host_arrays
from fedjax_core.engine.sharding import data_placement
from fedjax_core.engine.sharding import mesh as meshes
from fedjax_core.engine.simulation_spec import (
    Evaluation,
    Group,
    SimulationSpec,
    with_abstract_frozen_params,
    with_peer_groups,
)
from fedjax_core.training.few_shot import EpisodeSampler
from fedjax_core.training.private_gradient import ExamplePrivacy
from fedjax_core.uplink import UplinkTransform, order_transforms, wrap_builder
from fedjax_core.uplink.layout import LEAVE_OUT
from fedjax_core.uplink.staleness import weight_stale


def build_spec(
    groups: Sequence[Group],
    data: FederatedData,
    *,
    cohort: int | float | None = None,
    dropout: float = 0.0,
    plan: meshes.Plan | Mapping[str, Any] | None = None,
    evaluation: Evaluation = Evaluation(),  # noqa: B008
    hold: str = "device",
    rounds_per_dispatch: int = 10,
    episodes: EpisodeSampler | None = None,
    data_on: str | None = None,
    devices: Sequence[Any] | None = None,
    transforms: Sequence[UplinkTransform] = (),
    leave_out: bool = False,
    sampling: str = "fixed",
    client_devices: ClientDevices | None = None,
    schedule: Schedule | None = None,
    client_settings: ClientSettings | None = None,
    example_privacy: ExamplePrivacy | None = None,
) -> SimulationSpec:
    """Returns what a simulation is made of. Checks everything that can be checked without training.

    Args:
      groups: together they have each client once.
      data: one train and test index list per client; unseen clients are of no group, they take turns among the networks.
      cohort: clients a round, as a number or a fraction; None: all.
      dropout: probability with which a sampled client does not come back.
      plan: a plan, or some of its fields by name; `client_loop.choose_plan` chooses what is missing or None. None: all.
      hold: "device", "host" or "disk": where client states are between rounds. Off the device a dispatch has one round.
      rounds_per_dispatch: the most rounds in one dispatch; where data are streamed, each of them is a program of its own.
      episodes: how minibatches and tests are drawn, for networks made by `few_shot.prototypical_model`; None: plain examples.
      data_on: "device", "host" or "disk": where the data are; None: where they fit (`data_placement.py`).
      devices: the plan takes the first of them; None: those that jax sees. For a topology's, programs can be compiled.
      transforms: of uplinks: attacks, compression, privacy, a robust rule (`fedjax_core/uplink/`).
      leave_out: whether a client that sends something not finite is left out of its round, which else ends the run.
      sampling: spec of a sampler, as `client_sampling.make_sampler` takes it.
      client_devices: the clients' devices, and for whom the server waits; None: rounds take no time.
      schedule: asynchronous; a cohort is then the clients that train at once. None: rounds are synchronous.
      client_settings: of local training by client, as in `DeviceArrays`; None: the method's for all clients. Epochs and
        steps are read by methods with the option `epochs=EpochsByClient(...)`.
      example_privacy: clip and noise of clients' local steps; None: their training is not private.

    Raises:
      ValueError: a setting is out of range; the groups do not partition the population or disagree about the server's
        state; a client update does not keep its state's structure, shapes and dtypes.
      TypeError: a function of the method returns something that it must not (`contracts.py`).
    """
    with contracts.explain_missing_head(groups):
        tasks = tuple(group.task.bound_arrays for group in groups)
        refused = {"devices": client_devices, "schedule": schedule, "clients": client_settings, "dropout": dropout or None}
        changes_uplinks = [transform.label for transform in transforms] + [LEAVE_OUT] * leave_out
        groups, data, is_pooled = _prepare_groups(groups, data, refused, changes_uplinks)
        contracts.validate_settings(
            groups,
            data.clients,
            dropout=dropout,
            hold=hold,
            evaluation=evaluation,
            rounds_per_dispatch=rounds_per_dispatch,
            episodes=episodes,
        )
        contracts.validate_targets(groups, data.train)
        contracts.validate_tokens(groups, data)
        skip_reason, has_unseen = unseen_clients.find_skip_reason(groups), data.unseen is not None and len(data.unseen.ids) > 0
        evaluation = unseen_clients.add_unseen_scope(evaluation, skip_reason, has_unseen)
        sampler = stream = client_sampling.make_sampler(sampling, None if is_pooled else cohort, data.clients)
        if schedule is not None:
            sampler = BufferSampler(asynchronous.buffer_size(schedule, stream.size), data.clients)
            transforms = [*transforms, weight_stale(schedule.name, schedule.has_weights)]
        transforms = order_transforms(transforms)
        given = plan._asdict() if isinstance(plan, meshes.Plan) else plan or {}
        plan = client_loop.choose_plan(sampler.slots, among=devices, **given)
        mesh = meshes.make_mesh(plan, devices)
        is_numeric = targets_of(data.train.y) == "numbers"
        center = np.asarray(data.train.y).mean(0, dtype=np.float64) if is_numeric else 0.0
        placement = data_placement.choose_placement(data_on, data, mesh)
        data, readers = data_placement.open_data(placement, data)
        spec = SimulationSpec(
            groups=tuple(groups),
            tasks=tasks,
            data=data,
            placement=placement,
            readers=readers,
            host_arrays=make_host_arrays(
                [group.clients for group in groups], tuple(group.task.bound_arrays for group in groups), data, episodes
            )._replace(settings=client_settings),
            sampler=sampler,
            dropout=dropout,
            evaluation=evaluation,
            episodes=episodes,
            hold=hold,
            rounds_per_dispatch=rounds_per_dispatch,
            center=center,
            unseen_skip_reason=skip_reason if has_unseen else "",
            plan=plan,
            mesh=mesh,
            devices=devices,
            example_privacy=example_privacy,
        )
        spec = dataclasses.replace(spec, shapes=contracts.trace_shapes(spec))
        information_flow.check_adds_differences(spec)
        return _add_options(spec, transforms, leave_out, client_devices, schedule, stream, sampling)


def _prepare_groups(
    groups: Sequence[Group], data: FederatedData, refused: Mapping[str, Any], changes_uplinks: Sequence[str]
) -> tuple[list[Group], FederatedData, bool]:
    """Returns the groups, whose tasks know each other, the data, and whether the method is pooled; see `_check_pooled`."""
    groups = with_peer_groups(with_abstract_frozen_params(groups))
    if not any(contracts.check_algorithm(group.build(group.task), group.build).pooled for group in groups):
        return groups, data, False
    _check_pooled(refused, changes_uplinks)
    return *_pool(groups, data), True


def _add_options(
    spec: SimulationSpec,
    transforms: Sequence[UplinkTransform],
    leave_out: bool,
    client_devices: ClientDevices | None,
    schedule: Schedule | None,
    stream: ClientSampler,
    sampling: str,
) -> SimulationSpec:
    """Returns the spec of traced groups with what goes beside them, and checks the rest.

    Args:
      transforms: in their order; the schedule's is among them.
      stream: the sampler of the clients that train at once, whose spec is `sampling`.
    """
    if schedule is not None:
        asynchronous.check_method(spec, schedule)
    if transforms or leave_out:
        spec = _add_transforms(spec, transforms, leave_out)
    if client_devices is not None:
        spec = participation.add_client_devices(spec, client_devices)
    if schedule is not None:
        spec = asynchronous.add_schedule(spec, schedule, stream, transforms)
    spec = client_facts.check_sampler(spec, sampling)
    if spec.client_seconds is None:  # else they were checked as its work was counted
        client_work.check_settings(spec)
    check_own_scores.check_losses(spec)
    return dataclasses.replace(spec, score_bytes=check_own_scores.check_scores(spec))


def _add_transforms(spec: SimulationSpec, transforms: Sequence[UplinkTransform], leave_out: bool) -> SimulationSpec:
    """Returns the spec with algorithms that transform what clients send, or leave out what is not finite."""
    wrapped = [
        group._replace(build=wrap_builder(group.build, transforms, shapes.out.uplink, leave_out))
        for group, shapes in zip(spec.groups, spec.shapes.groups, strict=True)
    ]
    spec = dataclasses.replace(spec, groups=tuple(wrapped))
    return dataclasses.replace(spec, shapes=contracts.trace_shapes(spec))


def _check_pooled(refused: Mapping[str, Any], changes_uplinks: Sequence[str]) -> None:
    """Raises ValueError for what a pooled method goes without.

    Args:
      refused: entries of a config by name; None: not given.
      changes_uplinks: what would change what clients send, as messages name it.
    """
    if given := [f"config.{name}" for name, value in refused.items() if value is not None]:
        raise ValueError(f"a pooled method has no clients, so it goes without {', '.join(given)}")
    if changes_uplinks:
        raise ValueError(f"{', '.join(changes_uplinks)}: a pooled method has no clients that send something")


def _pool(groups: Sequence[Group], data: FederatedData) -> tuple[list[Group], FederatedData]:
    """Returns the one group and the one client of a pooled method."""
    if len(groups) > 1:
        raise ValueError("a pooled method trains one network; it cannot have groups")
    task = dataclasses.replace(groups[0].task, population=1)
    return with_peer_groups([groups[0]._replace(clients=np.arange(1), task=task)]), pool_clients(data)
