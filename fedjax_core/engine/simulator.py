"""A simulation: one method on one federated data set, as compiled programs and the states that they change.

    simulation = Simulation(build, task, data, cohort=0.4)
    state = simulation.init(seed=0)
    state, records = simulation.rounds(state, 10)
    scores = simulation.evaluate(state)

Random draws come from (seed, stream, round, client id): a client's draw depends on neither its place in the cohort, nor its group,
nor the plan.

The class says what can be asked of a simulation; others do it. `described` checks what it is made of. A plan makes a `Planned` of
that: `programs` (of the functions in `rounds`, `scores`, `unseen` and `view`), the `arrays` that they read, the client states that
they change (`keeping`). `dispatching`, `evaluating`, `viewing` and `snapshots` work on a `Planned`.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from fedjax_core.algorithm import PyTree, targets_of
from fedjax_core.data.federated_data import FederatedData
from fedjax_core.engine import (
    check,
    client_loop,
    dispatch,
    divergence,
    evaluation,
    evaluation_step,
    programs,
    score_batches,
    score_names,
    snapshots,
    viewing,
)
from fedjax_core.engine.client_state import host_store
from fedjax_core.engine.client_state.manager import ClientStates
from fedjax_core.engine.client_view import View
from fedjax_core.engine.data_feed.device_arrays import Arrays
from fedjax_core.engine.data_feed.streaming import Resident, Streamed
from fedjax_core.engine.described import described
from fedjax_core.engine.divergence import Diverged
from fedjax_core.engine.federation import Build, Evaluation, Federation, Group, Held, State, one_group
from fedjax_core.engine.planned import Planned
from fedjax_core.engine.record import flat
from fedjax_core.engine.sharding import model_parallel
from fedjax_core.training.few_shot import Episodes
from fedjax_core.uplink import Link

__all__ = ["Build", "Diverged", "Evaluation", "Group", "Held", "Simulation", "State", "View", "one_group"]
Result = TypeVar("Result")


class Simulation:
    """One method on one federated data set.

    Attributes:
      data: the federated data (pooled for a method that asks for it).
      population: N.
      cohort: C.
      places: of a round's clients: C, of Poisson cohorts more.
      dropout, evaluation, episodes, hold, dispatch: as given; what is scored, with unseen clients where that is possible.
      targets: what its rows are labelled with, one of `algorithm.TARGETS`.
      unserved: why unseen clients, if there are any, are not scored: the method has no models for them; "" if they are.
      placed: where the data lie, and why.
      host: what all rounds read, on the host.
      shapes: of states and messages, known without running.
      planned: what it does its work with, under its plan.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        data: FederatedData,
        *,
        cohort: int | float | None = None,
        dropout: float = 0.0,
        plan: client_loop.Plan | None = None,
        evaluation: Evaluation = Evaluation(),  # noqa: B008
        hold: str = "device",
        dispatch: int = 10,
        episodes: Episodes | None = None,
        data_on: str | None = None,
        devices: Sequence[Any] | None = None,
        links: Sequence[Link] = (),
        leave_out: bool = False,
        sampling: str = "fixed",
    ):
        """Checks everything that can be checked without training.

        Args:
          groups: together they hold each client once.
          data: one train and test index list per client; unseen clients are of no group, they take turns among the networks.
          cohort: clients a round, as a number or a fraction; None: all.
          dropout: probability with which a sampled client does not come back.
          plan: None: `client_loop.choose`.
          evaluation: what is scored.
          hold: "device", "host" or "disk": where client states are kept. Off the device one round is one dispatch.
          dispatch: the most rounds that run in one dispatch. Where data are streamed it is one.
          episodes: how minibatches and tests are drawn, for networks made by `few_shot.prototypical`; None: plain examples.
          data_on: "device", "host" or "disk": where the data lie; None: where they fit (`data_placement.py`).
          devices: of which the plan takes the first; None: those that jax sees. For a topology's, programs can be compiled.
          links: what uplinks pass through: attacks, compression, privacy, a robust rule (`fedjax_core/uplink/`).
          leave_out: whether a client that sends something not finite is left out of its round, which else ends the run.
          sampling: "fixed", "poisson" or "cyclic", see `client_sampling.py`.

        Raises:
          ValueError: a setting is out of range; the groups do not partition the population or disagree about the server's
            state; a client update does not keep its state's structure, shapes and dtypes.
          TypeError: a function of the method returns something else than it must (`contracts.py`).
        """
        with check.parted(groups):
            self._of = of = described(
                groups,
                data,
                cohort=cohort,
                dropout=dropout,
                plan=plan,
                evaluation=evaluation,
                hold=hold,
                dispatch=dispatch,
                episodes=episodes,
                data_on=data_on,
                devices=devices,
                links=links,
                leave_out=leave_out,
                sampling=sampling,
            )
        fed, self.data, self.placed, self.host, self.shapes = of.fed, of.data, of.placed, of.host, of.shapes
        self.population, self.cohort, self.places, self.unserved = fed.population, of.cohort, fed.cohort, of.unserved
        self.dropout, self.evaluation, self.episodes, self.dispatch = fed.dropout, fed.evaluation, episodes, dispatch
        self.hold, self.targets = hold, targets_of(self.data.train.y)
        self._devices, self._outliers = devices, set()
        self.planned = self._under(fed.plan)

    def _under(self, plan: client_loop.Plan, kept: host_store.OnHost | None = None) -> Planned:
        """What does the work under a plan, with the client states of the plan before."""
        of, host = self._of, self.host
        mesh = client_loop.mesh(plan, self._devices)
        convolves = score_batches.has_convolution([(group.server, group.client) for group in self.shapes.groups])
        batches = score_batches.choose_batches(of.fed.evaluation, host, plan, mesh.devices.flat[0].platform, convolves)
        fed = dataclasses.replace(of.fed, plan=plan, mesh=mesh, batches=batches)
        lies = model_parallel.layout(fed, host, self.shapes)
        made = programs.compiled(fed, lies)
        arrays = Arrays(fed, host, of.tasks, of.readers, lies.held, made.draw)
        clients = ClientStates(fed, lies, [group.client for group in self.shapes.groups], host.places, self.hold, kept)
        return Planned(fed, lies, made, arrays, clients, self.cohort)

    def use(self, plan: client_loop.Plan) -> None:
        """Takes another plan: makes the jitted programs anew; the data go on its devices when they are first needed."""
        self.release()
        self.planned = self._under(plan, self.planned.states.kept)

    def in_lane(self) -> "Simulation":
        """Returns a replica for one of several seeds (`vmapped_runs.py`), which shares programs and data. It puts nothing on a
        device."""
        other = copy.copy(self)
        other._outliers = set()
        other.planned = dataclasses.replace(self.planned, arrays=self.planned.arrays.in_lane(), fits=set())
        return other

    @property
    def plan(self) -> client_loop.Plan:
        """The client loop's plan; a smaller chunk is taken if it turns out not to fit."""
        return self.planned.fed.plan

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """The plan's devices."""
        return self.planned.fed.mesh

    @property
    def federation(self) -> Federation:
        """What the programs are made of."""
        return self.planned.fed

    @property
    def programs(self) -> programs.Programs:
        """The jitted functions under the plan."""
        return self.planned.programs

    @property
    def divided(self) -> bool:
        """Whether some array of a network is divided over devices."""
        return model_parallel.divided(self.planned.lies)

    @property
    def groups(self) -> tuple[Group, ...]:
        """Clients by architecture."""
        pairs = zip(self.federation.groups, self._of.tasks, strict=True)
        return tuple(group._replace(task=group.task.bind(own, 0)) for group, own in pairs)

    @property
    def held(self) -> Held:
        """What lies on the plan's devices all the time: data, unless they are streamed, and what is frozen or public."""
        return self.planned.arrays.held

    @property
    def rest(self) -> Held:
        """What lies on the devices all the time, on the host, with stand-ins for arrays that are deferred."""
        return self.planned.arrays.rest

    @property
    def supply(self) -> Resident | Streamed:
        """How programs get the rows of clients."""
        return self.planned.arrays.supply

    def close(self) -> None:
        """Ends what is under way for coming rounds; all that came is written."""
        self.planned.close()

    def release(self) -> None:
        """Takes the data, and what is frozen or public, off the devices, until they are needed again."""
        try:
            self.close()
        finally:
            self.planned.arrays.release()

    def put(self, tree: PyTree) -> PyTree:
        """Host values on the simulation's devices."""
        return self.planned.put(tree)

    def _fitting(self, work: Callable[[Planned], Result]) -> Result:
        """Does `work`, in smaller chunks if a device cannot hold it; its inputs must survive a failure."""

        def attempt(plan: client_loop.Plan) -> Result:
            if plan != self.plan:
                self.use(plan)
            return work(self.planned)

        return client_loop.with_smaller_chunks(attempt, self.plan)[0]

    def init(self, seed: int) -> State:
        """The state before round 1: the server's, every client's, and `prepare` done if the method has it."""
        return dispatch.start(self.planned, self._fitting, seed)

    def rounds(self, state: State, n: int, scored: bool = False) -> tuple[State, list[dict[str, float]]]:
        """Runs n rounds; the given state is consumed.

        Args:
          state: from `init`, `rounds` or a checkpoint.
          n: how many rounds.
          scored: whether the last of them also scores the clients' models right after local training (scope "post_local").

        Returns:
          (state, one flat record per round).

        Raises:
          Diverged: something was not finite; says what, of which clients or of the server, in which round.
        """
        records: list[dict[str, float]] = []
        while len(records) < n:
            last = scored and len(records) == n - 1
            most = 1 if last else min(self.dispatch, n - len(records) - bool(scored))
            state, raw = dispatch.rounds(self.planned, self._fitting, state, most, last)
            records += self.said(state, raw)
        return state, records

    def said(self, state: State, raw: Sequence[PyTree]) -> list[dict[str, float]]:
        """Flat records of rounds, from what the program gave of each; `state` is the one after the last.

        Raises:
          Diverged: as `rounds`.
        """
        records, done = [], int(jax.device_get(state.round))
        own = [group.task.scores for group in self.federation.groups]
        for number, record in enumerate(raw, done - len(raw) + 1):
            records.append(flat(record, number, self.targets, own, self.data.train.y))
            divergence.warn(divergence.outliers(record["ids"], record["seen"]), number, self._outliers)
        return records

    def excess(self, program: Any, arguments: tuple) -> str | None:
        """Why a program will not fit this process's devices; None if it will, or if they do not tell."""
        return dispatch.excess(self.planned, program, arguments)

    def view(self, state: State, client: int, *, trained: bool = False) -> View:
        """What one client holds, and its models: for analyses, outside of rounds.

        Args:
          state: to look at; it stays as it is.
          client: id.
          trained: True: what the client would hold right after its local training in the coming round.

        Raises:
          ValueError: there is no such client.
        """
        return viewing.of_client(lambda: self.planned, state, client, trained)

    def scored_clients(self) -> np.ndarray:
        """Ids of the clients that `evaluate` scores, sorted."""
        return evaluation.scored_clients(self.federation)

    def client_scores(self, state: State) -> dict[str, PyTree]:
        """Per client (in the order of `scored_clients`), as NumPy pairs: {"own": {predictor: {"loss", "accuracy"}}, "all": ...};
        "validation" where clients have such rows."""
        return self._fitting(lambda at: evaluation.of_clients(at, state))

    def unseen_scores(self, state: State) -> dict[str, PyTree]:
        """Per unseen client (in the order of `data.unseen`), as NumPy pairs: {predictor: {"loss", "accuracy"}}."""
        return self._fitting(lambda at: evaluation.of_unseen(at, state))

    def evaluate(self, state: State) -> dict[str, float]:
        """All scores of the configured scopes but "post_local"; names as in `Evaluation`.

        Raises:
          Diverged: a loss is not finite; says whose.
        """
        return self.evaluated(state)[0]

    def evaluated(
        self, state: State, watch: evaluation.Watch = evaluation.unwatched
    ) -> tuple[dict[str, float], evaluation_step.ByClient | None]:
        """What `evaluate` gives, and the values of single clients that it is made of; None without scopes "own", "all" and
        "unseen".

        Args:
          state: to score; it stays as it is.
          watch: is told what is scored, how much of it is done and of how much, about twice a second; what it raises ends the
            evaluation.

        Raises:
          Diverged: a loss is not finite; says whose.
        """
        return evaluation.evaluated(self.planned, self._fitting, state, self.data, watch)

    @property
    def validated(self) -> bool:
        """Whether clients have validation rows."""
        return evaluation.validated(self.host)

    def validation_scores(self) -> list[str]:
        """Names of the scores on validation rows that `evaluate` gives; none without such rows."""
        return score_names.of_validation(self.planned)

    def test_scores(self) -> list[str]:
        """Names of the scores on test rows that `evaluate` gives; those of unseen clients if the method has models for them."""
        return score_names.of_test(self.planned)

    def snapshot(self, state: State) -> PyTree:
        """Everything that a checkpoint must keep, as host arrays."""
        return snapshots.whole(self.planned, state)

    def without_clients(self, state: State) -> PyTree:
        """A `snapshot` without client states that are kept off the devices: those are `kept`."""
        return snapshots.without_clients(self.planned, state)

    @property
    def kept(self) -> host_store.OnHost | None:
        """Client states that are kept off the devices, those of the newest state; None if the devices have them."""
        return self.planned.states.kept

    def touched(self) -> list[int]:
        """Per group, how many client states the host holds; empty if the device holds them. `like` wants it."""
        return [] if self.kept is None else self.kept.touched()

    def like(self, touched: list[int] | None) -> PyTree:
        """The structure of a `snapshot`, as NumPy arrays, to restore into; `touched` as at the snapshot, None for one
        `without_clients`."""
        return snapshots.like(self.planned, touched, [group.client for group in self.shapes.groups])

    def restore(
        self, saved: PyTree, parts: Callable[..., Iterable[tuple[int, Mapping[str, np.ndarray]]]] = lambda wanted: ()
    ) -> State:
        """The inverse of `snapshot`, or of `without_clients` and `kept.parts`, on this simulation's devices, whatever they were.

        Args:
          saved: the snapshot.
          parts: (part -> names of the arrays that will be looked at) -> numbers of parts, and what `kept.parts` gave.
        """
        return snapshots.restored(self.planned, saved, parts)
