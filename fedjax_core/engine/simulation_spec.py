"""What a simulation is made of: clients, data, settings and the shapes of its states."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_core import lazy_array
from fedjax_core.algorithm import Algorithm, Array, ClientData, PyTree, targets_of
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.data.row_readers import ExampleReader
from fedjax_core.devices import ClientDevices
from fedjax_core.engine.arrival_windows import Asynchrony
from fedjax_core.engine.client_sampler import ClientSampler
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.sharding.data_placement import Placement
from fedjax_core.engine.sharding.mesh import Plan
from fedjax_core.task import PeerGroup, Task
from fedjax_core.training import adapters, metrics
from fedjax_core.training.few_shot import EpisodeSampler
from fedjax_core.training.private_gradient import ExamplePrivacy

Build = Callable[[Task], Algorithm]
SCOPES = ("global", "own", "post_local", "all", "unseen")


class Group(NamedTuple):
    """Clients with one architecture.

    Attributes:
      name: what messages call it.
      build: task -> Algorithm; called anew inside each traced program, so it must be cheap and free of side effects.
      task: the group's network; `task.population` is the whole population's.
      turns: unseen clients take turns among the groups; these are the group's, counted from 0. Empty in all groups: one
        turn for each, in their order.
    """

    name: str
    build: Build
    task: Task
    clients: np.ndarray
    turns: tuple[int, ...] = ()


class State(NamedTuple):
    """Everything that a round changes, on the devices.

    Client states that are offloaded to the host or the disk are kept by the simulator, those of the newest state only.

    Attributes:
      server: the method's state, as `server_init` made it.
      clients: per group, client states with leaves [n, ...]; `()` if offloaded.
      round: [] rounds done.
      key: raw data of the seed's key, the same in all rounds; `stream_key` derives all draws from it.
      ring: what earlier broadcasts were made of, leaves [S, ...]; `()` where rounds are synchronous.
      sampler: what the sampler of cohorts remembers.
    """

    server: PyTree
    clients: tuple[PyTree, ...]
    round: Array
    key: Array
    ring: PyTree = ()
    sampler: PyTree = ()


class Evaluation(NamedTuple):
    """What is scored, and on which examples. The names of the scores say which:

      test/<model>/accuracy                          the server's model on the whole test set (scope "global")
      test/<model>/own/accuracy/<statistic>          each client's model on its own test split ("own"), as the round leaves it
      test/<model>/post_local/accuracy/<statistic>   the same right after local training, over the round's cohort ("post_local")
      test/<model>/all/accuracy/<statistic>          each client's model on the whole test set ("all")
      validation/<model>/accuracy                    where clients have validation examples, "global" on all of these
      validation/<model>/own/accuracy/<statistic>    and, with "own" or "all", each client's models on its own
      test/<model>/unseen/accuracy/<statistic>       each unseen client's models on its own test split ("unseen"): the server's
                                                     model, and what the method makes of its examples (`unseen_clients.py`)
      test/<model>/gap/accuracy                      the participation gap: the mean of "own" minus that of "unseen"

    <model> is a predictor of the method ("global", "personal"); <statistic> is mean (unweighted over clients), weighted (by test
    examples), lowest, highest. With episodes, "the whole test set" is the test episodes. If there are unseen clients and the
    method has models for them, "unseen" is always scored.

    Attributes:
      scopes: which of the above.
      batch: examples at once; None: chosen by the clients' data and the device (`score_batches.py`).
      clients: the most clients that are scored (the first ids of a fixed random order); None: all. Unseen ones all are.
      updates: local updates of an unseen client, where they make its models.
    """

    scopes: tuple[str, ...] = ("global", "own")
    batch: int | None = None
    clients: int | None = None
    updates: int = 1


class ScoreBatches(NamedTuple):
    """Examples at once, for each kind of score.

    Attributes:
      test, validation_rows: the server's model on the whole test set, on all validation examples.
      all: each client's on the whole test set.
      own, validation, unseen: each client's on its own test examples, on its validation examples, an unseen client's
        on its test examples.
    """

    test: int = 1
    validation_rows: int = 1
    all: int = 1
    own: int = 1
    validation: int = 1
    unseen: int = 1


class GroupShapes(NamedTuple):
    """Shapes and dtypes of one group's states and messages; `out`: a `ClientOutput`."""

    server: PyTree
    sent: PyTree
    client: PyTree
    out: Any

    @property
    def wire(self) -> tuple[PyTree, PyTree]:
        """What one client receives and sends, as it is transmitted."""
        return (self.sent, self.out.uplink) if self.out.wire is None else self.out.wire


class Shapes(NamedTuple):
    """What tracing tells; `down`, `up`: bytes that one client receives and sends a round, mean over the population.

    Those of clients that are only polled by the sampler are added to the cohort's.
    """

    groups: tuple[GroupShapes, ...]
    down: float
    up: float


@dataclasses.dataclass(frozen=True, eq=False)
class SimulationSpec:
    """Everything that a simulation is made of, under one plan (`build_spec.build_spec` makes it).

    Traced functions take it as a constant. They must not read its arrays (`host_arrays`, `tasks`, `data`): programs
    get these as arguments, `DeviceArrays`.

    Attributes:
      groups: clients by architecture, with zeros in place of frozen arrays that are deferred.
      tasks: per group, what `Task.bind` takes, deferred arrays included.
      data: the federated data (pooled for a method that asks for it), stored as `placement` says.
      placement: where the data are, and why.
      readers: of "train" and "test", where examples are streamed; else none.
      sampler: of the cohorts; that of an asynchronous schedule draws nothing (`BufferSampler`).
      dropout: the probability with which a sampled client does not come back.
      evaluation: what is scored, with unseen clients where that is possible.
      episodes: how minibatches and tests are drawn; None: plain examples.
      hold: "device", "host" or "disk", where client states are between rounds.
      center: of numeric targets, [D] the mean over the training examples.
      unseen_skip_reason: why unseen clients, if there are any, are not scored; "" if they are.
      plan, mesh, devices: the client loop's plan, the plan's devices, and the devices that it may take (None: all).
      batches: examples that are scored at once; they follow from the plan.
      score_bytes: per group, bytes of a client's sums of scores with `finalize`, of one model.
      client_devices: the clients' devices, and for whom the server waits; None: rounds take no time.
      client_seconds: [N] float64, of each client's round; None without profiles.
      asynchrony: the asynchronous schedule; None: rounds are synchronous.
      by_size: whether clients are ordered by size whatever the plan, as under `vmap` over runs, where clients of all
        runs that train at once should be of like size.
      example_privacy: clip and noise of local steps; None: training is not private.
    """

    groups: tuple[Group, ...]
    tasks: tuple[PyTree, ...]
    data: FederatedData
    placement: Placement
    readers: dict[str, ExampleReader]
    host_arrays: DeviceArrays
    sampler: ClientSampler
    dropout: float
    evaluation: Evaluation
    episodes: EpisodeSampler | None
    hold: str
    rounds_per_dispatch: int
    center: np.ndarray | float
    unseen_skip_reason: str
    plan: Plan
    mesh: Mesh
    devices: Sequence[Any] | None
    batches: ScoreBatches = ScoreBatches()  # noqa: RUF009
    shapes: Shapes = Shapes((), 0.0, 0.0)  # noqa: RUF009
    score_bytes: tuple[int, ...] = ()
    client_devices: ClientDevices | None = None
    client_seconds: np.ndarray | None = None
    asynchrony: Asynchrony | None = None
    by_size: bool = False
    example_privacy: ExamplePrivacy | None = None

    @property
    def population(self) -> int:
        """N."""
        return self.data.clients

    @property
    def is_offloaded(self) -> bool:
        """Whether client states are on the host or the disk between rounds."""
        return self.hold != "device"

    @property
    def targets(self) -> str:
        """The kind of the data's targets, one of `algorithm.TARGETS`."""
        return targets_of(self.data.train.y)

    @property
    def has_validation(self) -> bool:
        """Whether clients have validation examples."""
        return len(self.host_arrays.validation_rows) > 0

    @property
    def abstract_arrays(self) -> DeviceArrays:
        """Shapes of `host_arrays`."""
        return jax.eval_shape(lambda arrays: arrays, self.host_arrays)

    @property
    def bound_groups(self) -> tuple[Group, ...]:
        """The groups, whose tasks have their arrays, deferred ones included."""
        pairs = zip(self.groups, self.tasks, strict=True)
        return tuple(group._replace(task=group.task.bind(arrays, 0)) for group, arrays in pairs)

    def algorithm(self, g: int, arrays: DeviceArrays, round_num: Array | int) -> Algorithm:
        """Returns group g's method at a round."""
        return self.groups[g].build(self.groups[g].task.bind(arrays.tasks[g], round_num))

    def abstract_algorithm(self, g: int) -> Algorithm:
        """Returns group g's method before round 1, on host arrays: for its names and optional functions."""
        return self.algorithm(g, self.host_arrays, 0)

    def plan_of(self, g: int) -> Plan:
        """Returns the plan for one group: its chunk is no larger than the group's part of a cohort."""
        most = -(-min(self.sampler.slots, len(self.groups[g].clients)) // self.plan.client_shards)
        return self.plan._replace(chunk=min(self.plan.chunk, most))

    def group_slots(self, g: int) -> int:
        """Returns the slots of a cohort's clients of group g."""
        return self.plan_of(g).slots(min(self.sampler.slots, len(self.groups[g].clients)))

    def client_data(self, arrays: DeviceArrays, i: Array | int, size: Array, in_round: bool = False) -> ClientData:
        """Returns client i's data, or none of it where `size` is 0.

        Args:
          in_round: whether they are for a client's part of a round, which may end before all of its
            local steps.
        """
        settings = None if arrays.settings is None else jax.tree.map(lambda x: jnp.asarray(x)[i], arrays.settings)
        settings = settings if settings is None or in_round else settings._replace(share=None)
        privacy = self.example_privacy
        return ClientData(arrays.train, arrays.index[i], size, self.episodes, settings=settings, privacy=privacy)

    def label(self, what: str, g: int) -> str:
        """Returns what is said of group g, with its network's name if there are several."""
        return what if len(self.groups) == 1 else f"{what} with network {self.groups[g].name}"

    def count_bytes(self, g: int, tree: PyTree) -> np.ndarray:
        """Returns the bytes [n] of a message of group g's clients, from its shapes; an adapter's by the client's rank."""
        settings, clients = self.host_arrays.settings, self.groups[g].clients
        if settings is None or settings.rank is None:
            return np.full(len(clients), metrics.nbytes(tree))
        return adapters.count_bytes(tree, np.asarray(settings.rank)[clients])

    def scored_clients(self) -> np.ndarray:
        """Returns the ids of the clients that are scored, sorted."""
        number = self.evaluation.clients
        if number is None or number >= self.population:
            return np.arange(self.population)
        return np.sort(np.random.default_rng(0).permutation(self.population)[:number])


def one_group(build: Build, task: Task, population: int) -> list[Group]:
    """Returns the common case: all clients have one architecture."""
    return [Group("all", build, task, np.arange(population))]


def with_peer_groups(groups: Sequence[Group]) -> list[Group]:
    """Returns the groups, each of whose tasks knows them all."""
    peers = tuple(PeerGroup(lambda task=group.task: task.model, np.asarray(group.clients)) for group in groups)
    return [group._replace(task=dataclasses.replace(group.task, groups=peers, group=g)) for g, group in enumerate(groups)]


def with_abstract_frozen_params(groups: Sequence[Group]) -> list[Group]:
    """Returns the groups with zeros in place of deferred frozen arrays, which programs take as arguments."""
    tasks = [dataclasses.replace(group.task, frozen=lazy_array.with_zeros_for_lazy(group.task.frozen)) for group in groups]
    return [group._replace(task=task) for group, task in zip(groups, tasks, strict=True)]
