"""Builds the simulation of a config: reads and divides its data, builds its networks, and makes
tasks of both."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_core import option_types
from fedjax_core.algorithm import TARGETS, targets_of
from fedjax_core.data import federated_data, poisoning
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.data.sources.dataset import Dataset
from fedjax_core.engine import check_own_scores, client_sampling
from fedjax_core.engine.simulator import Group, Simulator, build_spec
from fedjax_core.experiment import (
    build_task,
    client_options,
    config_warnings,
    device_options,
    example_privacy,
    python_overrides,
    uplink_options,
)
from fedjax_core.experiment.lookup import LOSS_TARGETS, bind_options
from fedjax_core.experiment.resolve_config import ResolvedConfig, bind_method, resolve
from fedjax_core.experiment.schema import Config
from fedjax_core.privacy import INTEGER_SUMS, PrivacyLedger
from fedjax_core.task import Task
from fedjax_core.training import losses, metrics
from fedjax_core.training.full_batches import with_full_batches
from fedjax_core.training.local_batch_norm import with_local_statistics
from fedjax_core.training.regularizers import with_regularizers
from fedjax_core.uplink.layout import count_delta_parameters


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
    pipeline: build_task.DataPipeline | None = None,
    noise: Mapping[str, Any] | None = None,
    accounted: bool = True,
    resolved: ResolvedConfig | None = None,
) -> Simulator:
    """Builds the simulation of a config. It is checked but not compiled; nothing is on a device
    yet.

    Args:
      config: see `configs/base.py`.
      data: in place of the config's, such as mock data of the same shape.
      method, model, loss, scores: in place of the config's, see `python_overrides.apply_overrides`.
      shapes_only: nothing will run: frozen arrays are zeros without memory, and files of weights
        are not read.
      devices: in place of those that jax sees, such as those of a topology to compile for.
      pipeline: in place of the config's own data pipeline (`mock_data.py`).
      noise: what run.json records of a run's privacy, so that its noise is not calibrated again;
        None: nothing.
      accounted: whether privacy is accounted for; False for a run that is only read.
      resolved: what `resolve` returns for the config, which is then not read; None: it is resolved
        here.

    Raises:
      ValueError, TypeError: something that the config names does not exist or is not possible; the
        message names it.
      FileNotFoundError: the data do not exist; the message says where to get and put them.
    """
    resolved = resolve(python_overrides.apply_overrides(config, method, model, loss, scores)) if resolved is None else resolved
    if isinstance(data, Dataset):
        raise TypeError(
            "data is a Dataset, whose examples are of no clients yet: give federated_data.federate(data, 'iid', clients=20)"
        )
    pipeline = build_task.pipeline_of(resolved) if pipeline is None else pipeline
    if data is None:
        data = pipeline.federated(resolved)
        build_task.check_texts(resolved, data)
    data = build_task.hold_out_examples(resolved, data)
    _check_targets(resolved, targets_of(data.train.y))
    _check_clients(resolved, data, accounted)
    adversary = resolved.adversary
    attackers = [] if adversary is None else adversary.client_ids(data.clients, resolved.data.seed)
    poisons, attacks = uplink_options.build_attacks(adversary, attackers)
    trigger = next((poison.trigger for poison in poisons if poison.trigger is not None), None)
    settings, seconds = client_options.make_client_settings(resolved.clients, data.clients, resolved.data.seed)
    make = client_options.bind_settings(bind_method(resolved), resolved.clients, settings, data.unseen is not None)
    groups = _build_groups(resolved, pipeline, data, make, trigger, shapes_only)
    if adversary is not None:
        _refuse_pooled_attack(resolved, groups)
    spent = _calibrate_noise(resolved, groups, data, shapes_only=shapes_only, accounted=accounted, recorded=noise)
    cohort_size = client_sampling.resolve_cohort_size(resolved.cohort, data.clients)
    mechanism = uplink_options.build_mechanism(resolved.mechanism, spent, cohort_size, resolved.dropout)
    if shapes_only:
        data = poisoning.mock_poisoned(data, poisons, attackers)
    else:
        fresh = {network.resolved.spec for network in resolved.networks if not network.file}
        models = {spec: group.task.model for group in groups if (spec := group.name.partition(": ")[2]) in fresh}
        config_warnings.warn(resolved, data, len(attackers), models, lambda: groups[0].build(groups[0].task).collect)
        data = poisoning.poison_clients(data, poisons, attackers, resolved.data.seed, resolved.fields["adversary.attack"] or "")
    spec = build_spec(
        groups,
        data,
        cohort=resolved.cohort,
        dropout=resolved.dropout,
        plan={"chunk": resolved.chunk, "devices": resolved.devices, "model": resolved.model},
        evaluation=resolved.evaluation,
        hold=resolved.hold,
        data_on=resolved.data_on,
        episodes=resolved.episodes,
        devices=devices,
        transforms=[*resolved.transforms, *attacks, *mechanism],
        leave_out=resolved.leave_out,
        sampling=resolved.sampling,
        client_devices=device_options.make_client_devices(
            resolved.client_devices, data.clients, resolved.data.seed, resolved.fields, seconds
        ),
        schedule=resolved.schedule,
        client_settings=settings,
        example_privacy=example_privacy.initial_privacy(resolved, noise),
    )
    if accounted and not shapes_only:
        spec = example_privacy.with_example_noise(resolved, spec, noise)
    if not shapes_only:
        config_warnings.log_lines(device_options.check_devices(spec))
    return Simulator(spec)


def _build_groups(
    resolved: ResolvedConfig,
    pipeline: build_task.DataPipeline,
    data: federated_data.FederatedData,
    make: Callable,
    trigger: Any,
    shapes_only: bool,
) -> list[Group]:
    """Returns a group of clients for each different network.

    Args:
      make: task -> Algorithm.
      trigger: of a backdoor attack, which is scored, or None.
    """
    make = with_local_statistics(make) if resolved.statistics == "local" else make
    make = with_full_batches(make) if resolved.fields["drop_last"] else make
    scores = dict(resolved.scores)
    if trigger is not None:
        if "backdoor" in scores:
            raise ValueError("evaluation.scores has 'backdoor', the score of adversary.attack; give yours another name")
        make, scores = metrics.with_triggered_outputs(make, trigger), scores | {"backdoor": metrics.backdoor_score(trigger)}
    loss = None  # cross-entropy
    if resolved.loss is not None and resolved.loss.function is not losses.cross_entropy:
        loss = bind_options(resolved.loss)
    public, clients, groups = pipeline.public(resolved, data), np.arange(data.clients), []
    members: dict[tuple[str, str | None], list[int]] = {}
    for index, network in enumerate(resolved.networks):
        members.setdefault((network.resolved.spec, network.file), []).append(index)
    terms = tuple(map(bind_options, resolved.regularizers))
    for term in terms:
        check_own_scores.check_regularizer(term)
    for (spec, _), indices in members.items():
        network = resolved.networks[indices[0]]
        task = pipeline.task(resolved, network._replace(file=None) if shapes_only else network, data, public, shapes_only)
        if scores or loss is not None:
            task = dataclasses.replace(_with_scores(task, scores), loss=loss)
        if terms:
            task = task.wrap_model(functools.partial(with_regularizers, regularizers=terms))
        has_network = np.isin(clients % len(resolved.networks), indices)
        groups.append(Group(f"{indices[0]}: {spec}", make, task, clients[has_network], tuple(indices)))
    return groups


def _refuse_pooled_attack(resolved: ResolvedConfig, groups: Sequence[Group]) -> None:
    """Raises ValueError where the method is pooled."""
    if any(group.build(group.task).pooled for group in groups):
        attack = option_types.shorten(resolved.fields["adversary.attack"])
        raise ValueError(f"adversary.attack={attack}: a pooled method has no clients that could attack")


def _calibrate_noise(
    resolved: ResolvedConfig,
    groups: Sequence[Group],
    data: federated_data.FederatedData,
    *,
    shapes_only: bool,
    accounted: bool,
    recorded: Mapping[str, Any] | None,
) -> PrivacyLedger | None:
    """Returns the ledger of the config's noise; None: it has none.

    Args:
      shapes_only, accounted: as in `build`.
      recorded: its `noise`.

    Raises:
      ValueError: as `uplink_options.account_privacy`, or a client could not send its share of the mechanism.
    """
    name = None if resolved.privacy is None else resolved.privacy.name
    needs_everybody = name == "adaptive" or name in INTEGER_SUMS
    if needs_everybody and not shapes_only and not np.all(RaggedIndex.from_lists(data.train_index).size):
        share = "share of the noise" if name in INTEGER_SUMS else "bit on its norm, of which the clip is made"
        raise ValueError(
            f"privacy.mechanism={name!r}: a client without examples sends no {share}; take a "
            "partition in which every client has some, such as one with min_size=1"
        )
    parameters = 1
    if name in INTEGER_SUMS:  # its noise depends on the size of an uplink
        parameters = count_delta_parameters(
            groups[0].build(groups[0].task), build_spec(groups, data, evaluation=resolved.evaluation).shapes.groups[0].out.uplink
        )
    return uplink_options.account_privacy(
        resolved.privacy, resolved.cohort, data.clients, resolved.sampling, accounted and not shapes_only, recorded, parameters
    )


def _check_clients(resolved: ResolvedConfig, data: federated_data.FederatedData, accounted: bool) -> None:
    """Raises ValueError where there are too few clients for the config, or no unseen ones."""
    updates = resolved.fields["evaluation.newcomer_updates"]
    if accounted and updates is not None and data.unseen is None:
        raise ValueError(
            f"evaluation.newcomer_updates={updates} is for unseen clients, and no client is unseen; "
            "set data.unseen_clients, such as 0.2, or leave it out"
        )
    if not 1 <= len(resolved.networks) <= data.clients:
        models = tuple(network.resolved.spec for network in resolved.networks)
        raise ValueError(f"models={models} must be at least one, and no more than the {data.clients} clients")
    if resolved.fields["drop_last"]:
        _check_full_batches(resolved, data)
    if (size := resolved.fields["cohort.size"]) is not None and size > data.clients:
        raise ValueError(f"cohort.size={size} must be at most the number of clients that train, {data.clients}")


def _check_full_batches(resolved: ResolvedConfig, data: federated_data.FederatedData) -> None:
    """Raises ValueError where a client would never train, as it has no full batch."""
    if resolved.episodes is not None or resolved.is_for_texts:
        raise ValueError("drop_last=True is for shuffled examples; episodes and instructions have none to drop")
    for field in ("devices.profile", "clients.batch"):
        if resolved.fields[field] is not None:
            raise ValueError(
                f"drop_last=True and {field}={resolved.fields[field]!r}: steps are counted with the last minibatch there"
            )
    batch = resolved.method.option("batch", 1)
    parts = {"client": data.train_index} | ({} if data.unseen is None else {"unseen client": data.unseen.train_index})
    for kind, index in parts.items():
        sizes = RaggedIndex.from_lists(index).size
        if len(few := np.flatnonzero((sizes > 0) & (sizes < batch))):
            what = f"drop_last=True: {kind} {few[0]} has {sizes[few[0]]} training examples, fewer than method.batch={batch}"
            raise ValueError(f"{what}, and would never train; take a smaller batch, or a partition with min_size")


def _check_targets(resolved: ResolvedConfig, targets: str) -> None:
    """Raises ValueError for options that are for other targets than those of the data (a key of
    `TARGETS`)."""
    loss = resolved.loss
    if loss is not None and targets not in (fits := LOSS_TARGETS.get(loss.name, (targets,))):
        raise ValueError(f"loss={loss.spec!r} is for {' or '.join(fits)}, the data have {targets}: {TARGETS[targets]}")
    _check_scores(resolved, targets)
    for field, is_set in (("task", resolved.episodes is not None), ("public", resolved.public is not None)):
        if is_set and targets != "classes":
            value = resolved.fields[field]
            raise ValueError(f"{field}={value!r} needs classes, the data have {targets}: {TARGETS[targets]}")


def _check_scores(resolved: ResolvedConfig, targets: str) -> None:
    """Raises ValueError for a score that is for other data, or whose name is taken."""
    if taken := [name for name in resolved.scores if name in metrics.METRIC_NAMES[targets]]:
        raise ValueError(f"evaluation.scores has {taken[0]!r}, which is scored of {targets} already; give yours another name")
    for name, score in resolved.scores.items():
        function = metrics.unwrap_score(score)
        if targets not in (fits := getattr(function, "targets", (targets,))):
            raise ValueError(f"evaluation.scores has {name!r}, which is for {' or '.join(fits)}, the data have {targets}")
        has_fixed_classes = getattr(function, "has_fixed_classes", False)
        if has_fixed_classes and (resolved.is_for_texts or resolved.episodes is not None):
            why = "instructions have none" if resolved.is_for_texts else "an episode's are its own"
            raise ValueError(f"evaluation.scores has {name!r}, which is for classes that all examples share; {why}")


def _with_scores(task: Task, scores: Mapping[str, Callable]) -> Task:
    if taken := [name for name in scores if name in task.scores]:
        raise ValueError(f"evaluation.scores has {taken[0]!r}, which these data are scored by already; give yours another name")
    return dataclasses.replace(task, scores={**task.scores, **scores})
