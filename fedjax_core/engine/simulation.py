"""A simulation: one method on one federated data set, as compiled programs and the states that they change.

    simulation = Simulation(build, task, data, cohort=0.4)
    state = simulation.init(seed=0)
    state, records = simulation.rounds(state, 10)
    scores = simulation.evaluate(state)

Random draws come from (seed, stream, round, client id): a client's draw depends on neither its place in the cohort, nor its group,
nor the plan. The programs themselves are in `rounds`, `scores`, `states` and `view`.
"""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, Array, PyTree, targets_of
from fedjax_core.data.federated import FederatedData, pooled
from fedjax_core.data.row_lists import RowLists
from fedjax_core.engine import check, division, faults, parallel, placement, rounds, scores, states, together, unseen, view
from fedjax_core.engine import cohort as cohorts
from fedjax_core.engine.disk_states import DiskStore
from fedjax_core.engine.exchange import Exchange
from fedjax_core.engine.faults import Diverged
from fedjax_core.engine.federation import (
    Build,
    Evaluation,
    Federation,
    Group,
    Held,
    State,
    acquainted,
    held_arrays,
    known_by_shape,
    one_group,
)
from fedjax_core.engine.record import flat
from fedjax_core.engine.rows import Resident, Streamed
from fedjax_core.engine.shared_exchange import between
from fedjax_core.engine.shares import of_processes
from fedjax_core.engine.view import View
from fedjax_core.learning import scored
from fedjax_core.learning.episodes import Episodes
from fedjax_core.uplink import Link, wrapped

__all__ = ["Build", "Diverged", "Evaluation", "Group", "Held", "Simulation", "State", "View", "first_to_reach", "one_group"]
Result = TypeVar("Result")
ROWS = {"own": "its own test rows", "validation": "its validation rows", "all": "the test set"}  # what a scope is scored on
BLOCK_BYTES = 2**26  # of what clients' scores are made of, of one block of clients


@jax.jit
def _copied(tree: PyTree) -> PyTree:
    """By one program, not one for each shape."""
    return jax.tree.map(jnp.copy, tree)


class Simulation:
    """One method on one federated data set.

    Attributes:
      data: the federated data (pooled for a method that asks for it).
      cohort: C.
      places: of a round's clients: C, of Poisson cohorts more.
      targets: what its rows are labelled with, one of `algorithm.TARGETS`.
      unserved: why unseen clients, if there are any, are not scored: the method has no models for them; "" if they are.
      placed: where the data lie, and why.
      plan: the client loop's plan; a smaller chunk is taken if it turns out not to fit.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        data: FederatedData,
        *,
        cohort: int | float | None = None,
        dropout: float = 0.0,
        plan: parallel.Plan | None = None,
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
          plan: None: `parallel.choose`.
          evaluation: what is scored.
          hold: "device", "host" or "disk": where client states are kept. Off the device one round is one dispatch.
          dispatch: the most rounds that run in one dispatch. Where data are streamed it is one.
          episodes: how minibatches and tests are drawn, for networks made by `episodes.prototypical`; None: plain examples.
          data_on: "device", "host" or "disk": where the data lie; None: where they fit (`placement.py`).
          devices: of which the plan takes the first; None: those that jax sees. For a topology's, programs can be compiled.
          links: what uplinks pass through: attacks, compression, privacy, a robust rule (`fedjax_core/uplink/`).
          leave_out: whether a client that sends something not finite is left out of its round, which else ends the run.
          sampling: "fixed", "poisson" or "cyclic", see `cohort.py`.

        Raises:
          ValueError: a setting is out of range; the groups do not partition the population or disagree about the server's
            state; a client update does not keep its state's structure, shapes and dtypes.
        """
        self._tasks = tuple(group.task.held for group in groups)
        groups = acquainted(known_by_shape(groups))
        if any(group.build(group.task).pooled for group in groups):
            if len(groups) > 1:
                raise ValueError("a pooled method trains one network; it cannot have groups")
            data, cohort, dropout = pooled(data), None, 0.0
            task = dataclasses.replace(groups[0].task, population=1)
            groups = acquainted([groups[0]._replace(clients=np.arange(1), task=task)])
        population = len(data.train_index)
        self.targets = targets_of(data.train.y)
        check.settings(groups, population, dropout, hold, evaluation, dispatch, episodes)
        check.targets(groups, data.train)
        why, newcomers = unseen.reason(tuple(groups)), 0 if data.unseen is None else len(data.unseen.ids)
        evaluation = unseen.scored(evaluation, why, newcomers > 0)
        self.unserved, self._newcomers = why if newcomers else "", newcomers
        size = cohorts.number(cohort, population)
        cohorts.check(sampling, size, population)
        rate = size / population if sampling == "poisson" else None
        places = size if rate is None else cohorts.places(size, population)
        self._devices = devices
        plan = parallel.choose(places, among=devices, **({} if plan is None else plan._asdict()))
        mesh, off = parallel.mesh(plan, devices), hold != "device"
        center = np.asarray(data.train.y).mean(0, dtype=np.float64) if self.targets == "numbers" else 0.0
        fixed = Federation(tuple(groups), population, places, dropout, evaluation, episodes, off, dispatch, plan, mesh, center)
        self._of = dataclasses.replace(fixed, rate=rate, in_turn=sampling == "cyclic")
        self.placed = placement.choose(data_on, data, mesh)
        data, self._readers = placement.opened(self.placed, data)
        self.data, self.population, self.cohort, self.places = data, population, size, places
        self.dropout, self.evaluation, self.episodes, self.hold = dropout, evaluation, episodes, hold
        self.dispatch = dispatch
        self._held_on_host = held_arrays(groups, data, episodes)
        self._on_host: states.OnHost | None = None
        self._exchange: Exchange | None = None
        self.shapes = check.shapes(self._of, self._held_on_host)
        if links or leave_out:
            self._pass_through(links, leave_out)
        self._supply: Resident | Streamed | None = None
        self._lane: int | None = None
        self._lender: Simulation | None = None
        self._fits: set[str] = set()
        self._outliers: set[int] = set()
        self.use(plan)

    def _pass_through(self, links: Sequence[Link], leave_out: bool) -> None:
        """Passes the uplinks of every group's method through links."""
        if any(group.build(group.task).pooled for group in self._of.groups):
            raise ValueError(
                "a pooled method has no clients that send something; it goes without attacks, rules, compression, privacy"
            )
        shapes = zip(self._of.groups, self.shapes.groups, strict=True)
        groups = [group._replace(build=wrapped(group.build, links, s.out.uplink, leave_out)) for group, s in shapes]
        self._of = dataclasses.replace(self._of, groups=tuple(groups))
        self.shapes = check.shapes(self._of, self._held_on_host)

    def use(self, plan: parallel.Plan) -> None:
        """Takes another plan: makes the jitted programs anew; the data go on its devices when they are first needed."""
        self.close()
        self.plan, self.mesh, self._held, self._supply = plan, parallel.mesh(plan, self._devices), None, None
        self._of = of = dataclasses.replace(self._of, plan=plan, mesh=self.mesh)
        self._layout = lies = division.layout(of, self._held_on_host, self.shapes)
        everywhere, each = parallel.replicated(self.mesh), range(len(of.groups))

        def program(function, *fixed, out: Any = everywhere, scored: bool | None = None, rows: str | None = None, **options):
            given = {name: value for name, value in (("scored", scored), ("rows", rows)) if value is not None}
            return jax.jit(functools.partial(function, of, *fixed, **given), out_shardings=out, **options)

        of_round, off_devices = (everywhere if plan.model == 1 else (lies.state, everywhere)), (lies.state, lies.rows, everywhere)
        self._init = program(rounds.init, out=lies.state)
        self._many, self._scored = (program(rounds.many, scored=s, out=of_round, donate_argnums=1) for s in (False, True))
        self._draw = program(rounds.draw)
        self._host_round = {s: program(rounds.on_host, scored=s, out=off_devices) for s in (False, True)}
        self._prepare = [program(rounds.prepare, g, out=lies.blocks[g]) for g in each]
        self._global = program(scores.of_server)
        self._validation = program(scores.of_server, rows="validation")
        self._batches = program(scores.of_batches)
        self._summed = jax.jit(functools.partial(parallel.summed, plan=plan, on=self.mesh), out_shardings=everywhere)
        self._clients = [program(scores.of_clients, g) for g in each]
        self._unseen = [program(unseen.of_unseen, g) for g in each]
        self._view = [program(view.holdings, g, out=lies.view, static_argnums=6) for g in each]
        self._predict = [program(view.predict, g, static_argnums=2) for g in each]

    def in_lane(self, lane: int | None) -> "Simulation":
        """The same simulation as one of several runs (`lanes.py`), with programs and data in common. It puts nothing on a device.

        Args:
          lane: which one, where the method has numbers by lane; None: it has not.
        """
        supply, other = self.supply, copy.copy(self)
        other._lane, other._fits, other._outliers = lane, set(), set()
        other._held, other._supply, other._lender = None, supply, self
        return other

    @property
    def federation(self) -> Federation:
        """What the programs are made of."""
        return self._of

    @property
    def divided(self) -> bool:
        """Whether some array of a network is divided over devices."""
        return division.divided(self._layout)

    @property
    def groups(self) -> tuple[Group, ...]:
        """Clients by architecture."""
        return tuple(group._replace(task=group.task.bind(own, 0)) for group, own in zip(self._of.groups, self._tasks, strict=True))

    @property
    def held(self) -> Held:
        """What lies on the plan's devices all the time: data, unless they are streamed, and what is frozen or public."""
        if self._held is None and self._lender is not None and self._lender.federation is self.federation:
            held = self._lender.held
            self._held = held if self._lane is None else held._replace(lane=self.put(np.int32(self._lane)))
        if self._held is None:
            rest = self.rest._replace(tasks=self._tasks)
            self._held = parallel.place(rest, self.mesh, self._layout.held)
        return self._held

    @property
    def rest(self) -> Held:
        """What lies on the devices all the time, on the host, with stand-ins for arrays that are deferred."""
        rest = self.supply.rest
        return rest if self._lane is None else rest._replace(lane=np.int32(self._lane))

    @property
    def supply(self) -> Resident | Streamed:
        """How programs get the rows of clients."""
        if self._supply is None:
            everything = self.episodes is not None or "all" in self.evaluation.scopes  # the whole test set, for each client
            of, host = self._of, self._held_on_host
            self._supply = Streamed(of, host, self._readers, self._draw, everything) if self._readers else Resident(host)
        return self._supply

    @property
    def _kept(self) -> states.OnHost | None:
        """Client states that are not on the devices, all of them written."""
        if self._exchange is not None:
            self._exchange.settle()
        return self._on_host

    def _keep(self, kept: states.OnHost) -> None:
        """Takes these client states in place of those before."""
        self.close()
        self._on_host = kept

    @property
    def _stores(self) -> list[states.HostStore] | None:
        return None if self._kept is None else self._kept.stores

    def _algorithm(self, g: int, held: Held, round: Array | int) -> Algorithm:  # noqa: A002
        return self._of.algorithm(g, held, round)

    def close(self) -> None:
        """Ends what is under way for coming rounds; all that came is written."""
        exchange, self._exchange = self._exchange, None
        try:
            if self._supply is not None:
                self._supply.close()
        finally:
            if exchange is not None:
                exchange.close()

    def release(self) -> None:
        """Takes the data, and what is frozen or public, off the devices, until they are needed again."""
        try:
            self.close()
        finally:
            self._held = None

    def put(self, tree: PyTree) -> PyTree:
        """Host values on the simulation's devices."""
        return parallel.place(tree, self.mesh)

    def init(self, seed: int) -> State:
        """The state before round 1: the server's, every client's, and `prepare` done if the method has it."""
        key = self.put(jax.random.key_data(jax.random.key(seed)))
        state = self._init(self.held, key)
        if self.hold != "device":
            self._keep(self._nothing_kept(_copied(state.server)))
        for g in range(len(self.groups)):
            if self._algorithm(g, self._held_on_host, 0).prepare is None:
                continue
            state = self._fitting(lambda state=state, g=g: self._prepared(state, g))
        return state

    def _prepared(self, state: State, g: int) -> State:
        blocks = self._blocks(g, self.groups[g].clients, self.population)
        for ids, held in zip(blocks, self.supply.of_blocks(self.held, blocks, ["index"]), strict=True):
            places, rows, *_ = self._rows(state, g, ids)
            rows = self._prepare[g](held, state.server, state.key, self.put(ids), rows)
            state = self._write(state, g, places, rows)
        return state

    def _nothing_kept(self, initial: PyTree) -> states.OnHost:
        store, rows = {"host": states.HostStore, "disk": DiskStore}[self.hold], self._layout.rows
        shares = of_processes(self.mesh, rows if isinstance(rows, list) else [rows] * len(self.groups))
        each, keeps = zip(self.groups, self.shapes.groups, strict=True), None if shares is None else shares[0].keeps
        return states.OnHost(initial, [store(len(g.clients), s.client, keeps) for g, s in each], shares)

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
            if self.hold != "device":
                state, raw = self._fitting(lambda state=state, last=last: self._round_on_host(state, last))
                raw = [raw]
            elif last:
                state, raw = self._dispatch("_scored", state, 1)
            else:
                first = self.supply.streamed and "_many" not in self._fits  # one: the program may turn out not to fit
                count = 1 if first else min(self.dispatch, n - len(records) - bool(scored))
                state, raw = self._dispatch("_many", state, count)
            records += self.said(state, raw)
        return state, records

    def said(self, state: State, raw: Sequence[PyTree]) -> list[dict[str, float]]:
        """Flat records of rounds, from what the program gave of each; `state` is the one after the last.

        Raises:
          Diverged: as `rounds`.
        """
        records, done = [], int(jax.device_get(state.round))
        for number, record in enumerate(raw, done - len(raw) + 1):
            records.append(flat(record, number, self.targets))
            faults.warn(faults.outliers(record["ids"], record["seen"]), number, self._outliers)
        return records

    def _dispatch(self, name: str, state: State, count: int) -> tuple[State, list[PyTree]]:
        """Runs `_many` or `_scored`; at first with a copy of the state, for a smaller chunk to take over if need be. The records of
        `count` rounds."""
        scored = name == "_scored"
        each = lambda record, number: [record] if scored else [jax.tree.map(lambda x, i=i: x[i], record) for i in range(number)]
        if name in self._fits and self.supply.streamed:
            state, records = self._streamed(getattr(self, name), state, count, scored)
            return state, [one for record in records for one in each(record, 1)]
        if name in self._fits:
            state, record = getattr(self, name)(self.held, state, self.put(np.int32(count)))
            return state, each(jax.device_get(record), count)

        def first():
            program, held = getattr(self, name), self._of_round(state, scored)
            arguments = held, state, self.put(np.int32(count))
            excess = self.excess(program, arguments) if self.plan.chunk > 1 else None
            if self.plan.chunk > 1 and together.anywhere(excess is not None):
                raise MemoryError(excess or "nor on another process's devices")
            new, record = program(held, _copied(state), arguments[2])
            return new, jax.device_get(record)

        state, record = self._fitting(first)
        self._fits.add(name)
        return state, each(record, count)

    def _streamed(self, program: Any, state: State, count: int, scored: bool) -> tuple[State, list[PyTree]]:
        """Rounds that take their rows one by one, each begun while the one before it trains, so that the devices wait for nothing:
        at most two have begun."""
        key, number, one = jax.device_get(state.key), int(jax.device_get(state.round)), self.put(np.int32(1))
        records: list[PyTree] = []
        for i in range(count):
            state, record = program(self.supply.of_round(self.held, key, number + i, scored), state, one)
            records[-1:] = [jax.device_get(earlier) for earlier in records[-1:]]
            records.append(record)
        return state, jax.device_get(records)

    def _of_round(self, state: State, scored: bool) -> Held:
        """What the program of the coming round reads."""
        if not self.supply.streamed:
            return self.held
        return self.supply.of_round(self.held, state.key, int(jax.device_get(state.round)), scored)

    def excess(self, program: Any, arguments: tuple) -> str | None:
        """Why a program will not fit this process's devices; None if it will, or if they do not tell."""
        limit = parallel.memory_limit(self.mesh)
        return parallel.too_large(program.lower(*arguments).compile(), limit, self.supply.beside(arguments[0])) if limit else None

    def _fitting(self, work: Callable[[], Result]) -> Result:
        """Does `work`, in smaller chunks if a device cannot hold it; its inputs must survive a failure."""

        def attempt(plan: parallel.Plan) -> Result:
            if plan != self.plan:
                self.use(plan)
            return work()

        return parallel.with_smaller_chunks(attempt, self.plan)[0]

    def _round_on_host(self, state: State, scored: bool):
        kept = self._on_host
        assert kept is not None
        if self._exchange is None:
            rest, draw, put = self.held, self._draw, functools.partial(parallel.place, on=self.mesh)
            drawn = lambda key, number: draw(rest, put(key), put(np.int32(number)))
            self._exchange = between(kept, drawn, self._layout.rows)
        key, number = np.asarray(jax.device_get(state.key)), int(jax.device_get(state.round))
        coming = self._exchange.take(key, number)
        touched = parallel.place(coming.touched, self.mesh, parallel.spread(self.mesh))
        held, program = self._of_round(state, scored), self._host_round[scored]
        following = self._exchange.drawn(key, number + 1)  # before the round: a device does one program after another
        state, rows, record = program(held, state, kept.initial, coming.drawn, coming.rows, touched)
        self._exchange.begin(key, number + 1, following)
        record = jax.device_get(record)
        self._exchange.give(coming, rows)
        return state, record

    def _blocks(self, g: int, clients: np.ndarray, nobody: int, each: int = 0) -> list[np.ndarray]:
        """Client ids in blocks of one size, the last padded with `nobody`: all at once if states and data are on the device, else a
        cohort's worth; fewer where a client is given `each` bytes, of which a block has BLOCK_BYTES."""
        whole = self.hold == "device" and not self.supply.streamed
        most = len(clients) if whole else min(len(clients), max(self.cohort, 64))
        most = min(most, max(1, BLOCK_BYTES // max(1, each)))
        size = parallel.slots(most, self._of.plan_of(g))
        ids = np.full(-(-len(clients) // size) * size, nobody, np.int32)
        ids[: len(clients)] = clients
        return list(ids.reshape(-1, size))

    def _rows(self, state: State, g: int, ids: np.ndarray) -> tuple[np.ndarray, PyTree, Array, PyTree]:
        """Of group g's clients `ids`: (places, states, which were ever touched, the server that the others begin from)."""
        places = self._held_on_host.places[g][ids]
        if self._kept is None:
            return places, states.gather(state.clients[g], self.put(places)), self.put(np.zeros(len(ids), bool)), state.server
        store, shares = self._kept.stores[g], self._kept.shares
        if shares is not None:
            rows = shares[g].brought(store.read, places, len(store.touched))
            return places, rows, self.put(store.known(places)), self._kept.initial
        rows, touched = store.read(places)
        return places, parallel.place(rows, self.mesh, self._layout.blocks[g]), self.put(touched), self._kept.initial

    def _write(self, state: State, g: int, places: np.ndarray, rows: PyTree) -> State:
        if self._kept is None:
            clients = list(state.clients)
            clients[g] = states.scatter(clients[g], self.put(places), rows)
            return state._replace(clients=tuple(clients))
        self._kept.stores[g].write(places, parallel.fetched(rows), places < len(self.groups[g].clients))
        self.close()  # what was read ahead is not the newest any more
        return state

    def view(self, state: State, client: int, *, trained: bool = False) -> View:
        """What one client holds, and its models: for analyses, outside of rounds.

        Args:
          state: to look at; it stays as it is.
          client: id.
          trained: True: what the client would hold right after its local training in the coming round.

        Raises:
          ValueError: there is no such client.
        """
        if not 0 <= client < self.population:
            raise ValueError(f"client {client} is not one of 0 ... {self.population - 1}")
        g = next(g for g, group in enumerate(self.groups) if client in group.clients)
        ids = np.array([client], np.int32)
        _, rows, touched, initial = self._rows(state, g, ids)
        held = self.supply.of_client(self.held, client, ["index"])
        plain, personal = self._view[g](held, state, initial, self.put(ids), rows, touched, trained)
        names = self._algorithm(g, self._held_on_host, 0).predict
        holds = {name: plain if name == "global" else personal for name in names}
        task = self.groups[g].task.bind(self.held.tasks[g], state.round)

        def predict(name: str, holds: tuple[PyTree, PyTree], x: PyTree, held: Held | None = None):
            return self._predict[g](self.held if held is None else held, state.round, name, holds, x)

        return View(client, task, holds, predict)

    def scored_clients(self) -> np.ndarray:
        """Ids of the clients that `evaluate` scores, sorted."""
        if self.evaluation.clients is None or self.evaluation.clients >= self.population:
            return np.arange(self.population)
        return np.sort(np.random.default_rng(0).permutation(self.population)[: self.evaluation.clients])

    def client_scores(self, state: State) -> dict[str, PyTree]:
        """Per client (in the order of `scored_clients`), as NumPy pairs: {"own": {predictor: {"loss", "accuracy"}}, "all": ...};
        "validation" where clients have such rows."""
        return self._fitting(lambda: self._client_scores(state))

    def _finished(self, models: dict[str, PyTree]) -> dict[str, PyTree]:
        """The scores of each model, of what the programs have added up."""
        return {model: scored.finished(self.targets, sums) for model, sums in models.items()}

    def _client_scores(self, state: State) -> dict[str, PyTree]:
        wanted = self.scored_clients()
        parts, ids = [], []
        for g, group in enumerate(self.groups):
            mine = np.asarray(group.clients)[np.isin(group.clients, wanted)]
            blocks = self._blocks(g, mine, self.population, self._sums_bytes(g)) if len(mine) else []
            for block, held in zip(blocks, self.supply.of_blocks(self.held, blocks, self._scored_tables(g)), strict=True):
                _, rows, touched, initial = self._rows(state, g, block)
                found = jax.device_get(self._clients[g](held, state, initial, self.put(block), rows, touched))
                real = block < self.population
                of_block = jax.tree.map(lambda x, real=real: x[real], found)
                parts.append({scope: self._finished(models) for scope, models in of_block.items()})
                ids.append(block[real])
        return {scope: scores.in_order([part[scope] for part in parts], ids) for scope in parts[0]}

    def _sums_bytes(self, g: int) -> int:
        """Of what a client of group g's scores are made of."""
        models = len(self._algorithm(g, self._held_on_host, 0).predict)
        return models * len(ROWS) * scored.sums_bytes(self.data.train.y)

    def _scored_tables(self, g: int) -> list[str]:
        """The tables of rows by which clients of group g are scored."""
        personalised = self._algorithm(g, self._held_on_host, 0).personalise is not None
        wanted = {"index": personalised, "validation_index": self.validated, "test_index": "own" in self.evaluation.scopes}
        return [name for name, needed in wanted.items() if needed]

    def unseen_scores(self, state: State) -> dict[str, PyTree]:
        """Per unseen client (in the order of `data.unseen`), as NumPy pairs: {predictor: {"loss", "accuracy"}}."""
        return self._fitting(lambda: self._unseen_scores(state))

    def _unseen_scores(self, state: State) -> dict[str, PyTree]:
        parts, found = [], []
        for g in range(len(self.groups)):
            mine = unseen.members(self._of, g, self._newcomers)
            if not len(mine):
                continue
            blocks = self._blocks(g, mine, self._newcomers, self._sums_bytes(g))
            tables = ["unseen_index", "unseen_test_index"]
            for block, held in zip(blocks, self.supply.of_blocks(self.held, blocks, tables), strict=True):
                sums = self._unseen[g](held, state.server, state.round, state.key, self.put(block))
                real = block < self._newcomers
                parts.append(self._finished(jax.tree.map(lambda x, real=real: x[real], jax.device_get(sums))))
                found.append(block[real])
        return scores.in_order(parts, found)

    def evaluate(self, state: State) -> dict[str, float]:
        """All scores of the configured scopes but "post_local"; names as in `Evaluation`.

        Raises:
          Diverged: a loss is not finite; says whose.
        """
        return self.evaluated(state)[0]

    def evaluated(self, state: State) -> tuple[dict[str, float], scores.ByClient | None]:
        """What `evaluate` gives, and the values of single clients that it is made of; None without scopes "own", "all" and
        "unseen".

        Raises:
          Diverged: a loss is not finite; says whose.
        """
        found, number, by_client = {}, int(jax.device_get(state.round)), None
        if "global" in self.evaluation.scopes and "global" in self._algorithm(0, self._held_on_host, 0).predict:
            for rows in ("test", *(["validation"] if self.validated else [])):
                for name, pair in scored.finished(self.targets, self._of_server(state, rows)).items():
                    if self.targets == "classes" or pair[1] > 0:
                        found[f"{rows}/global/{name}"] = float(pair[0] / pair[1])
            if not math.isfinite(found.get("test/global/loss", 0.0)):
                raise Diverged(f"round {number}: the loss of the server's model on the test set is not finite; {faults.ADVICE}")
        if {"own", "all"} & set(self.evaluation.scopes):
            ids = self.scored_clients()
            by_client = scores.ByClient(ids, RowLists.of(self.data.test_index).size[ids], {})
            for scope, models in self.client_scores(state).items():
                faults.scores(models, ids, ROWS[scope], number)
                for model, score in models.items():
                    place = f"validation/{model}/own" if scope == "validation" else f"test/{model}/{scope}"
                    found |= scores.statistics(place, score)
                    by_client.scores.update({f"{place}/{metric}": values for metric, values in scores.each(score).items()})
        if "unseen" in self.evaluation.scopes:
            models = self.unseen_scores(state)
            assert self.data.unseen is not None
            faults.scores(models, self.data.unseen.ids, "its test rows, as one that never trained,", number)
            own = {}
            for model, score in models.items():
                found |= scores.statistics(f"test/{model}/unseen", score)
                own |= {f"test/{model}/unseen/{metric}": values for metric, values in scores.each(score).items()}
            rows = RowLists.of(self.data.unseen.test_index).size
            theirs = scores.ByClient(self.population + np.arange(len(rows)), rows, own)
            by_client = theirs if by_client is None else scores.joined(by_client, theirs)
            found |= unseen.gaps(found, list(models), scored.NAMES[self.targets][0])
        return found, by_client

    def _of_server(self, state: State, rows: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The server's model on the "test" rows, or all "validation" rows: pairs by name."""
        part, supply = {"test": "test", "validation": "train"}[rows], self.supply
        if part not in supply.streamed:
            program = {"test": self._global, "validation": self._validation}[rows]
            return jax.device_get(program(self.held, state.server, state.round))
        assert isinstance(supply, Streamed)
        which = None if rows == "test" else self._held_on_host.validation_rows
        batches = supply.batches(part, which, self.evaluation.batch, self.plan.parts)
        number = self.put(np.int32(batches.number))
        found = [jax.device_get(self._batches(self.held, state.server, state.round, *block, number)) for block in batches]
        totals = parallel.place(batches.totals(found), self.mesh, parallel.spread(self.mesh))
        return jax.device_get(self._summed(totals))

    @property
    def validated(self) -> bool:
        """Whether clients have validation rows."""
        return len(self._held_on_host.validation_rows) > 0

    def validation_scores(self) -> list[str]:
        """Names of the scores on validation rows that `evaluate` gives; none without such rows."""
        if not self.validated:
            return []
        models, names = self._models_and_scores()
        own = [f"validation/{m}/own/{name}/{s}" for m in models for name in names for s in scores.STATISTICS]
        return self._of_global("validation", models, names) + (own if {"own", "all"} & set(self.evaluation.scopes) else [])

    def test_scores(self) -> list[str]:
        """Names of the scores on test rows that `evaluate` gives; those of unseen clients if the method has models for them."""
        models, names = self._models_and_scores()
        scopes = [scope for scope in ("own", "all", "unseen") if scope in self.evaluation.scopes]
        each = [f"test/{m}/{scope}/{name}/{s}" for m in models for scope in scopes for name in names for s in scores.STATISTICS]
        gaps = [f"test/{m}/gap/{names[0]}" for m in models] if "unseen" in scopes else []
        return self._of_global("test", models, names) + each + gaps

    def _models_and_scores(self) -> tuple[list[str], list[str]]:
        """The models that clients may be scored with, and the scores that all groups have."""
        of_all = [(*scored.NAMES[self.targets], *group.task.scores) for group in self.groups]
        names = [name for name in of_all[0] if all(name in names for names in of_all)]
        return list(self._algorithm(0, self._held_on_host, 0).predict), names

    def _of_global(self, rows: str, models: Sequence[str], names: Sequence[str]) -> list[str]:
        there = "global" in models and "global" in self.evaluation.scopes
        return [f"{rows}/global/{name}" for name in names] if there else []

    def snapshot(self, state: State) -> PyTree:
        """Everything that a checkpoint must keep, as host arrays."""
        return {"state": parallel.fetched(state)} | ({} if self._kept is None else self._kept.packed())

    def without_clients(self, state: State) -> PyTree:
        """A `snapshot` without client states that are kept off the devices: those are `kept`."""
        return {"state": parallel.fetched(state)} | (
            {} if self._kept is None else {"initial": parallel.fetched(self._kept.initial)}
        )

    @property
    def kept(self) -> states.OnHost | None:
        """Client states that are kept off the devices, those of the newest state; None if the devices have them."""
        return self._kept

    def touched(self) -> list[int]:
        """Per group, how many client states the host holds; empty if the device holds them. `like` wants it."""
        return [] if self._kept is None else self._kept.touched()

    def like(self, touched: list[int] | None) -> PyTree:
        """The structure of a `snapshot`, as NumPy arrays, to restore into; `touched` as at the snapshot, None for one
        `without_clients`."""
        state = jax.eval_shape(self._init, self._held_on_host, jax.random.key_data(jax.random.key(0)))
        kept = {}
        if self.hold != "device":
            kept = {"initial": state.server}
            kept |= {} if touched is None else states.like_packed(state.server, [s.client for s in self.shapes.groups], touched)
        return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), {"state": state} | kept)

    def restore(
        self, saved: PyTree, parts: Callable[..., Iterable[tuple[int, Mapping[str, np.ndarray]]]] = lambda wanted: ()
    ) -> State:
        """The inverse of `snapshot`, or of `without_clients` and `kept.parts`, on this simulation's devices, whatever they were.

        Args:
          saved: the snapshot.
          parts: (part -> names of the arrays that will be looked at) -> numbers of parts, and what `kept.parts` gave.
        """
        if self.hold != "device":
            kept = self._nothing_kept(parallel.place(saved["initial"], self.mesh, self._layout.server))
            if "stores" in saved:
                kept.unpack(saved)
            together.all_or_none("read its client states", lambda: [kept.take(*part) for part in parts(kept.wanted)])
            kept.saved()
            self._keep(kept)
        return parallel.place(saved["state"], self.mesh, self._layout.state)


def first_to_reach(accuracies: Sequence[tuple[int, float]], target: float) -> int | None:
    """The first round whose accuracy is at least `target`; None if there is none."""
    return next((r for r, a in accuracies if not math.isnan(a) and a >= target), None)
