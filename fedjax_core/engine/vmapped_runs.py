"""Lanes: runs of one simulation that differ in their seeds, or in numbers of the method, whose rounds are one program.

    lanes = Lanes(simulation, 3, numbered=False)
    states = [lane.init(seed) for seed, lane in enumerate(lanes.each)]
    found = lanes.rounds([Wanted(lane, state, 10) for lane, state in zip(lanes.each, states)])

The program is that of a simulation alone under `vmap`, over a leading axis of the states. Each lane has its own keys and draws its
own cohort, so draws are those of the run alone, and numbers are so to rounding. Data and what is frozen are shared. Between rounds
each lane is an ordinary simulation with an ordinary state: it is scored, saved and looked at by itself.
"""

import dataclasses
import functools
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Traced

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.engine import aot, dispatch, rounds
from fedjax_core.engine.data_feed.device_arrays import DeviceArrays
from fedjax_core.engine.divergence import Diverged
from fedjax_core.engine.sharding.mesh import replicated
from fedjax_core.engine.simulation_spec import SimulationSpec, State
from fedjax_core.engine.simulator import Simulation

log = logging.getLogger("fedjax_core")


class Wanted(NamedTuple):
    """Rounds of one lane; see `Simulation.rounds`.

    Attributes:
      simulation: the lane.
      state: is consumed.
      n: how many.
      scored: whether the last of them scores clients right after local training.
    """

    simulation: Simulation
    state: State
    n: int
    scored: bool = False


Found = tuple[State, list[dict[str, float]]] | Exception  # of one lane: as `Simulation.rounds`, or what it raises


def reason(simulation: Simulation) -> str:
    """Why a simulation cannot have lanes; "" if it can."""
    if jax.process_count() > 1:
        return f"there are {jax.process_count()} processes"
    if simulation.spec.hold != "device":
        return f"plan.hold={simulation.spec.hold!r} keeps client states off the devices"
    if simulation.spec.placed.where != "device":
        return f"rows of data are on the {simulation.spec.placed.where}"
    if simulation.spec.plan.model > 1:
        return f"plan.model={simulation.spec.plan.model} divides each network over devices"
    return ""


def of_lanes(spec: SimulationSpec, held: DeviceArrays, lanes: PyTree, states: Sequence[State], n: Array, scored: bool):
    """`rounds.run_rounds` of several states, in each lane: (states, records with leaves [L, ...]).

    Args:
      spec: what all lanes have in common.
      held: likewise.
      lanes: [L] their numbers, or `()` where they have no numbers of their own.
      states: L of them.
      n: rounds of each.
      scored: one round, that scores its clients.
    """

    def one(lane: PyTree, state: State):
        return rounds.run_rounds(spec, held._replace(lane=lane), state, n, scored)

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    stacked, records = jax.vmap(one)(lanes, stacked)
    return tuple(jax.tree.map(lambda x, at=at: x[at], stacked) for at in range(len(states))), records


class Lanes:
    """Several lanes.

    Attributes:
      each: the lanes, as simulations with programs and data in common.
      at_once: how many of them a program has at most; fewer if so many turn out not to fit.
    """

    def __init__(self, simulation: Simulation, number: int, *, numbered: bool):
        """Compiles nothing, and puts nothing on a device.

        Args:
          simulation: with no `reason` against it.
          number: of lanes.
          numbered: whether they have numbers of their own: the method is then built with `Task.lane`.
        """
        self._of, self._numbered = simulation, numbered
        self.each = [simulation.as_replica(at if numbered else None) for at in range(number)]
        self.at_once = number
        self._place = {id(lane): at for at, lane in enumerate(self.each)}
        self._fits: set[tuple[int, bool]] = set()
        spec, everywhere = dataclasses.replace(simulation.spec, by_size=True), replicated(simulation.spec.mesh)
        self._programs = {
            scored: jax.jit(functools.partial(of_lanes, spec, scored=scored), out_shardings=everywhere, donate_argnums=2)
            for scored in (False, True)
        }

    def release(self) -> None:
        """Takes what all lanes read off the devices."""
        for one in (self._of, *self.each):
            one.release()

    def traced(self, scored: bool = False) -> Traced:
        """The round of all lanes, with nothing on a device; raises what the method does."""
        held, state = aot.between_rounds(self._of)
        whole = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=replicated(self._of.spec.mesh))
        numbers = whole(len(self.each)) if self._numbered else ()
        return self._programs[scored].trace(held, numbers, (state,) * len(self.each), whole())

    def rounds(self, wanted: Sequence[Wanted]) -> list[Found]:
        """Does what lanes want. One that wants fewer rounds than others is done with first; one that fails is done with there.

        Args:
          wanted: by different lanes.

        Returns:
          As many, in their order.

        Raises:
          Exception: the program of several lanes failed.
        """
        states, records = [one.state for one in wanted], [[] for _ in wanted]
        failed: dict[int, Exception] = {}
        while left := [i for i, one in enumerate(wanted) if i not in failed and len(records[i]) < one.n]:
            plain = [i for i in left if len(records[i]) < wanted[i].n - wanted[i].scored]
            some, scored = (plain, False) if plain else (left, True)
            count = 1 if scored else min(self._of.spec.dispatch, *(wanted[i].n - len(records[i]) - wanted[i].scored for i in plain))
            done = self._together([wanted[i]._replace(state=states[i], n=count, scored=scored) for i in some])
            for i, found in zip(some, done, strict=True):
                if isinstance(found, Exception):
                    failed[i] = found
                else:
                    states[i], records[i] = found[0], records[i] + found[1]
        return [failed[i] if i in failed else (states[i], records[i]) for i in range(len(wanted))]

    def _together(self, wanted: list[Wanted]) -> list[Found]:
        """The same number of rounds of several lanes."""
        found: dict[int, Found] = {}
        mine = [one for one in wanted if one.simulation.spec is self._of.spec]
        while len(mine) > 1:
            some = mine[: self.at_once]
            if len(some) == 1:
                break
            try:
                found |= self._at_once(some)
            except (jax.errors.JaxRuntimeError, MemoryError) as error:
                if not (isinstance(error, MemoryError) or dispatch.is_out_of_memory(error)):
                    raise
                if (self._places(len(some)), some[0].scored) in self._fits:
                    raise  # the program did fit, so the states were not copied
                self.at_once = -(-len(some) // 2)
                log.warning("%d lanes at once do not fit (%s); trying %d", len(some), str(error).splitlines()[0], self.at_once)
                continue
            mine = mine[len(some) :]
        for one in wanted:  # whose plan is another one by now, and the last that is left
            if id(one.simulation) not in found:
                try:
                    found[id(one.simulation)] = one.simulation.rounds(one.state, one.n, one.scored)
                except Exception as error:  # of this lane alone: the others go on
                    found[id(one.simulation)] = error
        return [found[id(one.simulation)] for one in wanted]

    def _at_once(self, some: list[Wanted]) -> dict[int, Found]:
        """As `_together`, in one program, whose empty places repeat the first lane."""
        size = self._places(len(some))
        spare = [jax.tree.map(jnp.copy, some[0].state) for _ in range(size - len(some))]
        numbers = self._numbers(
            [self._place[id(one.simulation)] for one in some] + [self._place[id(some[0].simulation)]] * len(spare)
        )
        n, scored = some[0].n, some[0].scored
        states, program = (*(one.state for one in some), *spare), self._programs[scored]
        if (size, scored) not in self._fits:
            arguments = self._of.compiled.device_arrays, numbers, states, self._of.compiled.put(np.int32(n))
            if (why := dispatch.out_of_memory_reason(self._of.compiled, program, arguments)) is not None:
                raise MemoryError(why)
            states = jax.tree.map(jnp.copy, states)  # they must survive a failure
        states, raw = program(self._of.compiled.device_arrays, numbers, states, self._of.compiled.put(np.int32(n)))
        raw, found = jax.device_get(raw), {}
        self._fits.add((size, scored))
        for at, one in enumerate(some):
            of_lane = jax.tree.map(lambda x, at=at: x[at], raw)
            each = [of_lane] if scored else [jax.tree.map(lambda x, i=i: x[i], of_lane) for i in range(n)]
            try:
                found[id(one.simulation)] = states[at], one.simulation.flatten_records(states[at], each)
            except Diverged as error:
                found[id(one.simulation)] = error
        return found

    def _places(self, number: int) -> int:
        """Places of the program of so many lanes: as many as there were, or a half, a quarter of them. Few programs are compiled,
        whenever lanes end."""
        size = self.at_once
        while size // 2 >= max(number, 2):
            size //= 2
        return size

    def _numbers(self, places: Sequence[int]) -> Any:
        return self._of.compiled.put(np.asarray(places, np.int32)) if self._numbered else ()
