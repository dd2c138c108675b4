"""Who is there and what they work on: what every program of a simulation is made of, and what it takes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_core import lazy_array
from fedjax_core.algorithm import Algorithm, Array, ClientData, Examples, PyTree
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.data.ragged_index import RowLists
from fedjax_core.engine import client_loop
from fedjax_core.engine.tables import RowTable, table
from fedjax_core.task import Peers, Task
from fedjax_core.training.few_shot import Episodes

Build = Callable[[Task], Algorithm]
STREAMS = {"init": 0, "prepare": 1, "cohort": 2, "dropout": 3, "client": 4, "server": 5, "personalise": 6, "newcomer": 7}
SCOPES = ("global", "own", "post_local", "all", "unseen")


class Group(NamedTuple):
    """Clients with one architecture.

    Attributes:
      name: what messages call it.
      build: task -> Algorithm; called anew inside each traced program, so it must be cheap and free of side effects.
      task: the group's network; `task.population` is the whole population's.
      clients: [n] ids.
    """

    name: str
    build: Build
    task: Task
    clients: np.ndarray


class State(NamedTuple):
    """Everything that a round changes, on the devices. Client states that are held on the host are kept by the simulation, which
    has those of the newest state only.

    Attributes:
      server: the method's server state.
      clients: per group, client states with leaves [n, ...]; `()` if held on the host.
      round: [] rounds done.
      key: the experiment's key data.
    """

    server: PyTree
    clients: tuple[PyTree, ...]
    round: Array
    key: Array


class Evaluation(NamedTuple):
    """What is scored, and on what. The names of the scores say which:

      test/<model>/accuracy                    the server's model on the whole test set (scope "global")
      test/<model>/own/accuracy/<statistic>       each client's model on its own test split ("own"), as the round leaves it
      test/<model>/post_local/accuracy/<statistic>   the same right after local training, over the round's cohort ("post_local")
      test/<model>/all/accuracy/<statistic>       each client's model on the whole test set ("all")
      validation/<model>/accuracy              where clients have validation rows, "global" on all of these
      validation/<model>/own/accuracy/<statistic>    and, with "own" or "all", each client's models on its own
      test/<model>/unseen/accuracy/<statistic>    each unseen client's models on its own test split ("unseen"): the server's model,
                                               and what the method makes of the client's training rows (`unseen.py`)
      test/<model>/gap/accuracy                the participation gap: the mean of "own" minus that of "unseen"

    <model> is a predictor of the method ("global", "personal"); <statistic> is mean (unweighted over clients), weighted (by test
    examples), lowest, highest. With episodes, "the whole test set" is the test episodes. Where clients are unseen, "unseen" is
    scored without being asked for, if the method has models for them.

    Attributes:
      scopes: which of the above.
      batch: rows at once; None: chosen by what clients have and by the device (`score_batches.py`).
      clients: at most so many clients are scored (the first ids of a fixed random order); None: all. Unseen ones all are.
      updates: local updates of an unseen client, where they make its models.
    """

    scopes: tuple[str, ...] = ("global", "own")
    batch: int | None = None
    clients: int | None = None
    updates: int = 1


class ScoreBatches(NamedTuple):
    """Rows at once, of each kind of score.

    Attributes:
      test, validation_rows: the server's model on the whole test set, on all validation rows.
      all: each client's on the whole test set.
      own, validation, unseen: each client's on test rows of its own, on its validation rows, an unseen client's on its test rows.
    """

    test: int = 1
    validation_rows: int = 1
    all: int = 1
    own: int = 1
    validation: int = 1
    unseen: int = 1


class Held(NamedTuple):
    """Arrays that all rounds read and none changes: arguments of every program, never constants in it.

    Attributes:
      tasks: per group, what `Task.bind` takes.
      places: per group, [N + 1], where in the group's store each client's state stands; the store's length for those outside.
      train, test: the data sets.
      index, size: each client's rows of `train`, of which `index[i]` gives [M], and [N] how many; `test_index`, `test_size`: of
        `test`.
      tests: rows of the test episodes (`Episodes.fixed`); `()` without episodes.
      validation_index, validation_size, validation_rows: each client's validation rows of `train`, as `index`, and [N], and all of
        them, [V]; `()` without such.
      unseen_index, unseen_size: each unseen client's rows of `train`, as `index`, and [U]; unseen_test_index, unseen_test_size: of
        `test`; `()` without such clients.
    """

    tasks: tuple[PyTree, ...]
    places: tuple[Any, ...]
    train: Examples
    index: RowTable
    size: Any
    test: Examples
    test_index: RowTable
    test_size: Any
    tests: Any = ()
    validation_index: Any = ()
    validation_size: Any = ()
    validation_rows: Any = ()
    unseen_index: Any = ()
    unseen_size: Any = ()
    unseen_test_index: Any = ()
    unseen_test_size: Any = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Federation:
    """What a simulation's programs are made of; none of it is an array, and none of it changes.

    Attributes:
      groups: clients by architecture.
      population: N.
      cohort: C, or places for those that come where sampling is Poisson.
      rate: with which each client comes, where sampling is Poisson; else None.
      in_turn: whether cohorts are taken from a circle, one after the other.
      dropout: probability with which a sampled client does not come back.
      evaluation: what is scored.
      episodes: how minibatches and tests are drawn; None: plain examples.
      on_host: whether client states are kept on the host, or on the disk.
      dispatch: the most rounds that run in one dispatch.
      plan: the client loop's plan.
      mesh: the plan's devices.
      center: where targets are numbers, [D] the mean of the training rows'.
      score_bytes: per group, bytes of a client's sums of scores with `finalize`, of one model.
      batches: rows that are scored at once; they follow from the plan.
      by_size: whether clients train by size whatever the plan, as under `vmap` over seeds: so clients that train at once are alike.
    """

    groups: tuple[Group, ...]
    population: int
    cohort: int
    dropout: float
    evaluation: Evaluation
    episodes: Episodes | None
    on_host: bool
    dispatch: int
    plan: client_loop.Plan
    mesh: Mesh
    center: np.ndarray | float = 0.0
    rate: float | None = None
    in_turn: bool = False
    batches: ScoreBatches = dataclasses.field(default_factory=ScoreBatches)
    by_size: bool = False
    score_bytes: tuple[int, ...] = ()

    def algorithm(self, g: int, held: Held, round: Array | int) -> Algorithm:  # noqa: A002
        """Group g's method at a round."""
        return self.groups[g].build(self.groups[g].task.bind(held.tasks[g], round))

    def plan_of(self, g: int) -> client_loop.Plan:
        """The plan for one group: no larger a chunk than its part of the cohort can fill."""
        most = -(-min(self.cohort, len(self.groups[g].clients)) // self.plan.parts)
        return self.plan._replace(chunk=min(self.plan.chunk, most))

    def rows_of(self, held: Held, i: Array | int, size: Array) -> ClientData:
        """Client i's data, or none of it where `size` is 0."""
        return ClientData(held.train, held.index[i], size, self.episodes)


def key(of_run: Array, stream: str, round: Array | int) -> Array:  # noqa: A002
    """The key of one stream of draws in one round, from the experiment's key data."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(of_run), STREAMS[stream]), round)


def one_group(build: Build, task: Task, population: int) -> list[Group]:
    """The common case: all clients have one architecture."""
    return [Group("all", build, task, np.arange(population))]


def acquainted(groups: Sequence[Group]) -> list[Group]:
    """The groups, whose tasks know them all."""
    peers = tuple(Peers(lambda task=group.task: task.model, np.asarray(group.clients)) for group in groups)
    return [group._replace(task=dataclasses.replace(group.task, groups=peers, group=g)) for g, group in enumerate(groups)]


def known_by_shape(groups: Sequence[Group]) -> list[Group]:
    """The groups with zeros in place of frozen arrays that are deferred: programs take these as arguments."""
    tasks = [dataclasses.replace(group.task, frozen=lazy_array.stand_ins(group.task.frozen)) for group in groups]
    return [group._replace(task=task) for group, task in zip(groups, tasks, strict=True)]


def held_arrays(groups: Sequence[Group], data: FederatedData, episodes: Episodes | None) -> Held:
    """What all rounds read, on the host."""
    population = len(data.train_index)
    places = tuple(np.full(population + 1, len(group.clients), np.int32) for group in groups)
    for at, group in zip(places, groups, strict=True):
        at[group.clients] = np.arange(len(group.clients))
    tests = () if episodes is None else episodes.fixed(np.asarray(data.test.y))
    tasks = tuple(group.task.held for group in groups)
    lists = RowLists.of(data.train_index), RowLists.of(data.test_index)
    held = Held(tasks, places, data.train, *_table(lists[0]), data.test, *_table(lists[1]), tests)
    if data.unseen is not None:
        (rows, sizes), (tests, test_sizes) = (
            _table(RowLists.of(index)) for index in (data.unseen.train_index, data.unseen.test_index)
        )
        held = held._replace(unseen_index=rows, unseen_size=sizes, unseen_test_index=tests, unseen_test_size=test_sizes)
    validation = RowLists.of(data.validation_index)
    if not validation.total:
        return held
    index, size = _table(validation)
    return held._replace(validation_index=index, validation_size=size, validation_rows=np.unique(validation.joined()))


def _table(lists: RowLists) -> tuple[RowTable, np.ndarray]:
    return table(lists), lists.size
