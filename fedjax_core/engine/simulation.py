"""The round: who takes part, what they compute, what the server makes of it, and how it all scores. Jitted, state donated.

    simulation = Simulation(build, task, data, cohort=0.4)
    state = simulation.init(seed=0)
    state, records = simulation.rounds(state, 10)
    scores = simulation.evaluate(state)

Random draws come from (seed, stream, round, client id): a client's draw depends on neither its place in the cohort, nor its group,
nor the plan.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, Array, ClientData, Cohort, Examples, PyTree, Reduce
from fedjax_core.data.federated import FederatedData, padded, pooled
from fedjax_core.engine import cohort as cohorts
from fedjax_core.engine import parallel
from fedjax_core.learning import losses, metrics, training
from fedjax_core.learning.episodes import Episodes, assemble
from fedjax_core.task import Peers, Task

Build = Callable[[Task], Algorithm]
Result = TypeVar("Result")
Batches = tuple[Any, Callable[[Array], training.Batch]]  # how many there are, and each by its number
STREAMS = {"init": 0, "prepare": 1, "cohort": 2, "dropout": 3, "client": 4, "server": 5, "personalise": 6}
SCOPES = ("global", "own", "post_local", "all")


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
      test/<model>/own/accuracy/<statistic>       each client's model on its own test split ("own"), after the newest broadcast
      test/<model>/post_local/accuracy/<statistic>   the same right after local training, over the round's cohort ("post_local")
      test/<model>/all/accuracy/<statistic>       each client's model on the whole test set ("all")

    <model> is a predictor of the method ("global", "personal"); <statistic> is mean (unweighted over clients), weighted (by test
    examples), lowest, highest. With episodes, "the whole test set" is the test episodes.

    Attributes:
      scopes: which of the above.
      batch: examples at once.
      clients: at most so many clients are scored (the first ids of a fixed random order); None: all.
    """

    scopes: tuple[str, ...] = ("global", "own")
    batch: int = 256
    clients: int | None = None


class View(NamedTuple):
    """One client at one moment.

    Attributes:
      client: its id.
      task: its group's task at this round.
      holds: by model's name, the (sent, client state) that it predicts with: after the newest broadcast, and but for "global"
        personalised, if the method does that before scoring; or all of them right after a round of local training.
      predict: (model's name, what it predicts with, x) -> {"logits": [B, K], "features": [B, D]}; compiled once per shape. Inside
        another program it takes `Simulation.held` as a fourth argument, which would else be a constant there.
    """

    client: int
    task: Task
    holds: dict[str, tuple[PyTree, PyTree]]
    predict: Callable[..., dict[str, Array]]


class Held(NamedTuple):
    """Arrays that all rounds read and none changes: arguments of every program, never constants in it.

    Attributes:
      tasks: per group, what `Task.bind` takes.
      places: per group, [N + 1], where in the group's store each client's state stands; the store's length for those outside.
      train, test: the data sets.
      index, size: [N, M] and [N], each client's rows of `train`; `test_index`, `test_size`: of `test`.
      tests: rows of the test episodes (`Episodes.fixed`); `()` without episodes.
    """

    tasks: tuple[PyTree, ...]
    places: tuple[Any, ...]
    train: Examples
    index: Any
    size: Any
    test: Examples
    test_index: Any
    test_size: Any
    tests: Any = ()


class Diverged(FloatingPointError):
    """A client's training loss was not finite."""


class Simulation:
    """One method on one federated data set.

    Attributes:
      groups: clients by architecture.
      data: the federated data (pooled for a method that asks for it).
      cohort: C.
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
    ):
        """Checks everything that can be checked without training.

        Args:
          groups: together they hold each client once.
          data: one train and test index list per client.
          cohort: clients a round, as a number or a fraction; None: all.
          dropout: probability with which a sampled client does not come back.
          plan: None: `parallel.choose`.
          evaluation: what is scored.
          hold: "device" or "host": where client states are kept. On the host one round is one dispatch.
          dispatch: the most rounds that run in one dispatch.
          episodes: how minibatches and tests are drawn, for networks made by `episodes.prototypical`; None: plain examples.

        Raises:
          ValueError: a setting is out of range; the groups do not partition the population or disagree about the server's
            state; a client update does not keep its state's structure, shapes and dtypes.
        """
        groups = _acquainted(groups)
        algorithms = [group.build(group.task) for group in groups]
        if any(a.pooled for a in algorithms):
            if len(groups) > 1:
                raise ValueError("a pooled method trains one network; it cannot have groups")
            data, cohort, dropout = pooled(data), None, 0.0
            groups = _acquainted([groups[0]._replace(clients=np.arange(1), task=_with_population(groups[0].task, 1))])
        population = len(data.train_index)
        everyone = np.sort(np.concatenate([np.asarray(g.clients) for g in groups]))
        if not np.array_equal(everyone, np.arange(population)):
            raise ValueError(f"the groups' clients must be each of 0 ... {population - 1} once, found {everyone.tolist()[:20]}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} is not in [0, 1)")
        if hold not in ("device", "host"):
            raise ValueError(f"hold={hold!r} is neither 'device' nor 'host'")
        for scope in evaluation.scopes:
            if scope not in SCOPES:
                raise ValueError(f"evaluation.scopes has {scope!r}, which is not one of {', '.join(SCOPES)}")
        if evaluation.batch < 1 or (evaluation.clients is not None and evaluation.clients < 1) or dispatch < 1:
            raise ValueError("evaluation.batch, evaluation.clients and dispatch must be at least 1")
        if episodes is not None and (without := {"own", "post_local"} & set(evaluation.scopes)):
            raise ValueError(
                f"evaluation.scopes has {', '.join(map(repr, sorted(without)))}, but clients have no test episodes of their own; "
                "with episodes it may have 'global', 'all'"
            )
        self.groups, self.data, self.dropout, self.evaluation = tuple(groups), data, dropout, evaluation
        self.episodes = episodes
        self.population, self.hold, self.dispatch = population, hold, dispatch
        self.cohort = cohorts.number(cohort, population)
        self._stores: list[cohorts.HostStore] | None = None
        self._held: Held | None = None
        self._held_on_host = self._host_arrays()
        self.shapes = self._check()
        self.plan = parallel.choose(self.cohort) if plan is None else parallel.choose(self.cohort, **plan._asdict())
        self._fits: set[str] = set()
        self.use(self.plan)

    # ------------------------------------------------------------------------------------------------ set-up

    def _host_arrays(self) -> Held:
        index, size = padded(self.data.train_index)
        test_index, test_size = padded(self.data.test_index)
        tasks = tuple(group.task.held for group in self.groups)
        places = tuple(np.full(self.population + 1, len(group.clients), np.int32) for group in self.groups)
        for at, group in zip(places, self.groups, strict=True):
            at[group.clients] = np.arange(len(group.clients))
        tests = () if self.episodes is None else self.episodes.fixed(np.asarray(self.data.test.y))
        return Held(tasks, places, self.data.train, index, size, self.data.test, test_index, test_size, tests)

    def _rows_of(self, held: Held, i: Array | int, size: Array) -> ClientData:
        """Client i's data, or none of it where `size` is 0."""
        return ClientData(held.train, held.index[i], size, self.episodes)

    def _algorithm(self, group: int, held: Held, round: Array | int) -> Algorithm:  # noqa: A002
        return self.groups[group].build(self.groups[group].task.bind(held.tasks[group], round))

    def _check(self) -> "Shapes":
        """Traces every method's functions once, abstractly."""
        key = jax.random.key(0)
        held = jax.eval_shape(lambda h: h, self._held_on_host)
        zero = jax.ShapeDtypeStruct((), jnp.int32)

        def traced(group: int, held: Held, i: Array):
            algorithm = self._algorithm(group, held, i)
            server = algorithm.server_init(key)
            sent = algorithm.broadcast(server, i)
            client = algorithm.client_init(key, server, i)
            out = algorithm.client_update(sent, client, self._rows_of(held, 0, held.size[0]), key)
            return server, sent, client, out

        shapes = []
        for g, group in enumerate(self.groups):
            try:
                server, sent, client, out = jax.eval_shape(functools.partial(traced, g), held, zero)
            except KeyError as error:
                if self.episodes is None or error.args != ("logits",):
                    raise
                raise ValueError(
                    f"group {group.name!r}: the method reads logits of plain examples, which a prototypical network does not have; "
                    "with episodes choose a method, or an option of it, that reads features"
                ) from None
            _same(client, out.state, f"group {group.name!r}: client_update must return the client's state as client_init made it")
            if shapes:
                _same(
                    shapes[0].server,
                    server,
                    f"groups {self.groups[0].name!r} and {group.name!r} would give the server different states; a method that "
                    "averages parameters needs one architecture for all clients (for mixed ones use fedhe, for example)",
                )
            shapes.append(_Shape(server, sent, client, out))
        sizes = np.array([len(g.clients) for g in self.groups], float)
        down, up = (
            [metrics.nbytes(tree) for tree in trees] for trees in ([s.sent for s in shapes], [s.out.uplink for s in shapes])
        )
        return Shapes(tuple(shapes), float(sizes @ down / sizes.sum()), float(sizes @ up / sizes.sum()))

    def use(self, plan: parallel.Plan) -> None:
        """Takes another plan: makes the jitted programs anew; the data go on its devices when they are first needed."""
        self.plan, self.mesh, self._held = plan, parallel.mesh(plan), None
        jit = functools.partial(jax.jit, out_shardings=parallel.replicated(self.mesh))
        self._init = jit(self._init_program)
        self._many = jit(functools.partial(self._rounds_program, scored=False), donate_argnums=1)
        self._scored = jit(functools.partial(self._rounds_program, scored=True), donate_argnums=1)
        self._draw = jit(self._draw_program)
        everywhere, spread = parallel.replicated(self.mesh), parallel.spread(self.mesh)
        self._host_round = {
            s: jax.jit(functools.partial(self._host_round_program, scored=s), out_shardings=(everywhere, spread, everywhere))
            for s in (False, True)
        }
        self._prepare = [jit(functools.partial(self._prepare_program, g)) for g in range(len(self.groups))]
        self._global = jit(self._global_program)
        self._clients = [jit(functools.partial(self._clients_program, g)) for g in range(len(self.groups))]
        self._view = [jit(functools.partial(self._view_program, g), static_argnums=6) for g in range(len(self.groups))]
        self._predict = [jit(functools.partial(self._predict_program, g), static_argnums=2) for g in range(len(self.groups))]

    def _key(self, key: Array, stream: str, round: Array | int) -> Array:  # noqa: A002
        return jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), STREAMS[stream]), round)

    @property
    def held(self) -> Held:
        """Data, and what is frozen or public, on the plan's devices."""
        held = parallel.place(self._held_on_host, self.mesh) if self._held is None else self._held
        self._held = held
        return held

    def release(self) -> None:
        """Takes the data, and what is frozen or public, off the devices, until they are needed again."""
        self._held = None

    def _plan(self, g: int) -> parallel.Plan:
        """The plan for one group: no larger a chunk than its part of the cohort can fill."""
        most = -(-min(self.cohort, len(self.groups[g].clients)) // self.plan.devices)
        return self.plan._replace(chunk=min(self.plan.chunk, most))

    def put(self, tree: PyTree) -> PyTree:
        """Host values on the simulation's devices."""
        return parallel.place(tree, self.mesh)

    def init(self, seed: int) -> State:
        """The state before round 1: the server's, every client's, and `prepare` done if the method has it."""
        key = self.put(jax.random.key_data(jax.random.key(seed)))
        state = self._init(self.held, key)
        if self.hold == "host":
            self._initial_server = jax.tree.map(jnp.copy, state.server)
            self._stores = [
                cohorts.HostStore(len(g.clients), s.client) for g, s in zip(self.groups, self.shapes.groups, strict=True)
            ]
        for g in range(len(self.groups)):
            if self._algorithm(g, self._held_on_host, 0).prepare is None:
                continue
            state = self._fitting(lambda state=state, g=g: self._prepared(state, g))
        return state

    def _prepared(self, state: State, g: int) -> State:
        for ids in self._blocks(g, self.groups[g].clients):
            places, rows = self._rows(state, g, ids)
            rows = self._prepare[g](self.held, state.server, state.key, self.put(ids), rows)
            state = self._write(state, g, places, rows)
        return state

    def _init_program(self, held: Held, key: Array) -> State:
        server = self._algorithm(0, held, 0).server_init(self._key(key, "init", 0))
        clients = tuple(self._client_inits(g, held, server, key) if self.hold == "device" else () for g in range(len(self.groups)))
        return State(server, clients, jnp.zeros((), jnp.int32), key)

    def _client_inits(self, g: int, held: Held, server: PyTree, key: Array) -> PyTree:
        init = self._algorithm(g, held, 0).client_init
        ids = jnp.asarray(self.groups[g].clients, jnp.int32)
        return jax.lax.map(lambda i: init(self._key(key, "init", 0), server, i), ids)

    # ------------------------------------------------------------------------------------------------ one round

    def _cohort(self, held: Held, key: Array, round: Array) -> list[tuple[Cohort, Array]]:  # noqa: A002
        """Per group: the cohort in the order of the plan, and the places of its clients in the group's store."""
        ids = cohorts.sample(self._key(key, "cohort", round), self.population, self.cohort)
        drawn = []
        for g, group in enumerate(self.groups):
            places = parallel.slots(min(self.cohort, len(group.clients)), self._plan(g))
            if len(self.groups) > 1:
                chosen = cohorts.members(ids, group.clients, self.population, places)
            else:
                chosen = jnp.pad(ids, (0, places - len(ids)), constant_values=self.population)
            examples = jnp.where(chosen < self.population, held.size[jnp.minimum(chosen, self.population - 1)], 0)
            if self.dropout:
                examples = jnp.where(cohorts.stays(self._key(key, "dropout", round), chosen, self.dropout), examples, 0)
            order = parallel.arrange(examples, self._plan(g))
            cohort = Cohort(chosen[order], examples[order])
            drawn.append((cohort, held.places[g][cohort.ids]))
        return drawn

    def _train(self, held: Held, state: State, drawn, rows, scored: bool, initial: PyTree = (), touched=None):
        """One round on the cohort's client states `rows`: (server, new rows, record).

        With states on the host, those that were never `touched` start from the `initial` server's.
        """
        contributions, outputs = [], []
        for g, ((cohort, _), mine) in enumerate(zip(drawn, rows, strict=True)):
            shared = held, state.server, state.round, state.key, initial
            one = functools.partial(self._one_client, g, scored)
            entries = cohort, mine, () if touched is None else touched[g]
            added, stacked = parallel.map_clients(one, shared, entries, plan=self._plan(g), on=self.mesh)
            contributions.append((added[0], stacked[0]))
            outputs.append((added[1:], stacked[1:]))
        algorithm = self._algorithm(0, held, state.round)
        collected = _collect(algorithm.collect, contributions)
        everyone = Cohort(*(jnp.concatenate(leaves) for leaves in zip(*(cohort for cohort, _ in drawn), strict=True)))
        server, said = algorithm.server_update(state.server, collected, everyone, self._key(state.key, "server", state.round))
        sums = functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), [added[0] for added, _ in outputs])
        record = {
            "train": sums,
            "server": said or {},
            "cohort": jnp.sum(everyone.examples > 0),
            "diverged": jnp.max(jnp.concatenate([stacked[1] for _, stacked in outputs])),
        }
        if scored:
            record["post_local"] = [stacked[2] for _, stacked in outputs]
        return server, [stacked[0] for _, stacked in outputs], record

    def _one_client(self, g: int, scored: bool, shared, entry):
        """One client's round: ((lifted sums, metrics), (lifted stacks, state, diverged id, post-local scores))."""
        (held, server, round, key, initial), (client, state, touched) = shared, entry  # noqa: A001
        algorithm = self._algorithm(g, held, round)
        there = client.examples > 0
        i = jnp.minimum(client.ids, self.population - 1)
        if self.hold == "host":
            state = self._begun(algorithm, initial, key, i, state, touched)
        sent = algorithm.broadcast(server, i)
        data = self._rows_of(held, i, client.examples)
        out = algorithm.client_update(sent, state, data, jax.random.fold_in(self._key(key, "client", round), i))
        reduces, parts = _parts(algorithm.collect, out.uplink)
        lifted = [r.lift(part, client) for r, part in zip(reduces, parts, strict=True)]
        adds = [x for r, x in zip(reduces, lifted, strict=True) if r.join == "add"]
        stacks = [x for r, x in zip(reduces, lifted, strict=True) if r.join != "add"]

        def only_if_there(new, old):
            return jax.tree.map(lambda n, o: jnp.where(there, n, o), new, old)

        adds, said = only_if_there((adds, out.metrics), jax.tree.map(jnp.zeros_like, (adds, out.metrics)))
        finite = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(s)) for s in jax.tree.leaves(said)], jnp.bool(True))
        stacked = stacks, only_if_there(out.state, state), jnp.where(finite, -1, i)
        if scored:
            local = (sent, out.state) if out.local is None else out.local
            own = self._batches(held.test, held.test_index[i], jnp.where(there, held.test_size[i], 0))
            stacked += (self._score(g, _predictors(algorithm, local, local), own),)
        return (adds, said), stacked

    def _rounds_program(self, held: Held, state: State, n: Array, scored: bool):
        """`n` rounds; the records have leaves [dispatch, ...] (leaves [...] when scored: one round)."""

        def one(state: State):
            drawn = self._cohort(held, state.key, state.round)
            rows = [cohorts.gather(store, places) for store, (_, places) in zip(state.clients, drawn, strict=True)]
            server, rows, record = self._train(held, state, drawn, rows, scored)
            clients = tuple(
                cohorts.scatter(store, places, new) for store, (_, places), new in zip(state.clients, drawn, rows, strict=True)
            )
            return State(server, clients, state.round + 1, state.key), record

        if scored:
            return one(state)
        one = jax.jit(one, inline=True)  # one trace for its shapes and its use

        def body(i, carry):
            state, records = carry
            state, record = one(state)
            return state, jax.tree.map(lambda all_, new: all_.at[i].set(new), records, record)

        like = jax.eval_shape(one, state)[1]
        records = jax.tree.map(lambda s: jnp.zeros((self.dispatch, *s.shape), s.dtype), like)
        return jax.lax.fori_loop(0, n, body, (state, records))

    def _draw_program(self, held: Held, key: Array, round: Array):  # noqa: A002
        return self._cohort(held, key, round)

    def _host_round_program(self, held: Held, state: State, initial: PyTree, drawn, rows, touched, scored: bool):
        """One round on states that came from the host."""
        server, rows, record = self._train(held, state, drawn, rows, scored, initial, touched)
        return State(server, state.clients, state.round + 1, state.key), rows, record

    def _first(self, g: int, held: Held, initial: PyTree, key: Array, ids: Array, rows: PyTree, touched: Array) -> PyTree:
        """Client states [C, ...], made anew where they were never touched."""
        algorithm = self._algorithm(g, held, 0)
        return jax.lax.map(lambda entry: self._begun(algorithm, initial, key, *entry), (ids, rows, touched))

    def _begun(self, algorithm: Algorithm, initial: PyTree, key: Array, i: Array, row: PyTree, touched: Array) -> PyTree:
        """A client's state, made anew if it was never touched."""
        return jax.lax.cond(touched, lambda: row, lambda: algorithm.client_init(self._key(key, "init", 0), initial, i))

    def rounds(self, state: State, n: int, scored: bool = False) -> tuple[State, list[dict[str, float]]]:
        """Runs n rounds; the given state is consumed.

        Args:
          state: from `init`, `rounds` or a checkpoint.
          n: how many rounds.
          scored: whether the last of them also scores the clients' models right after local training (scope "post_local").

        Returns:
          (state, one flat record per round).

        Raises:
          Diverged: a client's training loss was not finite; says which client, in which round.
        """
        records: list[dict[str, float]] = []
        while len(records) < n:
            last = scored and len(records) == n - 1
            if self.hold == "host":
                state, raw = self._fitting(lambda state=state, last=last: self._round_on_host(state, last))
                raw = [raw]
            elif last:
                state, record = self._dispatch("_scored", state, 1)
                raw = [record]
            else:
                count = min(self.dispatch, n - len(records) - bool(scored))
                state, stacked = self._dispatch("_many", state, count)
                raw = [jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count)]
            done = int(jax.device_get(state.round))
            for j, record in enumerate(raw):
                records.append(self._flat(record, done - len(raw) + 1 + j))
        return state, records

    def _dispatch(self, name: str, state: State, count: int):
        """Runs `_many` or `_scored`; at first with a copy of the state, for a smaller chunk to take over if need be."""
        if name in self._fits:
            state, record = getattr(self, name)(self.held, state, self.put(np.int32(count)))
            return state, jax.device_get(record)

        def first():
            program, arguments = getattr(self, name), (self.held, state, self.put(np.int32(count)))
            limit = parallel.memory_limit(self.mesh) if self.plan.chunk > 1 else None
            if limit and (excess := parallel.too_large(program.lower(*arguments).compile(), limit)):
                raise MemoryError(excess)
            new, record = program(self.held, jax.tree.map(jnp.copy, state), arguments[2])
            return new, jax.device_get(record)

        result = self._fitting(first)
        self._fits.add(name)
        return result

    def _fitting(self, work: Callable[[], Result]) -> Result:
        """Does `work`, in smaller chunks if a device cannot hold it; its inputs must survive a failure."""

        def attempt(plan: parallel.Plan) -> Result:
            if plan != self.plan:
                self.use(plan)
            return work()

        return parallel.with_smaller_chunks(attempt, self.plan)[0]

    def _round_on_host(self, state: State, scored: bool):
        assert self._stores is not None
        drawn = self._draw(self.held, state.key, state.round)
        places = [np.asarray(jax.device_get(p)) for _, p in drawn]
        read = [store.read(p) for store, p in zip(self._stores, places, strict=True)]
        rows, touched = jax.device_put(([r for r, _ in read], [t for _, t in read]), parallel.spread(self.mesh))
        state, rows, record = self._host_round[scored](self.held, state, self._initial_server, drawn, rows, touched)
        for store, p, new, (cohort, _) in zip(self._stores, places, jax.device_get(rows), drawn, strict=True):
            store.write(p, new, np.asarray(jax.device_get(cohort.examples)) > 0)
        return state, jax.device_get(record)

    def _flat(self, record: PyTree, round: int) -> dict[str, float]:  # noqa: A002
        """A round's record with names, on the host."""
        if record["diverged"] >= 0:
            raise Diverged(
                f"round {round}: the training loss of client {int(record['diverged'])} is not finite; try a lower learning rate, "
                "or clip gradients"
            )
        flat: dict[str, float] = {"round": round, "cohort": int(record["cohort"])}
        for part in ("train", "server"):
            for name, pair in record[part].items():
                flat[f"{part}/{name}"] = float(pair[0]) / max(float(pair[1]), 1e-30)
        if "loss" in record["train"]:
            flat["train/examples"] = float(record["train"]["loss"][1])
        if "post_local" in record:
            joined = {}
            for scores in record["post_local"]:
                for name, score in scores.items():
                    joined.setdefault(name, []).append(score)
            for name, scores in joined.items():
                flat |= _statistics(f"test/{name}/post_local", jax.tree.map(lambda *x: np.concatenate(x), *scores))
        return flat

    # ------------------------------------------------------------------------------------------------ scores

    def _batches(self, test: Examples, index: Array, size: Array | int) -> Batches:
        """The first `size` of the test rows `index` [M]."""
        rows = index.shape[0]
        b = max(1, min(self.evaluation.batch, rows))
        index = jnp.pad(index, (0, -rows % b))

        def batch(i):
            at = i * b + jnp.arange(b)
            return training.take(test, index[at], at < size)

        return -(-size // b), batch

    def _whole_test(self, held: Held) -> tuple[int, Callable[[Array], training.Batch]]:
        """The whole test set, or the test episodes."""
        if self.episodes is None:
            n = len(jax.tree.leaves(held.test.y)[0])
            return self._batches(held.test, jnp.arange(n, dtype=jnp.int32), n)
        support, query = held.tests
        real = jnp.ones(support.shape[1:], bool), jnp.ones(query.shape[1:], bool)
        return len(support), lambda i: assemble(held.test, support[i], query[i], *real)

    def _score(self, g: int, predictors: dict[str, Callable], batches: Batches):
        """Predictors (x -> outputs) on test batches: {predictor: {"loss", "accuracy", and the task's}: pairs}."""
        (number, batch), own = batches, self.groups[g].task.scores

        def add(i, sums):
            x, y, mask, _ = batch(i)
            found = {name: _pairs(predict(x), x, y, mask, own) for name, predict in predictors.items()}
            return jax.tree.map(jnp.add, sums, found)

        pair = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32)
        zero = {name: dict.fromkeys(("accuracy", "loss", *own), pair) for name in predictors}
        return jax.lax.fori_loop(0, number, add, zero)

    def _global_program(self, held: Held, server: PyTree, round: Array):  # noqa: A002
        """The server's model on the whole test set, its batches spread like clients."""
        plan, number, own = self.plan._replace(chunk=1), self._whole_test(held)[0], self.groups[0].task.scores

        def one(shared, i):
            held, server, round = shared  # noqa: A001
            algorithm = self._algorithm(0, held, round)
            x, y, mask, _ = self._whole_test(held)[1](jnp.minimum(i, number - 1))
            outputs = algorithm.predict["global"](algorithm.broadcast(server, jnp.int32(0)), (), x)
            return _pairs(outputs, x, y, mask & (i < number), own), ()

        shared = held, server, round
        return parallel.map_clients(one, shared, jnp.arange(parallel.slots(number, plan)), plan=plan, on=self.mesh)[0]

    def _clients_program(self, g: int, held: Held, state: State, initial: PyTree, ids: Array, rows: PyTree, touched: Array):
        """Scores of the clients `ids` [E]: {"own": {predictor: {"loss", "accuracy"}: pairs [E]}, "all": ...}."""
        if self.hold == "host":
            rows = self._first(g, held, initial, state.key, ids, rows, touched)

        def one(shared, entry):
            (held, _, round, _), (i, client) = shared, entry  # noqa: A001
            algorithm = self._algorithm(g, held, round)
            there = i < self.population
            i = jnp.minimum(i, self.population - 1)
            plain, personal = self._holdings(algorithm, shared, i, client, jnp.where(there, held.size[i], 0))
            predictors = _predictors(algorithm, plain, personal)
            scores = {}
            if "own" in self.evaluation.scopes:
                own = self._batches(held.test, held.test_index[i], jnp.where(there, held.test_size[i], 0))
                scores["own"] = self._score(g, predictors, own)
            predictors.pop("global", None)  # on the whole test set it is the same for all clients: scope "global" has it
            if "all" in self.evaluation.scopes and predictors:
                number, batch = self._whole_test(held)
                scores["all"] = self._score(g, predictors, (jnp.where(there, number, 0), batch))
            return (), scores

        shared = held, state.server, state.round, state.key
        return parallel.map_clients(one, shared, (ids, rows), plan=self._plan(g), on=self.mesh)[1]

    def _prepare_program(self, g: int, held: Held, server: PyTree, key: Array, ids: Array, rows: PyTree) -> PyTree:
        def one(shared, entry):
            (held, server, key), (i, client) = shared, entry
            algorithm = self._algorithm(g, held, 0)
            assert algorithm.prepare is not None
            there = i < self.population
            i = jnp.minimum(i, self.population - 1)
            data = self._rows_of(held, i, jnp.where(there, held.size[i], 0))
            sent = algorithm.broadcast(server, i)
            return (), algorithm.prepare(sent, client, data, jax.random.fold_in(self._key(key, "prepare", 0), i))

        if self.hold == "host":
            rows = self._first(g, held, server, key, ids, rows, jnp.zeros(len(ids), bool))
        return parallel.map_clients(one, (held, server, key), (ids, rows), plan=self._plan(g), on=self.mesh)[1]

    def _blocks(self, g: int, clients: np.ndarray) -> list[np.ndarray]:
        """Client ids in blocks of one size, the last padded with N: all at once on the device, a cohort's worth on the host."""
        most = len(clients) if self.hold == "device" else min(len(clients), max(self.cohort, 64))
        size = parallel.slots(most, self._plan(g))
        ids = np.full(-(-len(clients) // size) * size, self.population, np.int32)
        ids[: len(clients)] = clients
        return list(ids.reshape(-1, size))

    def _rows(self, state: State, g: int, ids: np.ndarray) -> tuple[np.ndarray, PyTree]:
        places = self._held_on_host.places[g][ids]
        if self._stores is None:
            return places, cohorts.gather(state.clients[g], self.put(places))
        return places, self.put(self._stores[g].read(places)[0])

    def _write(self, state: State, g: int, places: np.ndarray, rows: PyTree) -> State:
        if self._stores is None:
            clients = list(state.clients)
            clients[g] = cohorts.scatter(clients[g], self.put(places), rows)
            return state._replace(clients=tuple(clients))
        self._stores[g].write(places, jax.device_get(rows), places < len(self.groups[g].clients))
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
        places, rows = self._rows(state, g, np.array([client], np.int32))
        touched, initial = np.zeros(1, bool), state.server
        if self._stores is not None:
            touched, initial = self._stores[g].read(places)[1], self._initial_server
        ids = self.put(np.array([client], np.int32))
        plain, personal = self._view[g](self.held, state, initial, ids, rows, self.put(touched), trained)
        names = self._algorithm(g, self._held_on_host, 0).predict
        holds = {name: plain if name == "global" else personal for name in names}
        task = self.groups[g].task.bind(self.held.tasks[g], state.round)

        def predict(name: str, holds: tuple[PyTree, PyTree], x: PyTree, held: Held | None = None):
            return self._predict[g](self.held if held is None else held, state.round, name, holds, x)

        return View(client, task, holds, predict)

    def _view_program(
        self, g: int, held: Held, state: State, initial: PyTree, ids: Array, rows: PyTree, touched: Array, trained: bool
    ):
        if self.hold == "host":
            rows = self._first(g, held, initial, state.key, ids, rows, touched)
        algorithm, client = self._algorithm(g, held, state.round), jax.tree.map(lambda x: x[0], rows)
        if trained:
            sent, data = algorithm.broadcast(state.server, ids[0]), ClientData(held.train, held.index[ids[0]], held.size[ids[0]])
            key = jax.random.fold_in(self._key(state.key, "client", state.round), ids[0])
            out = algorithm.client_update(sent, client, data, key)
            local = (sent, out.state) if out.local is None else out.local
            return local, local
        return self._holdings(algorithm, (held, state.server, state.round, state.key), ids[0], client, held.size[ids[0]])

    def _holdings(self, algorithm: Algorithm, shared, i: Array, client: PyTree, examples: Array):
        """(sent, client state) of client i as they are, and personalised."""
        held, server, round, key = shared  # noqa: A001
        plain = algorithm.broadcast(server, i), client
        if algorithm.personalise is None:
            return plain, plain
        data = self._rows_of(held, i, examples)
        return plain, algorithm.personalise(*plain, data, jax.random.fold_in(self._key(key, "personalise", round), i))

    def _predict_program(self, g: int, held: Held, round: Array, name: str, holds: tuple[PyTree, PyTree], x: PyTree):  # noqa: A002
        return self._algorithm(g, held, round).predict[name](*holds, x)

    def scored_clients(self) -> np.ndarray:
        """Ids of the clients that `evaluate` scores, sorted."""
        if self.evaluation.clients is None or self.evaluation.clients >= self.population:
            return np.arange(self.population)
        return np.sort(np.random.default_rng(0).permutation(self.population)[: self.evaluation.clients])

    def client_scores(self, state: State) -> dict[str, PyTree]:
        """Per client (in the order of `scored_clients`), as NumPy pairs: {"own": {predictor: {"loss", "accuracy"}}, "all": ...}."""
        return self._fitting(lambda: self._client_scores(state))

    def _client_scores(self, state: State) -> dict[str, PyTree]:
        wanted = self.scored_clients()
        parts, ids = [], []
        for g, group in enumerate(self.groups):
            mine = np.asarray(group.clients)[np.isin(group.clients, wanted)]
            for block in self._blocks(g, mine) if len(mine) else []:
                places, rows = self._rows(state, g, block)
                touched = np.zeros(len(block), bool) if self._stores is None else self._stores[g].read(places)[1]
                initial = state.server if self._stores is None else self._initial_server
                scores = jax.device_get(self._clients[g](self.held, state, initial, self.put(block), rows, self.put(touched)))
                real = block < self.population
                parts.append(jax.tree.map(lambda x, real=real: x[real], scores))
                ids.append(block[real])
        order = np.argsort(np.concatenate(ids))
        shared = {scope: [m for m in parts[0][scope] if all(m in part[scope] for part in parts)] for scope in parts[0]}
        alike = [{scope: {m: part[scope][m] for m in models} for scope, models in shared.items()} for part in parts]
        return jax.tree.map(lambda *x: np.concatenate(x)[order], *alike)

    def evaluate(self, state: State) -> dict[str, float]:
        """All scores of the configured scopes but "post_local"; names as in `Evaluation`."""
        scores: dict[str, float] = {}
        if "global" in self.evaluation.scopes and "global" in self._algorithm(0, self._held_on_host, 0).predict:
            for name, pair in jax.device_get(self._global(self.held, state.server, state.round)).items():
                scores[f"test/global/{name}"] = float(pair[0] / pair[1])
        if {"own", "all"} & set(self.evaluation.scopes):
            for scope, models in self.client_scores(state).items():
                for model, score in models.items():
                    scores |= _statistics(f"test/{model}/{scope}", score)
        return scores

    # ------------------------------------------------------------------------------------------------ checkpoints

    def snapshot(self, state: State) -> PyTree:
        """Everything that a checkpoint must keep, as host arrays."""
        saved = {"state": jax.device_get(state)}
        if self._stores is not None:
            saved["initial"] = jax.device_get(self._initial_server)
            saved["stores"] = [store.packed() for store in self._stores]
        return saved

    def touched(self) -> list[int]:
        """Per group, how many client states the host holds; empty if the device holds them. `like` wants it."""
        return [] if self._stores is None else [int(store.touched.sum()) for store in self._stores]

    def like(self, touched: list[int]) -> PyTree:
        """The structure of a `snapshot`, as NumPy arrays, to restore into; `touched` as at the snapshot."""
        state = jax.eval_shape(self._init_program, self._held_on_host, jax.random.key_data(jax.random.key(0)))
        like: dict[str, Any] = {"state": state}
        if self.hold == "host":
            like["initial"] = state.server
            clients = [s.client for s in self.shapes.groups]
            like["stores"] = [
                {
                    "places": jax.ShapeDtypeStruct((n,), jnp.int32),
                    "rows": jax.tree.map(lambda s, n=n: jax.ShapeDtypeStruct((n, *s.shape), s.dtype), c),
                }
                for n, c in zip(touched, clients, strict=True)
            ]
        return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), like)

    def restore(self, saved: PyTree) -> State:
        """The inverse of `snapshot`, on this simulation's devices, whatever they were."""
        if self.hold == "host":
            self._initial_server = self.put(saved["initial"])
            self._stores = [
                cohorts.HostStore(len(g.clients), s.client) for g, s in zip(self.groups, self.shapes.groups, strict=True)
            ]
            for store, packed in zip(self._stores, saved["stores"], strict=True):
                store.unpack(packed)
        return self.put(saved["state"])


class _Shape(NamedTuple):
    """Abstract values of one group."""

    server: PyTree
    sent: PyTree
    client: PyTree
    out: Any


class Shapes(NamedTuple):
    """What is known without running. `down`, `up`: bytes that one client receives and sends per round, mean over the population."""

    groups: tuple[_Shape, ...]
    down: float
    up: float


def one_group(build: Build, task: Task, population: int) -> list[Group]:
    """The common case: all clients have one architecture."""
    return [Group("all", build, task, np.arange(population))]


def _with_population(task: Task, population: int) -> Task:
    return dataclasses.replace(task, population=population)


def _acquainted(groups: Sequence[Group]) -> list[Group]:
    """The groups, whose tasks know them all."""
    peers = tuple(Peers(lambda task=group.task: task.model, tuple(np.asarray(group.clients).tolist())) for group in groups)
    return [group._replace(task=dataclasses.replace(group.task, groups=peers, group=g)) for g, group in enumerate(groups)]


def _is_reduce(x: Any) -> bool:
    return isinstance(x, Reduce)


def _parts(collect: PyTree, uplink: PyTree) -> tuple[list[Reduce], list[PyTree]]:
    reduces, structure = jax.tree.flatten(collect, is_leaf=_is_reduce)
    return reduces, structure.flatten_up_to(uplink)


def _collect(collect: PyTree, contributions: list) -> PyTree:
    """Joins the groups' contributions and lowers each part: what `server_update` sees."""
    reduces, structure = jax.tree.flatten(collect, is_leaf=_is_reduce)
    adds = iter(functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), [added for added, _ in contributions]))
    stacks = iter(zip(*(stacked for _, stacked in contributions), strict=True))
    lowered = []
    for r in reduces:
        if r.join == "add":
            lowered.append(r.lower(next(adds)))
        elif r.join == "group":
            lowered.append(r.lower(next(stacks)))
        else:
            lowered.append(r.lower(jax.tree.map(lambda *x: jnp.concatenate(x), *next(stacks))))
    return structure.unflatten(lowered)


def _pairs(
    outputs: dict[str, Array], x: PyTree, y: Array, mask: Array, own: Mapping[str, Callable[..., metrics.Pair]]
) -> dict[str, metrics.Pair]:
    """Accuracy, loss, and a task's own scores."""
    more = {name: score(outputs, x, y, mask) for name, score in own.items()}
    logits, y = outputs["logits"], outputs.get("targets", y)
    rows = losses.cross_entropy_rows(logits.astype(jnp.float32), jnp.maximum(y, 0))
    return {"accuracy": metrics.accuracy(logits, y, mask), "loss": metrics.mean_of(rows, losses.counted(y, mask))} | more


def _predictors(algorithm: Algorithm, plain: tuple[PyTree, PyTree], personal: tuple[PyTree, PyTree]) -> dict[str, Callable]:
    """The method's predictors as x -> outputs: "global" as broadcast, the others with the personalised (sent, client)."""

    def bound(name, predict):
        sent, client = plain if name == "global" else personal
        return lambda x: predict(sent, client, x)

    return {name: bound(name, predict) for name, predict in algorithm.predict.items()}


def _statistics(prefix: str, scores: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Over clients with at least one test example: unweighted mean, mean by examples, lowest, highest."""
    flat = {}
    for metric, (total, weight) in scores.items():
        there = weight > 0
        if not there.any():
            continue
        each = total[there] / weight[there]
        flat[f"{prefix}/{metric}/mean"] = float(each.mean())
        flat[f"{prefix}/{metric}/weighted"] = float(total[there].sum() / weight[there].sum())
        flat[f"{prefix}/{metric}/lowest"] = float(each.min())
        flat[f"{prefix}/{metric}/highest"] = float(each.max())
    return flat


def _same(wanted: PyTree, found: PyTree, why: str) -> None:
    """Raises ValueError unless two pytrees of shapes agree, naming the first leaf that does not."""

    def described(tree):
        return {
            jax.tree_util.keystr(path) or "the whole": f"{leaf.dtype}{list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }

    a, b = described(wanted), described(found)
    for path in [*a, *b]:
        if a.get(path) != b.get(path):
            raise ValueError(f"{why}: at {path}, {a.get(path, 'nothing')} against {b.get(path, 'nothing')}")
    if jax.tree.structure(wanted) != jax.tree.structure(found):
        raise ValueError(f"{why}: {jax.tree.structure(wanted)} against {jax.tree.structure(found)}")


def first_to_reach(accuracies: Sequence[tuple[int, float]], target: float) -> int | None:
    """The first round whose accuracy is at least `target`; None if there is none."""
    return next((r for r, a in accuracies if not math.isnan(a) and a >= target), None)
