"""The round, as pure functions that the simulation compiles: who takes part, what they compute, what the server makes of it."""

import functools

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array, Cohort, PyTree, Reduce
from fedjax_core.engine import client_loop, contracts, divergence, evaluation_step
from fedjax_core.engine import client_sampling as cohorts
from fedjax_core.engine.client_state import host_store
from fedjax_core.engine.data_feed import cohort_buffer
from fedjax_core.engine.federation import Federation, Held, State, key
from fedjax_core.finite_checks import became_nonfinite
from fedjax_core.uplink import sharded_aggregation

Drawn = list[tuple[Cohort, Array]]  # per group: the cohort in the order of the plan, and its clients' places in the group's store


def init(fed: Federation, held: Held, of_run: Array) -> State:
    """The state before round 1, without `prepare`."""
    server = fed.algorithm(0, held, 0).server_init(key(of_run, "init", 0))
    groups = range(len(fed.groups))
    clients = tuple(() if fed.on_host else host_store.initial(fed, g, held, server, of_run) for g in groups)
    return State(server, clients, jnp.zeros((), jnp.int32), of_run)


def prepare(fed: Federation, g: int, held: Held, server: PyTree, of_run: Array, ids: Array, rows: PyTree) -> PyTree:
    """States [E, ...] of group g's clients `ids` after the method's `prepare`."""

    def one(shared, entry):
        (held, server, of_run), (i, client) = shared, entry
        algorithm = fed.algorithm(g, held, 0)
        assert algorithm.prepare is not None
        there = i < fed.population
        i = jnp.minimum(i, fed.population - 1)
        data = fed.rows_of(held, i, jnp.where(there, held.size[i], 0))
        sent = algorithm.broadcast(server, i)
        ready = algorithm.prepare(sent, client, data, jax.random.fold_in(key(of_run, "prepare", 0), i))
        contracts.same(client, ready, "prepare must return the client's state as client_init made it")
        return (), ready

    if fed.on_host:
        rows = host_store.begun(fed, g, held, server, of_run, ids, rows, jnp.zeros(len(ids), bool))
    shared = held, server, of_run
    return client_loop.map_clients(one, shared, (ids, rows), plan=fed.plan_of(g), on=fed.mesh, lies=cohort_buffer.lies(shared))[1]


def many(fed: Federation, held: Held, state: State, n: Array, scored: bool):
    """`n` rounds; the records have leaves [dispatch, ...] (leaves [...] when scored: one round)."""

    def one(state: State):
        drawn = draw(fed, held, state.key, state.round)
        rows = [host_store.gather(store, places) for store, (_, places) in zip(state.clients, drawn, strict=True)]
        server, rows, record = train(fed, held, state, drawn, rows, scored)
        record["turned"] = _turned(server, state.server)
        clients = tuple(
            host_store.scatter(store, places, new) for store, (_, places), new in zip(state.clients, drawn, rows, strict=True)
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
    records = jax.tree.map(lambda s: jnp.zeros((fed.dispatch, *s.shape), s.dtype), like)
    return jax.lax.fori_loop(0, n, body, (state, records))


def on_host(fed: Federation, held: Held, state: State, initial: PyTree, drawn: Drawn, rows, touched, scored: bool):
    """One round on states that came from the host."""
    server, rows, record = train(fed, held, state, drawn, rows, scored, initial, touched)
    record["turned"] = _turned(server, state.server)
    return State(server, state.clients, state.round + 1, state.key), rows, record


def _turned(server: PyTree, before: PyTree) -> Array:
    """[] whether a number of the server's state, which is as `before` in all but its numbers, is not finite any more."""
    contracts.same(before, server, "server_update must return the server's state as server_init made it")
    return became_nonfinite(server, before)


def draw(fed: Federation, held: Held, of_run: Array, round: Array) -> Drawn:  # noqa: A002
    """The round's cohort."""
    of_cohort = key(of_run, "cohort", round)
    if fed.in_turn:
        ids = cohorts.cyclic(key(of_run, "cohort", 0), round, fed.population, fed.cohort)
    elif fed.rate is None:
        ids = cohorts.sample(of_cohort, fed.population, fed.cohort)
    else:
        ids = cohorts.poisson(of_cohort, fed.population, fed.rate, fed.cohort)
    drawn = []
    for g, group in enumerate(fed.groups):
        places = client_loop.slots(min(fed.cohort, len(group.clients)), fed.plan_of(g))
        if len(fed.groups) > 1:
            belongs = held.places[g][ids] < len(group.clients)
            chosen = cohorts.members(ids, belongs, fed.population, places)
        else:
            chosen = jnp.pad(ids, (0, places - len(ids)), constant_values=fed.population)
        examples = jnp.where(chosen < fed.population, held.size[jnp.minimum(chosen, fed.population - 1)], 0)
        if fed.dropout:
            examples = jnp.where(cohorts.stays(key(of_run, "dropout", round), chosen, fed.dropout), examples, 0)
        order = client_loop.arrange(examples, fed.plan_of(g), fed.by_size)
        cohort = Cohort(chosen[order], examples[order])
        drawn.append((cohort, held.places[g][cohort.ids]))
    return drawn


def train(fed: Federation, held: Held, state: State, drawn: Drawn, rows, scored: bool, initial: PyTree = (), touched=None):
    """One round on the cohort's client states `rows`: (server, new rows, record).

    With states on the host, those that were never `touched` start from the `initial` server's.
    """
    contributions, outputs = [], []
    for g, ((cohort, _), mine) in enumerate(zip(drawn, rows, strict=True)):
        shared = held, state.server, state.round, state.key, initial
        one = functools.partial(one_client, fed, g, scored)
        entries = cohort, mine, () if touched is None else touched[g]
        added, stacked = client_loop.map_clients(
            one, shared, entries, plan=fed.plan_of(g), on=fed.mesh, lies=cohort_buffer.lies(shared)
        )
        contributions.append((added[0], stacked[0]))
        outputs.append((added[1:], stacked[1:]))
    algorithm = fed.algorithm(0, held, state.round)
    collected = collect(algorithm.collect, contributions)
    everyone = Cohort(*(jnp.concatenate(leaves) for leaves in zip(*(cohort for cohort, _ in drawn), strict=True)))
    with sharded_aggregation.over(fed.mesh, client_loop.AXIS):
        result = algorithm.server_update(state.server, collected, everyone, key(state.key, "server", state.round))
    server, said = contracts.updated(result)
    sums = functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), [added[0] for added, _ in outputs])
    record = {
        "train": sums,
        "server": said,
        "cohort": jnp.sum(everyone.examples > 0),
        "ids": jnp.where(everyone.examples > 0, everyone.ids, -1),
        "seen": jax.tree.map(lambda *x: jnp.concatenate(x), *(stacked[1] for _, stacked in outputs)),
    }
    if scored:
        record["post_local"] = [stacked[2] for _, stacked in outputs]
    return server, [stacked[0] for _, stacked in outputs], record


def one_client(fed: Federation, g: int, scored: bool, shared, entry):
    """One client's round: ((lifted sums, metrics), (lifted stacks, state, faults, post-local scores))."""
    (held, server, round, of_run, initial), (client, state, touched) = shared, entry  # noqa: A001
    algorithm = fed.algorithm(g, held, round)
    there = client.examples > 0
    i = jnp.minimum(client.ids, fed.population - 1)
    if fed.on_host:
        state = host_store.begun_one(algorithm, initial, of_run, i, state, touched)
    sent = algorithm.broadcast(server, i)
    data = fed.rows_of(held, i, client.examples)
    out = algorithm.client_update(sent, state, data, jax.random.fold_in(key(of_run, "client", round), i))
    reduces, parts = _parts(algorithm.collect, out.uplink)
    lifted = [r.lift(part, client) for r, part in zip(reduces, parts, strict=True)]
    adds = [x for r, x in zip(reduces, lifted, strict=True) if r.join == "add"]
    stacks = [x for r, x in zip(reduces, lifted, strict=True) if r.join != "add"]

    def only_if_there(new, old):
        return jax.tree.map(lambda n, o: jnp.where(there, n, o), new, old)

    adds, said = only_if_there((adds, out.metrics), jax.tree.map(jnp.zeros_like, (adds, out.metrics)))
    stacked = stacks, only_if_there(out.state, state), divergence.of_client(out, parts, state, there)
    if scored:
        local = (sent, out.state) if out.local is None else out.local
        stacked += (evaluation_step.of_own_rows(fed, g, held, i, there, evaluation_step.predictors(algorithm, local, local)),)
    return (adds, said), stacked


def _parts(prefix: PyTree, uplink: PyTree) -> tuple[list[Reduce], list[PyTree]]:
    reduces, structure = jax.tree.flatten(prefix, is_leaf=_is_reduce)
    return reduces, structure.flatten_up_to(uplink)


def collect(prefix: PyTree, contributions: list) -> PyTree:
    """Joins the groups' contributions and lowers each part: what `server_update` sees."""
    reduces, structure = jax.tree.flatten(prefix, is_leaf=_is_reduce)
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


def _is_reduce(x: object) -> bool:
    return isinstance(x, Reduce)
