"""The round, as pure functions that the simulator compiles, and the metrics that are made of what it returns."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_core.algorithm import Algorithm, Array, Cohort, PyTree, Reduce, is_reduce
from fedjax_core.engine import asynchronous, client_facts, client_loop, client_sampling, contracts, divergence, evaluation_step
from fedjax_core.engine.client_state import stores
from fedjax_core.engine.data_feed import cohort_buffer
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.participation import count_sampled, draw_returns
from fedjax_core.engine.sharding.mesh import AXIS
from fedjax_core.engine.simulation_spec import SimulationSpec, State
from fedjax_core.engine.streams import stream_key
from fedjax_core.finite_checks import became_nonfinite
from fedjax_core.training.metrics import finalize_metrics
from fedjax_core.uplink import sharded_aggregation

Drawn = list[tuple[Cohort, Array]]  # per group: the cohort in the plan's order, and its slots in the group's store


class Added(NamedTuple):
    """Sums over a group's clients, from the client loop.

    Attributes:
      contributions: to the parts of the uplink that are sums.
      metrics: dict of (sum, weight) pairs.
    """

    contributions: list[PyTree]
    metrics: PyTree


class Stacked(NamedTuple):
    """Outputs of one client in the client loop, and of all with leaves [C, ...] after it.

    Attributes:
      contributions: to the other parts of the uplink.
      state: of the client, after the round.
      checks: `divergence.ClientChecks`.
      post_local: scores right after local training; `()` unless the round is scored.
      loss: of local training, a mean; `()` unless the sampler learns.
    """

    contributions: list[PyTree]
    state: PyTree
    checks: divergence.ClientChecks
    post_local: PyTree = ()
    loss: PyTree = ()


def init_state(spec: SimulationSpec, arrays: DeviceArrays, key_data: Array) -> State:
    """Returns the state before round 1, without `prepare`."""
    server = spec.algorithm(0, arrays, 0).server_init(stream_key(key_data, "init", 0))
    clients = tuple(
        () if spec.is_offloaded else stores.init_client_states(spec, g, arrays, server, key_data) for g in range(len(spec.groups))
    )
    state = State(server, clients, jnp.zeros((), jnp.int32), key_data, asynchronous.init_ring(spec, server))
    return state._replace(sampler=spec.sampler.init(client_facts.make_client_facts(spec, arrays, state.round, state)))


def prepare_clients(
    spec: SimulationSpec, g: int, arrays: DeviceArrays, server: PyTree, key_data: Array, ids: Array, states: PyTree
) -> PyTree:
    """Returns the states [E, ...] of group g's clients `ids` after the method's `prepare`."""

    def prepare_client(shared, entry):
        (arrays, server, key_data), (i, client) = shared, entry
        algorithm = spec.algorithm(g, arrays, 0)
        assert algorithm.prepare is not None
        is_active = i < spec.population
        i = jnp.minimum(i, spec.population - 1)
        data = spec.client_data(arrays, i, jnp.where(is_active, arrays.size[i], 0))
        sent = algorithm.broadcast(server, i)
        draw = jax.random.fold_in(stream_key(key_data, "prepare", 0), i)
        prepared = algorithm.prepare(sent, client, data, draw)
        what = "prepare must return the client's state as client_init made it"
        contracts.assert_same_structure(client, prepared, what)
        return (), prepared

    if spec.is_offloaded:
        untouched = jnp.zeros(len(ids), bool)
        states = stores.init_untouched(spec, g, arrays, server, key_data, ids, states, untouched)
    shared = arrays, server, key_data
    in_specs = cohort_buffer.shared_input_specs(shared)
    entries, plan = (ids, states), spec.plan_of(g)
    return client_loop.map_clients(prepare_client, shared, entries, plan=plan, mesh=spec.mesh, in_specs=in_specs)[1]


def run_resident_rounds(spec: SimulationSpec, arrays: DeviceArrays, state: State, num_rounds: Array, scored: bool):
    """Runs rounds whose client states are on the devices.

    Returns:
      (state, records): leaves [dispatch, ...]; of a `scored` round, which is one, leaves [...].
    """

    def run_next(state: State):
        drawn = draw_cohorts(spec, arrays, state.key, state.round, state)
        groups = list(zip(state.clients, drawn, strict=True))
        clients = [stores.gather(store, slots) for store, (_, slots) in groups]
        state, clients, record = run_round(spec, arrays, state, drawn, clients, scored=scored)
        changed = tuple(stores.scatter(store, slots, new) for (store, (_, slots)), new in zip(groups, clients, strict=True))
        return state._replace(clients=changed), record

    if scored:
        return run_next(state)
    run_next = jax.jit(run_next, inline=True)  # one trace for its shapes and its use

    def body(i, carry):
        state, records = carry
        state, record = run_next(state)
        return state, jax.tree.map(lambda all_, new: all_.at[i].set(new), records, record)

    shapes = jax.eval_shape(run_next, state)[1]
    records = jax.tree.map(lambda s: jnp.zeros((spec.rounds_per_dispatch, *s.shape), s.dtype), shapes)
    return jax.lax.fori_loop(0, num_rounds, body, (state, records))


def draw_cohorts(
    spec: SimulationSpec, arrays: DeviceArrays, key_data: Array, round_num: Array, state: State | None = None
) -> Drawn:
    """Returns the round's cohort, split by group. Adaptive samplers read the state before it."""
    population, drawn = spec.population, []
    ids = _draw_ids(spec, arrays, key_data, round_num, state)
    returns = None if arrays.participation is None else draw_returns(spec, arrays, key_data, round_num, ids)
    for g, group in enumerate(spec.groups):
        slots = spec.group_slots(g)
        if len(spec.groups) > 1:
            is_member = arrays.slots[g][ids] < len(group.clients)
            is_member = jnp.where(ids < 0, g == 0, is_member)  # an invalid id is in group 0
            chosen = client_sampling.select_members(ids, is_member, population, slots)
        else:
            chosen = jnp.pad(ids, (0, slots - len(ids)), constant_values=population)
        examples = jnp.where(chosen < population, arrays.size[jnp.minimum(chosen, population - 1)], 0)
        if returns is not None:  # who drops out does not come back
            examples = jnp.where(returns(chosen), examples, 0)
        elif spec.dropout:
            stays = client_sampling.draw_stays(stream_key(key_data, "dropout", round_num), chosen, spec.dropout)
            examples = jnp.where(stays, examples, 0)
        examples = jnp.where(chosen < 0, 1, examples)  # so that the record has an invalid id, which `_check_drawn` refuses
        order = client_loop.arrange(examples, spec.plan_of(g), spec.by_size)
        cohort = Cohort(chosen[order], examples[order])
        drawn.append((cohort, arrays.slots[g][cohort.ids]))
    return drawn


def _draw_ids(spec: SimulationSpec, arrays: DeviceArrays, key_data: Array, round_num: Array, state: State | None) -> Array:
    """Returns the ids of the round's cohort: its sampler's, or those that a schedule has drawn."""
    if spec.asynchrony is not None:
        return asynchronous.read_ids(arrays, round_num)
    facts = client_facts.make_client_facts(spec, arrays, round_num, state)
    ids = spec.sampler.draw(stream_key(key_data, "cohort"), round_num, facts, () if state is None else state.sampler)
    if ids.ndim != 1 or len(ids) > spec.sampler.slots or not jnp.issubdtype(ids.dtype, jnp.integer):
        what = f"it returned {ids.dtype}{list(ids.shape)}"
        raise TypeError(f"cohort.sampling: draw must return int32 ids of at most {spec.sampler.slots} clients, {what}")
    return jnp.where(ids > spec.population, -1, ids)  # refused, as negative ones are


def run_round(
    spec: SimulationSpec,
    arrays: DeviceArrays,
    state: State,
    drawn: Drawn,
    clients: list[PyTree],
    initial: PyTree = (),
    touched: list[Array] | None = None,
    *,
    scored: bool,
):
    """Runs one round: trains the cohort, aggregates its uplinks and updates the server.

    Args:
      state: before the round; its client states are not used.
      initial: of offloaded states, the server before round 1, from which untouched clients begin.
      touched: of offloaded states, per group, [C] whether they were ever written.

    Returns:
      (state with the old client states, the cohort's client states per group, record).
    """
    added: list[Added] = []
    stacked: list[Stacked] = []
    for g, ((cohort, _), states) in enumerate(zip(drawn, clients, strict=True)):
        shared = arrays, state.server, state.round, state.key, initial, state.ring
        arrivals = asynchronous.read_arrivals(spec, arrays, state.round, cohort.ids)
        of_group = client_loop.map_clients(
            functools.partial(run_client, spec, g, scored),
            shared,
            (cohort, states, () if touched is None else touched[g], arrivals),
            plan=spec.plan_of(g),
            mesh=spec.mesh,
            in_specs=cohort_buffer.shared_input_specs(shared),
        )
        added.append(of_group[0])
        stacked.append(of_group[1])
    algorithm = spec.algorithm(0, arrays, state.round)
    contributions = [(a.contributions, s.contributions) for a, s in zip(added, stacked, strict=True)]
    collected = collect(algorithm.collect, contributions)
    everyone = Cohort(*(jnp.concatenate(leaves) for leaves in zip(*(cohort for cohort, _ in drawn), strict=True)))
    with sharded_aggregation.shard_coordinates(spec.mesh, AXIS):
        server_key = stream_key(state.key, "server", state.round)
        result = algorithm.server_update(state.server, collected, everyone, server_key)
    server, server_metrics = contracts.check_server_output(result)
    what = "server_update must return the server's state as server_init made it"
    contracts.assert_same_structure(state.server, server, what)
    record = {"server": server_metrics, "server_diverged": became_nonfinite(server, state.server)}
    record |= _record_clients(spec, arrays, everyone, added, stacked, scored)
    ring = asynchronous.push_broadcast(spec, arrays, state, server)
    new_state = state._replace(server=server, round=state.round + 1, ring=ring)
    if spec.sampler.has_update:
        losses = jnp.concatenate([of_group.loss for of_group in stacked])
        new_state = new_state._replace(sampler=client_facts.update_sampler(spec, arrays, state, everyone, losses))
    return new_state, [of_group.state for of_group in stacked], record


def _record_clients(
    spec: SimulationSpec, arrays: DeviceArrays, everyone: Cohort, added: list[Added], stacked: list[Stacked], scored: bool
) -> dict[str, PyTree]:
    """Returns what a round's record says of its cohort, `everyone`."""
    record = {
        "train": _add_groups([of_group.metrics for of_group in added]),
        "cohort": jnp.sum(everyone.examples > 0),
        # -1: absent; an invalid id of a sampler becomes less than that, so that `_check_drawn` finds it
        "ids": jnp.where(everyone.examples > 0, jnp.where(everyone.ids < 0, everyone.ids - 1, everyone.ids), -1),
        "checks": jax.tree.map(lambda *x: jnp.concatenate(x), *(of_group.checks for of_group in stacked)),
    }
    if arrays.participation is not None:
        record["sampled"] = count_sampled(spec, arrays, everyone.ids)
    if scored:
        record["post_local"] = [of_group.post_local for of_group in stacked]
    return record


def run_client(spec: SimulationSpec, g: int, scored: bool, shared, entry) -> tuple[Added, Stacked]:
    """Runs one client's part of a round: broadcast, local training, its contributions to what the server collects.

    Args:
      shared: (arrays, server, round, key data, initial client state, ring), read by all clients.
      entry: this client's (`Cohort` entry, state, whether it has a stored state, arrival or `()`).
    """
    (arrays, server, round_num, key_data, initial, ring), (client, state, touched, arrival) = shared, entry
    if spec.asynchrony is not None:
        round_num = round_num - arrival.staleness
    algorithm = spec.algorithm(g, arrays, round_num)
    is_active = client.examples > 0
    i = jnp.minimum(client.ids, spec.population - 1)
    if spec.asynchrony is not None:
        server = asynchronous.rewind_server(spec, algorithm, arrays, server, ring, arrival, i)
    if spec.is_offloaded:
        state = stores.init_if_untouched(algorithm, initial, key_data, i, state, touched)
    sent = algorithm.broadcast(server, i)
    data = spec.client_data(arrays, i, client.examples, in_round=True)
    client_key = jax.random.fold_in(stream_key(key_data, "client", round_num), i)
    out = algorithm.client_update(sent, state, data, client_key)
    reduces, structure = jax.tree.flatten(algorithm.collect, is_leaf=is_reduce)
    parts = structure.flatten_up_to(out.uplink)
    mapped = [(r.combine == "add", r.map(part, client)) for r, part in zip(reduces, parts, strict=True)]
    adds, stacks = ([x for is_added, x in mapped if is_added == wanted] for wanted in (True, False))

    added = Added(adds, out.metrics)
    added = optax.tree.where(is_active, added, optax.tree.zeros_like(added))
    new_state = optax.tree.where(is_active, out.state, state)
    stacked = Stacked(stacks, new_state, divergence.check_client(out, parts, state, is_active))
    if scored:
        local = out.after_training(sent)
        models = evaluation_step.bind_predictors(algorithm, local, local)
        stacked = stacked._replace(post_local=evaluation_step.score_own_test(spec, g, arrays, i, is_active, models))
    if spec.sampler.has_update:
        total, weight = out.metrics["loss"]
        stacked = stacked._replace(loss=total / weight)
    return added, stacked


def _add_groups(trees: list[PyTree]) -> PyTree:
    """Returns the sum of a tree per group."""
    return functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), trees)


def collect(prefix: PyTree, contributions: list[tuple[list[PyTree], list[PyTree]]]) -> PyTree:
    """Joins the groups' contributions and finishes each part: what `server_update` gets.

    Args:
      prefix: `Algorithm.collect`.
      contributions: per group, those to the parts that are sums, and those to the others, leaves [C, ...].
    """
    reduces, structure = jax.tree.flatten(prefix, is_leaf=is_reduce)
    adds = iter(_add_groups([added for added, _ in contributions]))
    stacks = iter(zip(*(stacked for _, stacked in contributions), strict=True))
    collected = []
    for r in reduces:
        if r.combine == "add":
            collected.append(r.finalize(next(adds)))
        else:
            collected.append(r.finalize(jax.tree.map(lambda *x: jnp.concatenate(x), *next(stacks))))
    return structure.unflatten(collected)


def collect_nothing(algorithm: Algorithm, uplink: PyTree, slots: int) -> PyTree:
    """Returns what `server_update` gets where no client comes back: zeros, as each part's Reduce leaves them.

    Args:
      uplink: one client's, as shapes.
      slots: of the cohort.
    """

    def collect_part(reduce: Reduce, part: PyTree) -> PyTree:
        leading = () if reduce.combine == "add" else (slots,)
        mapped = jax.eval_shape(reduce.map, part, Cohort(jnp.int32(0), jnp.int32(0)))
        return reduce.finalize(jax.tree.map(lambda leaf: jnp.zeros((*leading, *leaf.shape), leaf.dtype), mapped))

    return jax.tree.map(collect_part, algorithm.collect, uplink, is_leaf=is_reduce)


def _check_drawn(ids: np.ndarray, round_num: int) -> None:
    """Raises ValueError where a sampler has drawn what is no cohort; `ids` as a round's record has them."""
    drawn, times = np.unique(ids[ids != -1], return_counts=True)
    if (drawn < -1).any():
        what = f"client {drawn[0] + 1}; ids are 0 to N - 1, and N marks an empty slot"
        raise ValueError(f"cohort.sampling: draw returned {what} (round {round_num})")
    if (times > 1).any():
        i = int(times.argmax())
        what = f"client {drawn[i]} {times[i]} times; a cohort has each client at most once"
        raise ValueError(f"cohort.sampling: draw returned {what} (round {round_num})")


def flatten_record(spec: SimulationSpec, record: PyTree, round_num: int) -> dict[str, float]:
    """Returns a round's metrics by name; what has no weight, as where no client came, is left out.

    Args:
      record: what the round's program returned, on the host.

    Raises:
      Diverged: something was not finite, says what, and of which clients; or everybody was left out.
      ValueError: the sampler drew a client twice, or a negative id.
    """
    ids, y = np.asarray(record["ids"]), spec.data.train.y
    _check_drawn(ids, round_num)
    divergence.raise_if_diverged(ids, record["checks"], bool(record["server_diverged"]), round_num, y)
    if "left_out" in record["server"] and spec.asynchrony is None:  # else few updates, all left out, may just change nothing
        left_out = int(record["server"]["left_out"][0])
        divergence.raise_if_all_left_out(left_out, int(record["cohort"]), round_num, y)
    metrics: dict[str, float] = {"round": round_num, "cohort": int(record["cohort"])}
    if "sampled" in record:
        metrics["sampled"] = int(record["sampled"])
    for part in ("train", "server"):
        for name, pair in record[part].items():
            if weight := float(pair[1]):
                metrics[f"{part}/{name}"] = float(pair[0]) / weight
    if "loss" in record["train"]:
        metrics["train/examples"] = float(record["train"]["loss"][1])
    return metrics | _flatten_post_local(spec, record.get("post_local", ()), ids, round_num)


def _flatten_post_local(spec: SimulationSpec, groups: Sequence[PyTree], ids: np.ndarray, round_num: int) -> dict[str, float]:
    """Returns statistics over the clients of their scores right after training, which `groups` have in the order of `ids`."""
    metrics: dict[str, float] = {}
    by_model: dict[str, list] = {}
    begin = 0
    for g, group in enumerate(groups):
        group_ids = ids[begin : begin + len(jax.tree.leaves(group)[0])] if group else ids[:0]
        where = "its own test examples right after training"
        divergence.raise_if_scores_diverged(group, group_ids, where, round_num, spec.data.train.y)
        begin += len(group_ids)
        for name, score in group.items():
            by_model.setdefault(name, []).append(finalize_metrics(spec.targets, score, spec.groups[g].task.scores))
    for name, of_groups in by_model.items():
        scores = jax.tree.map(lambda *x: np.concatenate(x), *of_groups)
        metrics |= evaluation_step.client_statistics(f"test/{name}/post_local", scores)
    return metrics
