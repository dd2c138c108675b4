"""Several seeds of one simulation, whose rounds are one program.

    vmapped = VmappedSeeds(simulator, 3)
    states = [replica.init(seed) for seed, replica in enumerate(vmapped.replicas)]
    results = vmapped.advance_seeds(list(zip(vmapped.replicas, states)), 10)

The program is the round of one simulator under `vmap`, over a leading axis of the states. Each seed
has its own keys and draws its own cohorts, so draws are those of the run alone, and numbers agree to
rounding. Data and frozen arrays are shared. Between rounds each replica is an ordinary simulator with
an ordinary state: it is evaluated and saved by itself.
"""

import dataclasses
import functools
import logging
from collections.abc import Sequence

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
from fedjax_core.engine.simulator import Simulator

log = logging.getLogger("fedjax_core")

Result = tuple[State, list[dict[str, float]]] | Exception  # of one seed: as `Simulator.run_rounds`, or its error
Seed = tuple[Simulator, State]  # a replica and its state, which is consumed


def find_vmap_obstacle(simulator: Simulator) -> str:
    """Returns why the seeds of a simulator cannot share a program; "" if they can."""
    spec = simulator.spec
    if jax.process_count() > 1:
        return f"there are {jax.process_count()} processes"
    if spec.hold != "device":
        return f"plan.hold={spec.hold!r} keeps client states off the devices"
    if spec.placement.where != "device":
        return f"the data are on the {spec.placement.where}"
    if spec.example_privacy is not None:
        return "privacy.level='example' has noise for each seed's cohorts"
    if spec.plan.model > 1:
        return f"plan.model={spec.plan.model} shards each network over devices"
    return ""


def run_vmapped_rounds(spec: SimulationSpec, arrays: DeviceArrays, states: Sequence[State], n: Array, scored: bool):
    """Runs `rounds.run_resident_rounds` of several states; records have leaves [seeds, ...]."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    def run_seed(state: State, arrivals: PyTree):  # a seed has an order of arrivals of its own
        return rounds.run_resident_rounds(spec, arrays._replace(arrivals=arrivals), state, n, scored)

    stacked, records = jax.vmap(run_seed)(stacked, arrays.arrivals)
    return tuple(_take(stacked, index) for index in range(len(states))), records


class VmappedSeeds:
    """Replicas of a simulator, one for each seed, whose rounds are one program.

    Attributes:
      at_once: how many seeds the program has at most; fewer if so many do not fit.
    """

    def __init__(self, simulator: Simulator, number: int):
        """Compiles nothing, and puts nothing on a device.

        Args:
          simulator: without a `find_vmap_obstacle` against it.
        """
        self._simulator = simulator
        self.replicas = [simulator.as_replica() for _ in range(number)]
        self.at_once = number
        self._fits: set[tuple[int, bool]] = set()
        spec = dataclasses.replace(simulator.spec, by_size=True)
        self._programs = {
            scored: jax.jit(
                functools.partial(run_vmapped_rounds, spec, scored=scored),
                out_shardings=replicated(simulator.spec.mesh),
                donate_argnums=1,
            )
            for scored in (False, True)
        }

    def release(self) -> None:
        """Takes the shared arrays off the devices."""
        for simulator in (self._simulator, *self.replicas):
            simulator.release()

    def trace(self, scored: bool = False) -> Traced:
        """Traces the round of all seeds, with nothing on a device."""
        arrays, state = aot.resident_shapes(self._simulator.compiled)
        seed_records = lambda s: jax.ShapeDtypeStruct((len(self.replicas), *s.shape), s.dtype, sharding=s.sharding)
        arrays = arrays._replace(arrivals=jax.tree.map(seed_records, arrays.arrivals))
        n = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(self._simulator.spec.mesh))
        return self._programs[scored].trace(arrays, (state,) * len(self.replicas), n)

    def advance_seeds(self, seeds: Sequence[Seed], n: int, scored: bool = False) -> list[Result]:
        """Does n rounds of each seed. One that fails ends there; the others go on.

        Args:
          scored: whether the last round scores clients right after local training.
        """
        results: list[Result] = [(state, []) for _, state in seeds]
        for dispatched, is_scored in _dispatches(n, scored, self._simulator.spec.rounds_per_dispatch):
            going = [(i, *result) for i, result in enumerate(results) if not isinstance(result, Exception)]
            together = [(seeds[i][0], state) for i, state, _ in going]
            for (i, _, records), result in zip(going, self._dispatch(together, dispatched, is_scored), strict=True):
                results[i] = result if isinstance(result, Exception) else (result[0], records + result[1])
        return results

    def _dispatch(self, seeds: list[Seed], n: int, scored: bool) -> list[Result]:
        """Does the rounds of one dispatch, in programs of at most `at_once` seeds.

        A seed whose plan has changed, or that is left over, goes alone.
        """
        results: dict[int, Result] = {}
        shared = self._simulator.spec
        waiting = [i for i, (replica, _) in enumerate(seeds) if replica.spec is shared]
        while len(waiting) > 1 and self.at_once > 1:
            batch = waiting[: self.at_once]
            try:
                results |= zip(batch, self._run_batch([seeds[i] for i in batch], n, scored), strict=True)
            except (jax.errors.JaxRuntimeError, MemoryError) as error:
                if not dispatch.is_out_of_memory(error):
                    raise
                if (self._size(len(batch)), scored) in self._fits:
                    raise  # the program has fitted before, so the states were donated
                self.at_once = -(-len(batch) // 2)
                log.warning(
                    "%d seeds at once do not fit (%s); trying %d",
                    len(batch),
                    str(error).splitlines()[0],
                    self.at_once,
                )
                continue
            waiting = waiting[len(batch) :]
        for i, (replica, state) in enumerate(seeds):
            if i not in results:
                try:
                    results[i] = replica.run_rounds(state, n, scored)
                except Exception as error:  # of this seed alone
                    results[i] = error
        return [results[i] for i in range(len(seeds))]

    def _run_batch(self, seeds: list[Seed], n: int, scored: bool) -> list[Result]:
        """Runs several seeds in one program, whose spare slots repeat the first seed."""
        size = self._size(len(seeds))
        spare = [jax.tree.map(jnp.copy, seeds[0][1]) for _ in range(size - len(seeds))]
        states, program = (*(state for _, state in seeds), *spare), self._programs[scored]
        compiled = self._simulator.compiled
        arrays, number = compiled.device_arrays, compiled.put(np.int32(n))
        windows = [dispatch.add_arrivals(compiled.spec, arrays, state.key, state.round).arrivals for state in states]
        arrays = arrays._replace(arrivals=jax.tree.map(lambda *leaves: jnp.stack(leaves), *windows))
        if (size, scored) not in self._fits:
            if (why := dispatch.out_of_memory_reason(compiled, program, (arrays, states, number))) is not None:
                raise MemoryError(why)
            states = jax.tree.map(jnp.copy, states)  # the originals must survive a failure
        states, raw = program(arrays, states, number)
        raw = jax.device_get(raw)
        self._fits.add((size, scored))
        results: list[Result] = []
        for index, (replica, _) in enumerate(seeds):
            seed_record = _take(raw, index)
            by_round = dispatch.split_record(seed_record, n, scored)
            try:
                results.append((states[index], replica.flatten_records(states[index], by_round)))
            except Diverged as error:
                results.append(error)
        return results

    def _size(self, number: int) -> int:
        """Returns the slots of a program of so many seeds: `at_once`, or a half, a quarter ... of it.

        So few programs are compiled, whenever seeds end.
        """
        size = self.at_once
        while size // 2 >= max(number, 2):
            size //= 2
        return size


def _dispatches(n: int, scored: bool, most: int) -> list[tuple[int, bool]]:
    """Returns (number of rounds, whether it is the scored one) of each dispatch of n rounds."""
    plain = n - scored
    numbers = [min(most, plain - begin) for begin in range(0, plain, most)]
    return [(number, False) for number in numbers] + [(1, True)] * scored


def _take(tree: PyTree, index: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], tree)
