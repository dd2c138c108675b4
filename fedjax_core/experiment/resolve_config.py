"""From a config to what it asks for: every name found, every setting checked; what is wrong is said in one line. No data are read.

`resolve(config)` is the one place that reads a config's names (`lookup.py`, `uplink_options.py`); `build` reads what it returns
and nothing else.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedjax_core import registry
from fedjax_core.engine.simulator import Evaluation
from fedjax_core.experiment import lookup, schema, uplink_options
from fedjax_core.experiment.lookup import NORMALISATIONS
from fedjax_core.experiment.method_registry import Config
from fedjax_core.language import instruction_task as language
from fedjax_core.privacy import Privacy
from fedjax_core.registry import Found
from fedjax_core.task import PARTS
from fedjax_core.training import adapters, few_shot, local_training
from fedjax_core.training.augment import pipeline
from fedjax_core.uplink import Link

STATISTICS = ("average", "local", "freeze")
TASKS = {"classification": lambda: None, "episodes": few_shot.Episodes}
NOT_LOCAL = ("finetune_epochs", "server_epochs")  # options of methods: epochs that train nothing that a round keeps of clients
FOR_IMAGES = {"augment": None, "public": None, "weights": None, "task": "classification", "train": "all"}


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
      augment: of a training image, or None.
      scores: by name, what is scored beside accuracy and loss.
      loss: of labels, or None.
      cohort: how many clients take part, or their fraction; None: all.
      dropout: probability that a sampled client does not come back.
      evaluation: what is scored.
      chunk, devices, model, hold: how a round is spread, see `client_loop.choose`.
      data_on: where the data lie, see `data_placement.choose_placement`.
      adversary: who attacks and how, or None.
      links: what uplinks pass through beside attacks, see `uplink`.
      rule: that takes the place of the mean, behind what stands before it; among `links` it is made.
      leave_out: whether clients that send something not finite are left out.
      sampling: of cohorts, "fixed", "poisson" or "cyclic".
      mechanism: of differential privacy, or None; it takes what `privacy` says.
      privacy: how much, or None.
      said: the fields, checked, for messages.
    """

    seed: int
    method: Found
    optimizer: local_training.Optimizer
    data: lookup.Data
    networks: tuple[lookup.Network, ...]
    public: tuple[Found, int | None] | None
    episodes: few_shot.Episodes | None
    adapter: adapters.Kind | None
    train: str
    normalise: str
    statistics: str
    augment: pipeline.Augment | None
    scores: dict[str, Callable]
    loss: Found | None
    cohort: int | float | None
    dropout: float
    evaluation: Evaluation
    chunk: int | None
    devices: int | None
    model: int
    hold: str
    data_on: str | None
    adversary: uplink_options.Adversary | None
    links: tuple[Link, ...]
    rule: tuple[Found, ...]
    leave_out: bool
    sampling: str
    mechanism: Found | None
    privacy: Privacy | None
    said: Mapping[str, Any]


def resolve(config: Config) -> Asked:
    """What a config asks for, checked.

    Raises:
      ValueError, TypeError: a name or an option that there is not, a value that is not allowed, or a field that is missing; the
        message names the field.
    """
    said = schema.check(config)
    data = lookup.data(said)
    cohort = said["cohort.fraction"] if said["cohort.size"] is None else said["cohort.size"]
    method = lookup.method(config)
    asked = Asked(
        said["seed"],
        method,
        lookup.optimizer(config),
        data,
        lookup.networks(said),
        lookup.public(said["public"]),
        registry.find("task", said["task"], TASKS, field="task")(),
        None if said["adapter"] is None else registry.find("adapter", said["adapter"], adapters.ADAPTERS, field="adapter")(),
        registry.choose("train", said["train"], PARTS),
        registry.choose("normalise", said["normalise"], NORMALISATIONS),
        registry.choose("statistics", said["statistics"], STATISTICS),
        None if said["augment"] is None else pipeline.of_training(said["augment"]),
        lookup.scores(said["evaluation.scores"] or ()),
        lookup.loss(said["loss"]),
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
        uplink_options.adversary(said),
        uplink_options.links(said),
        uplink_options.rule(said),
        uplink_options.leaves_out(said),
        said["cohort.sampling"] or "fixed",
        *uplink_options.private(said, data.source.function is language.Source, _weights(method)),
        said,
    )
    _check_trains(asked.method)
    _go_together(asked, said)
    return asked


def check(config: Config) -> None:
    """Raises what `resolve` does, and where a run could not find its callbacks."""
    lookup.callbacks(resolve(config).said["callbacks"])


def algorithm(asked: Asked) -> Callable:
    """The method with its optimiser and options: task -> Algorithm."""
    return functools.partial(asked.method.function, optimizer=asked.optimizer, **asked.method.options)


def _weights(method: Found) -> str | None:
    """Returns how a method weighs clients, by its option of that name."""
    takes = registry.parameters(method.function)[0]
    return method.options.get("weights", takes["weights"].default) if "weights" in takes else None


def _check_trains(method: Found) -> None:
    """Raises ValueError where a method's numbers of local epochs are all 0."""
    takes = registry.parameters(method.function)[0]
    names = [name for name in takes if name.endswith("epochs") and name not in NOT_LOCAL]
    epochs = {name: method.options.get(name, takes[name].default) for name in names}
    numbers = {name: number for name, number in epochs.items() if isinstance(number, int)}
    if numbers and not any(numbers.values()):
        found = ", ".join(f"method.{name}=0" for name in numbers)
        raise ValueError(f"{found} trains nothing; {'it' if len(numbers) == 1 else 'one of them'} must be at least 1")


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
