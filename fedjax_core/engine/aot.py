"""A simulation's programs lowered for its devices, without data on them: to be compiled where nothing will run."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.stages import Lowered, Traced

from fedjax_core.algorithm import PyTree
from fedjax_core.engine import client_loop, evaluation
from fedjax_core.engine.data_feed.streaming import Streamed
from fedjax_core.engine.federation import Held, State
from fedjax_core.engine.simulator import Simulation

START, ROUND, EVALUATION = PARTS = ("start", "round", "evaluation")
SCORED_ROUND = f"{EVALUATION}: scored round"


def programs(simulation: Simulation, parts: tuple[str, ...] = PARTS) -> dict[str, Callable[[], Traced]]:
    """What a run dispatches, by name ("round", "evaluation: server" ...), each traced when it is asked for.

    Args:
      simulation: on any devices, such as a topology's (`experiment.build(devices=...)`); nothing is put on them.
      parts: which of `PARTS`.
    """
    sim, at = simulation, simulation.planned
    made, lies, whole, spread = at.programs, at.lies, client_loop.replicated(sim.mesh), client_loop.spread(sim.mesh)
    put = lambda tree, sharding=whole: _abstract(tree, sharding)
    number, key = put(np.int32(0)), put(jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))))
    (held, state), on_host = between_rounds(sim), sim.hold != "device"
    initial = state.server if on_host else ()
    found: dict[str, Callable[[], Traced]] = {}

    def states(g: int, number: int) -> tuple[PyTree, Any]:
        """States of so many clients of group g, and whether they were touched."""
        rows = jax.tree.map(lambda s: jax.ShapeDtypeStruct((number, *s.shape), s.dtype), sim.shapes.groups[g].client)
        return put(rows, lies.blocks[g]), put(np.zeros(number, bool))

    if START in parts:
        found[START] = lambda: made.init.trace(held, key)
        for g, group in enumerate(sim.groups):
            if at.method(g).prepare is not None:
                each = at.blocks(g, group.clients, sim.population, sim.host.size)
                places = put(each[0])
                found[_named(f"{START}: prepare", sim, g)] = lambda g=g, each=each, places=places: made.prepare[g].trace(
                    _reads(sim, held, ("index",), each), state.server, key, places, states(g, len(each[0]))[0]
                )
    if ROUND in parts:
        drawn, of_round = put(jax.eval_shape(made.draw, held, key, number)), _reads(sim, held, ("index",))
        if on_host:
            cohort = [states(g, len(of_group.ids)) for g, (of_group, _) in enumerate(drawn)]
            rows, touched = put([rows for rows, _ in cohort], lies.rows), put([touched for _, touched in cohort], spread)
            found[ROUND] = lambda: made.on_host[False].trace(of_round, state, initial, drawn, rows, touched)
        else:
            found[ROUND] = lambda: made.many.trace(of_round, state, number)
    if EVALUATION in parts:
        bounds = number, number
        if "global" in sim.evaluation.scopes and "global" in at.method(0).predict:
            kinds = {"": ("test", "test", None)}
            if sim.validated:
                kinds[", validation rows"] = "validation", "train", sim.host.validation_rows
            for which, (kind, part, of_part) in kinds.items():
                given, begin, program = (state.server, number), made.begin_server[kind], made.of_server[kind]
                supply = sim.supply
                if isinstance(supply, Streamed) and part in supply.streamed:
                    batches = supply.batches(part, of_part, evaluation.batch_of(at, kind), sim.plan.parts)
                    slab = put(_rows(supply.like(part), batches.at_once * batches.devices * batches.batch))
                    first = put(np.zeros(batches.at_once * batches.devices, np.int32))
                    given, begin, program = (*given, slab, first, number), made.begin_batches, made.of_batches

                def trace(given=given, begin=begin, program=program) -> Traced:
                    sums = put(jax.eval_shape(begin, held, *given), spread)
                    return program.trace(held, *given, sums, bounds)

                found[f"{EVALUATION}: server{which}"] = trace
        if {"own", "all"} & set(sim.evaluation.scopes):
            for g in range(len(sim.groups)):
                each = evaluation.client_blocks(at, g)
                if not each:
                    continue
                tables = tuple(evaluation.tables(at, g))
                found[_named(f"{EVALUATION}: clients", sim, g)] = lambda g=g, each=each, tables=tables: made.of_clients[g].trace(
                    _reads(sim, held, tables, each), state, initial, put(each[0]), *states(g, len(each[0])), bounds
                )
        if "unseen" in sim.evaluation.scopes:
            for g in range(len(sim.groups)):
                each = evaluation.unseen_blocks(at, g)
                if not each:
                    continue
                found[_named(f"{EVALUATION}: unseen clients", sim, g)] = lambda g=g, each=each: made.of_unseen[g].trace(
                    _reads(sim, held, evaluation.UNSEEN_TABLES, each), state.server, number, key, put(each[0]), bounds
                )
        if "post_local" in sim.evaluation.scopes and not on_host:
            both = _reads(sim, held, ("index", "test_index"))
            found[SCORED_ROUND] = lambda: made.scored.trace(both, state, number)
    return found


def between_rounds(simulation: Simulation) -> tuple[Held, State]:
    """What lies on the devices all the time, as shapes with their shardings."""
    at = simulation.planned
    key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    held = _abstract(at.arrays.rest, at.lies.held)
    return held, _abstract(jax.eval_shape(at.programs.init, held, key), at.lies.state)


def lowered(traced: Traced) -> Lowered:
    """The program as its devices' compiler takes it."""
    return traced.lower()


def _named(what: str, sim: Simulation, g: int) -> str:
    return what if len(sim.groups) == 1 else f"{what} with network {sim.groups[g].name}"


def _abstract(tree: PyTree, shardings: Any) -> PyTree:
    """Shapes of a tree; `shardings` is a prefix of it."""
    shape = lambda x, sharding: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=sharding)
    return jax.tree.map(lambda sharding, part: jax.tree.map(lambda x: shape(x, sharding), part), shardings, tree)


def _rows(like: PyTree, number: int) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape[1:]), leaf.dtype), like)


def _reads(sim: Simulation, held: Held, tables: tuple[str, ...], blocks: Sequence[np.ndarray] | None = None) -> Held:
    """What a round reads, or a program about these blocks of clients: with slabs, where data are streamed."""
    if not isinstance(sim.supply, Streamed):
        return held
    return held._replace(**sim.supply.shapes(tables, blocks))
