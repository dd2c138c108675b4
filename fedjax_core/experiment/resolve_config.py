"""Resolves a config: reads its fields, finds what they name, and checks that they go together. No
data are read.

`resolve(config)` is the only reader of a config. `build` and `execute` read what it returns.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedjax_core import registry
from fedjax_core.data import partition
from fedjax_core.devices import Schedule
from fedjax_core.engine import client_sampling
from fedjax_core.engine.simulator import Evaluation
from fedjax_core.experiment import client_options, device_options, lookup, schema, uplink_options
from fedjax_core.experiment.lookup import NORMALISATIONS
from fedjax_core.experiment.schema import Config
from fedjax_core.language import clip_task
from fedjax_core.language import instruction_task as language
from fedjax_core.privacy import PrivacyConfig
from fedjax_core.registry import ResolvedSpec
from fedjax_core.task import TRAINABLE_PARTS
from fedjax_core.training import adapters, few_shot, local_training
from fedjax_core.training.augment import pipeline
from fedjax_core.uplink import UplinkTransform

STATISTICS = ("average", "local", "freeze")
TASKS = {"classification": lambda: None, "episodes": few_shot.EpisodeSampler}
NOT_LOCAL = ("finetune_epochs", "server_epochs")  # options of methods: epochs of no client's local training
NOT_FOR_TEXTS = {"augment": None, "public": None, "weights": None, "task": "classification", "train": "all"}
NOT_FOR_TEXTS |= dict.fromkeys(f"data.{name}" for name in ("size", "examples", "long_tail", "test_split", "test_examples"))
OF_CLASSES = (  # methods that count classes, compare examples of one, or exchange knowledge of them
    *("fedgen", "fedgh", "fedhe", "fedhpl", "fedlc", "fednh", "fedpac"),
    *("fedproto", "fedproto_g", "fedrcl", "fedrod", "fedskc", "fedtgp"),
)
FOR_CLIP = {"train": "prompts", "normalise": "clip", "task": "classification", "weights": None, "public": None, "adapter": None}


class RunOptions(NamedTuple):
    """Fields of a config about the loop of its run.

    Attributes:
      targets: accuracies whose first rounds are reported.
      last_k: evaluations whose mean is reported.
      select: the validation score by which the best round is kept, or None.
      patience: evaluations without a better one after which the run ends, or None.
      until: the score at which the run ends, such as "test/global/accuracy >= 0.97", or None.
    """

    rounds: int
    eval_every: int
    targets: tuple[float, ...]
    last_k: int
    select: str | None
    patience: int | None
    until: str | None
    checkpoint_seconds: float
    keep_checkpoints: int
    profile: bool


class ResolvedConfig(NamedTuple):
    """A config, resolved and checked.

    Attributes:
      method: its builder, with its options.
      optimizer: round -> optax transformation.
      networks: client i has network i mod their number.
      public: the source of the public set, and how many of its examples are used (None: all); None:
        no such set.
      episodes: how they are drawn; None where plain examples are classified.
      adapter: what is trained beside a frozen network, or None.
      scores: beside accuracy and loss, by name.
      regularizers: terms of features that join the method's loss.
      cohort: number of clients in a round, or their fraction; None: all.
      chunk, devices, model, hold: how a round is mapped to devices, see `client_loop.choose_plan`.
      data_on: where the data are stored, see `data_placement.choose_placement`.
      adversary: who attacks and how, or None.
      transforms: what uplinks pass through beside attacks, see `uplink`.
      rule: the robust rule in place of the mean, after its pre-aggregators; also among `transforms`.
      leave_out: whether clients that send NaN or Inf are left out.
      sampling: of cohorts, a spec of a sampler.
      client_devices: the clients' devices, and for whom the server waits; None: rounds take no time.
      schedule: asynchronous, or None.
      clients: settings of local training by client.
      mechanism: of differential privacy, or None; it takes what `privacy` says.
      lookups: what the config names that is not built in, with its origin, without callbacks
        (`registry.record_lookups`).
      config: the fields, nested, as config.json holds them (`complete_config`).
      fields: all fields by dotted name, checked (`schema.read_fields`).
    """

    seed: int
    method: ResolvedSpec
    optimizer: local_training.Optimizer
    data: lookup.Data
    networks: tuple[lookup.Network, ...]
    public: tuple[ResolvedSpec, int | None] | None
    episodes: few_shot.EpisodeSampler | None
    adapter: adapters.AdapterConfig | None
    train: str
    normalise: str
    statistics: str
    augment: pipeline.Augment | None
    scores: dict[str, Callable]
    loss: ResolvedSpec | None
    regularizers: tuple[ResolvedSpec, ...]
    cohort: int | float | None
    dropout: float
    evaluation: Evaluation
    chunk: int | None
    devices: int | None
    model: int
    hold: str
    data_on: str | None
    adversary: uplink_options.Adversary | None
    transforms: tuple[UplinkTransform, ...]
    rule: tuple[ResolvedSpec, ...]
    leave_out: bool
    sampling: str
    client_devices: device_options.DeviceOptions | None
    schedule: Schedule | None
    clients: client_options.ClientOptions
    mechanism: ResolvedSpec | None
    privacy: PrivacyConfig | None
    run: RunOptions
    lookups: tuple[tuple[Callable, str], ...]
    config: Mapping[str, Any]
    fields: Mapping[str, Any]

    @property
    def has_plan(self) -> bool:
        """Whether the config chooses a part of the plan."""
        return any(self.fields[f"plan.{field}"] is not None for field in ("chunk", "devices", "model"))

    @property
    def imports_code(self) -> bool:
        """Whether the config names code that is neither built in nor installed."""
        return any(registry.is_imported(origin) for _, origin in self.lookups)

    @property
    def is_for_texts(self) -> bool:
        """Whether the data are instructions, which language models answer."""
        return self.data.source.function is language.Source


def resolve(config: Config) -> ResolvedConfig:
    """Returns a config, resolved and checked.

    Raises:
      ValueError, TypeError: something in it is not allowed; the message names the field.
    """
    fields = schema.read_fields(config)
    with registry.record_lookups() as lookups:
        resolved = _resolve(fields)
    resolved = resolved._replace(lookups=tuple(lookups), config=complete_config(config))
    _check_local_epochs(resolved.method)
    _check_combination(resolved)
    return resolved


def _resolve(fields: Mapping[str, Any]) -> ResolvedConfig:
    data, method = lookup.find_data(fields), lookup.find_method(fields)
    adapter = fields["adapter"]
    adapter = None if adapter is None else registry.resolve_spec("adapter", adapter, adapters.ADAPTERS, field="adapter")()
    clients = client_options.parse_clients(fields, method, adapter)
    for_texts = data.source.function is language.Source
    mechanism, privacy = uplink_options.parse_privacy(fields, for_texts, method.option("weights"))
    task, augment = fields["task"], fields["augment"]
    fraction = None if fields["cohort.fraction"] is None else float(fields["cohort.fraction"])  # 1 is all clients
    return ResolvedConfig(
        seed=fields["seed"],
        method=method,
        optimizer=client_options.with_client_rates(lookup.find_optimizer(fields), clients),
        data=data,
        networks=lookup.find_networks(fields),
        public=lookup.find_public(fields["public"]),
        episodes=registry.resolve_spec("task", task, TASKS, field="task")(),
        adapter=adapter,
        train=registry.check_choice("train", fields["train"], TRAINABLE_PARTS),
        normalise=registry.check_choice("normalise", fields["normalise"], NORMALISATIONS),
        statistics=registry.check_choice("statistics", fields["statistics"], STATISTICS),
        augment=None if augment is None else pipeline.parse_for_training(augment),
        scores=lookup.find_scores(fields["evaluation.scores"] or ()),
        loss=lookup.find_loss(fields["loss"]),
        regularizers=lookup.find_regularizers(fields["regularizers"]),
        cohort=fraction if fields["cohort.size"] is None else fields["cohort.size"],
        dropout=fields["dropout"],
        evaluation=Evaluation(
            tuple(fields["evaluation.scopes"]),
            fields["evaluation.batch"],
            fields["evaluation.clients"],
            fields["evaluation.newcomer_updates"] or 1,
        ),
        chunk=fields["plan.chunk"],
        devices=fields["plan.devices"],
        model=fields["plan.model"] or 1,
        hold=fields["plan.hold"],
        data_on=fields["plan.data"],
        adversary=uplink_options.parse_adversary(fields),
        transforms=uplink_options.parse_transforms(fields),
        rule=uplink_options.find_rules(fields),
        leave_out=uplink_options.should_leave_out(fields),
        sampling=client_sampling.find_sampler(fields["cohort.sampling"] or "fixed").spec,
        client_devices=device_options.parse_devices(fields),
        schedule=device_options.find_schedule(fields),
        clients=clients,
        mechanism=mechanism,
        privacy=privacy,
        run=RunOptions(
            rounds=fields["rounds"],
            eval_every=fields["evaluation.every"],
            targets=tuple(fields["evaluation.targets"]),
            last_k=fields["evaluation.last_k"],
            select=fields["evaluation.select"],
            patience=fields["evaluation.patience"],
            until=fields["evaluation.until"],
            checkpoint_seconds=fields["checkpoint.seconds"],
            keep_checkpoints=fields["checkpoint.keep"],
            profile=fields["profile"],
        ),
        lookups=(),
        config={},
        fields=fields,
    )


def check_config(config: Config) -> None:
    """Raises what `resolve` does, and an error where a callback of the config does not exist."""
    lookup.find_callbacks(resolve(config).fields["callbacks"])


def complete_config(config: Config) -> dict[str, Any]:
    """Returns a config's fields, nested, as config.json holds them: with the number of clients that
    its partition has.

    A config that lacks fields, such as one of an older run, is returned as it is.
    """
    fields = config.to_dict()
    data = fields.get("data")
    if not isinstance(data, Mapping) or not isinstance(data.get("partition"), str) or data.get("clients", 0) is not None:
        return fields
    return {**fields, "data": {**data, "clients": partition.resolve_num_clients(data["partition"], None)}}


def bind_method(resolved: ResolvedConfig) -> Callable:
    """Returns the method with its optimizer and options bound: task -> Algorithm."""
    return functools.partial(resolved.method.function, optimizer=resolved.optimizer, **resolved.method.options)


def _check_local_epochs(method: ResolvedSpec) -> None:
    """Raises ValueError where a method's numbers of local epochs are all 0."""
    takes = registry.read_parameters(method.function)[0]
    epochs = {name: method.option(name) for name in takes if name.endswith("epochs") and name not in NOT_LOCAL}
    numbers = {name: number for name, number in epochs.items() if isinstance(number, int)}
    if numbers and not any(numbers.values()):
        options = ", ".join(f"method.{name}=0" for name in numbers)
        raise ValueError(f"{options} trains nothing; {'it' if len(numbers) == 1 else 'one of them'} must be at least 1")


def _check_combination(resolved: ResolvedConfig) -> None:
    """Raises ValueError for fields that do not go together."""
    fields, for_texts = resolved.fields, resolved.is_for_texts
    if resolved.episodes is not None and resolved.data.validation is not None:
        raise ValueError(f"data.validation={resolved.data.validation} is of plain examples; task={fields['task']!r} has none")
    if resolved.run.patience is not None and resolved.run.select is None:
        needs = "needs evaluation.select, such as 'validation/global/accuracy'"
        raise ValueError(f"evaluation.patience={resolved.run.patience} {needs}")
    if resolved.data.unseen is not None and (for_texts or resolved.episodes is not None):
        why = "instructions have unseen tasks" if for_texts else "episodes are of unseen classes, and of no client"
        raise ValueError(f"data.unseen_clients={resolved.data.unseen} is for clients with labelled examples of their own; {why}")
    for network in resolved.networks:
        _check_network(network.resolved, fields, for_texts)
    if resolved.schedule is not None and resolved.method.name == "fedmd" and resolved.method.options.get("align") is not None:
        what = f"schedule={fields['schedule']!r} and method.align={resolved.method.options['align']}"
        raise ValueError(f"{what}: stale clients answer for the public examples of an earlier round; set method.align=None")
    if for_texts:
        _check_text_fields(resolved)


def _check_network(network: ResolvedSpec, fields: Mapping[str, Any], for_texts: bool) -> None:
    """Raises ValueError for a network that cannot read the data, and for a CLIP model with fields of other networks."""
    reads_texts = network.function is language.Spec
    if for_texts and not reads_texts:
        wanted = f"('{language.MODEL}(folder=...)',)"
        raise ValueError(f"model {network.spec!r} cannot read instructions; models must be {wanted}")
    if reads_texts and not for_texts:
        source = fields["data.source"]
        raise ValueError(f"model {network.spec!r} reads texts; data.source={source!r} has none, instructions has")
    if reads_texts:
        language.check_spec(network())
    if network.function is clip_task.Spec:
        for name, only in FOR_CLIP.items():
            if fields[name] != only:
                what = f"with model {network.spec!r}, whose prompts are trained, it must be {only!r}"
                raise ValueError(f"{name}={fields[name]!r}: {what}")


def _check_text_fields(resolved: ResolvedConfig) -> None:
    """Raises ValueError for what does not go with instructions: shared classes, fields of images, several models."""
    fields, method = resolved.fields, resolved.method
    if method.origin == registry.BUILT_IN and method.name in OF_CLASSES:
        what = "counts, compares or sends classes that all examples share, and instructions have none"
        raise ValueError(f"method {method.name!r} {what}: an answer is a place in its question's list of options, or a text")
    for name, only in NOT_FOR_TEXTS.items():
        if fields[name] != only:
            here = "; the source has examples= and test_examples=" if name.endswith("examples") else ""
            raise ValueError(f"{name}={fields[name]!r} does not apply to instructions, with which it must be {only!r}{here}")
    if resolved.data.partition.spec != language.PARTITION or len(resolved.networks) != 1:
        wanted = f"instructions need data.partition={language.PARTITION!r} and one model"
        raise ValueError(f"data.partition={resolved.data.partition.spec!r}, models={tuple(fields['models'])}: {wanted}")
