"""Rounds, dispatched: several in one program where all lies on the devices, else one after another; and what comes before them.

What these functions call a raw record is what a round's program gives, on the host (`record.py`).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core import distributed
from fedjax_core.algorithm import PyTree
from fedjax_core.engine import client_loop
from fedjax_core.engine.federation import State
from fedjax_core.engine.planned import Fitting, Planned

Done = tuple[State, list[PyTree]]  # the state after some rounds, and a raw record of each


@jax.jit
def _copied(tree: PyTree) -> PyTree:
    """By one program, not one for each shape."""
    return jax.tree.map(jnp.copy, tree)


def start(at: Planned, fitting: Fitting, seed: int) -> State:
    """The state before round 1: the server's, every client's, and `prepare` done if the method has it."""
    state = at.programs.init(at.arrays.held, at.put(jax.random.key_data(jax.random.key(seed))))
    if at.fed.on_host:
        at.states.keep(at.states.untouched(_copied(state.server)))
    for g in range(len(at.fed.groups)):
        if at.method(g).prepare is not None:
            state = fitting(lambda at, state=state, g=g: _prepared(at, state, g))
    return state


def _prepared(at: Planned, state: State, g: int) -> State:
    """With the states of group g's clients after `prepare`."""
    blocks = at.blocks(g, at.fed.groups[g].clients, at.fed.population, at.arrays.host.size)
    for ids, held in zip(blocks, at.arrays.supply.of_blocks(at.arrays.held, blocks, ["index"]), strict=True):
        places, rows, *_ = at.states.read(state, g, ids)
        rows = at.programs.prepare[g](held, state.server, state.key, at.put(ids), rows)
        state = at.states.write(state, g, places, rows)
    return state


def rounds(at: Planned, fitting: Fitting, state: State, most: int, scored: bool) -> Done:
    """The next rounds, at most so many as one dispatch has. The state is consumed.

    Args:
      at: the plan to begin with.
      fitting: does the first of them under a smaller one, if they turn out not to fit.
      state: before them.
      most: one, where `scored`.
      scored: whether the round scores clients right after their training.
    """
    if at.fed.on_host:
        return fitting(lambda at: _on_host(at, state, scored))
    streamed = bool(at.arrays.supply.streamed)
    if scored in at.fits:
        return _streamed(at, state, most, scored) if streamed else _many(at, state, most, scored)
    return fitting(lambda at: _first(at, state, 1 if streamed else most, scored))


def _program(at: Planned, scored: bool) -> Any:
    return at.programs.scored if scored else at.programs.many


def _each(record: PyTree, number: int, scored: bool) -> list[PyTree]:
    """Of the first `number` rounds of a dispatch."""
    return [record] if scored else [jax.tree.map(lambda x, i=i: x[i], record) for i in range(number)]


def _many(at: Planned, state: State, number: int, scored: bool) -> Done:
    """In one program."""
    state, record = _program(at, scored)(at.arrays.held, state, at.put(np.int32(number)))
    return state, _each(jax.device_get(record), number, scored)


def _first(at: Planned, state: State, number: int, scored: bool) -> Done:
    """As `_many` with a copy of the state, for a smaller chunk to take over if need be."""
    program, held = _program(at, scored), at.arrays.of_round(state.key, state.round, scored)
    arguments = held, state, at.put(np.int32(number))
    why = excess(at, program, arguments) if at.fed.plan.chunk > 1 else None
    if at.fed.plan.chunk > 1 and distributed.anywhere(why is not None):
        raise MemoryError(why or "nor on another process's devices")
    state, record = program(held, _copied(state), arguments[2])
    record = jax.device_get(record)
    at.fits.add(scored)
    return state, _each(record, number, scored)


def _streamed(at: Planned, state: State, number: int, scored: bool) -> Done:
    """Rounds that take their rows one by one, each begun while the one before it trains, so that the devices wait for nothing: at
    most two have begun."""
    key, done, one = jax.device_get(state.key), int(jax.device_get(state.round)), at.put(np.int32(1))
    records: list[PyTree] = []
    for i in range(number):
        state, record = _program(at, scored)(at.arrays.of_round(key, done + i, scored), state, one)
        records[-1:] = [jax.device_get(earlier) for earlier in records[-1:]]
        records.append(record)
    return state, [one for record in jax.device_get(records) for one in _each(record, 1, scored)]


def _on_host(at: Planned, state: State, scored: bool) -> Done:
    """One round on client states that are kept off the devices."""
    rest = at.arrays.held
    exchange, initial = at.states.exchange(lambda key, number: at.programs.draw(rest, at.put(key), at.put(np.int32(number))))
    key, number = np.asarray(jax.device_get(state.key)), int(jax.device_get(state.round))
    coming = exchange.take(key, number)
    touched = client_loop.place(coming.touched, at.fed.mesh, client_loop.spread(at.fed.mesh))
    held = at.arrays.of_round(state.key, state.round, scored)
    following = exchange.drawn(key, number + 1)  # before the round: a device does one program after another
    state, rows, record = at.programs.on_host[scored](held, state, initial, coming.drawn, coming.rows, touched)
    exchange.begin(key, number + 1, following)
    record = jax.device_get(record)
    exchange.give(coming, rows)
    return state, [record]


def excess(at: Planned, program: Any, arguments: tuple) -> str | None:
    """Why a program will not fit this process's devices; None if it will, or if they do not tell."""
    limit = client_loop.memory_limit(at.fed.mesh)
    return (
        client_loop.too_large(program.lower(*arguments).compile(), limit, at.arrays.supply.beside(arguments[0])) if limit else None
    )
