"""A method on the small federation, with compiled rounds that all checks of it share."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from fedjax_core.algorithm import Algorithm, PyTree
from fedjax_core.engine import client_loop, simulator
from fedjax_core.engine.sharding import mesh as meshes
from fedjax_core.task import Task
from fedjax_core.testing import toy_federation
from fedjax_core.training import local_training

COHORT = 5  # of eight clients


class Case:
    """One method, with its options.

    Attributes:
      method: (task, optimizer=...) -> Algorithm.
      task: makes the task; takes the width of the network's layer (6 or 7) and `statistics`.
      mixed: whether every second client has a wider network.
    """

    def __init__(self, method: Callable[..., Algorithm], *, task: Callable[..., Task] = toy_federation.task, mixed: bool = False):
        """`method` is a builder with its options given: `functools.partial(feddyn, alpha=0.1, epochs=2, batch=4)`."""
        self.method, self.task, self.mixed = method, task, mixed

    def simulate(
        self,
        *,
        plan: tuple[int, int] = (1, 1),
        optimizer: optax.GradientTransformation | None = None,
        mixed: bool | None = None,
        statistics: bool = True,
        **settings: Any,
    ) -> simulator.Simulation:
        """A simulation.

        Args:
          plan: clients at once on a device, and devices.
          optimizer: None: SGD with momentum.
          mixed: in place of the case's own.
          statistics: whether the network carries a running mean along.
          settings: of `Simulation`; five clients a round if they do not say.
        """
        build = functools.partial(self.method, optimizer=optimizer or local_training.sgd(0.1, momentum=0.5))
        made = groups(build, self.mixed if mixed is None else mixed, statistics, self.task)
        settings = {"cohort": COHORT, "dispatch": 2} | settings
        data = settings.pop("data", toy_federation.data())
        return simulator.Simulation(simulator.build_spec(made, data, plan=client_loop.Plan(*plan), **settings))

    @functools.cached_property
    def reference(self) -> tuple[simulator.Simulation, simulator.State, simulator.State]:
        """(simulation, host copy of the state before, and after two rounds): one client after another on one device."""
        sim = self.simulate()
        state = sim.init(0)
        before = jax.device_get(state)
        state, _ = sim.rounds(state, 2)
        return sim, before, jax.device_get(state)

    @functools.cached_property
    def elsewhere(self) -> tuple[simulator.Simulation, simulator.State, list[PyTree]]:
        """(simulation, state after two rounds, per group the host's (client states, which were touched)) under the other plan.

        Data are on the host and client states on the disk, two clients are trained at once on each of two devices (of one, if
        there are no more), and every client has more padding.
        """
        sim = self.simulate(plan=(2, min(2, jax.device_count())), hold="disk", data_on="host")
        sim = simulator.Simulation(pad(sim.spec))
        state, _ = sim.rounds(self._begun(sim), 2)
        assert sim.offloaded_states is not None
        return sim, state, [jax.tree.map(np.copy, (store.rows, store.touched)) for store in sim.offloaded_states.stores]

    def _begun(self, sim: simulator.Simulation) -> simulator.State:
        """The reference's state before round 1 in a simulation whose client states are off the device; of a method that prepares
        its clients, made anew."""
        if any(sim.spec.abstract_algorithm(g).prepare is not None for g in range(len(sim.spec.groups))):
            return sim.init(0)
        before = self.reference[1]
        states = sim.compiled.states
        states.replace_offloaded(states.make_untouched(sim.compiled.put(before.server)))
        return sim.compiled.put(before._replace(clients=tuple(() for _ in sim.spec.groups)))

    def forget(self) -> None:
        """Drops `elsewhere`, with its data and states off the device. `reference` stays: it is small where jax's caches are
        cleared, and compiles what it runs again."""
        self.__dict__.pop("elsewhere", None)

    def one_round(self) -> tuple[Callable, list, list[PyTree]]:
        """The compiled round of `elsewhere` as a function (drawn, client states) -> (server, states, record), and a cohort for it.
        All of them are on the host, where what is done with them need not be compiled.

        All starts from the state before round 1.
        """
        sim, state, _ = self.elsewhere
        before = self.reference[1]
        start = sim.compiled.put(before)._replace(clients=state.clients)
        compiled, resident = sim.compiled, sim.compiled.device_arrays
        drawn = jax.device_get(compiled.programs.draw_cohorts(resident, start.key, start.round))
        rows = [
            jax.tree.map(lambda x, p=p: np.take(x, p, axis=0, mode="clip"), s)
            for s, (_, p) in zip(before.clients, drawn, strict=True)
        ]
        spread = meshes.client_sharded(sim.spec.mesh)
        touched = jax.device_put([np.ones(len(p), bool) for _, p in drawn], spread)

        def run(drawn, rows):
            arrays = compiled.feed.for_cohort([cohort.ids for cohort, _ in drawn], ["index"])
            # Where the round expects them: else it would be compiled anew.
            drawn, rows = compiled.put(drawn), jax.device_put(rows, spread)
            run_round = compiled.programs.run_round_offloaded[False]
            after, rows, record = run_round(arrays, start, start.server, drawn, rows, touched)
            return jax.device_get((after.server, rows, record))

        return run, drawn, rows


def groups(
    build: simulator.Build, mixed: bool = False, statistics: bool = True, task: Callable[..., Task] = toy_federation.task
) -> list[simulator.Group]:
    """The small federation's clients: all with one network, or every second one with a wider one."""
    clients = np.arange(toy_federation.CLIENTS)
    if not mixed:
        return simulator.one_group(build, task(statistics=statistics), len(clients))
    return [
        simulator.Group("narrow", build, task(6, statistics), clients[::2]),
        simulator.Group("wide", build, task(7, statistics), clients[1::2]),
    ]


def pad(spec: simulator.SimulationSpec) -> simulator.SimulationSpec:
    """Returns the specification with three more examples for every client that do not count."""
    index = spec.host_arrays.index
    padded = dataclasses.replace(index, rows=np.pad(index.rows, (0, 3)), most=index.most + 3, filler=1)
    return dataclasses.replace(spec, host_arrays=spec.host_arrays._replace(index=padded))
