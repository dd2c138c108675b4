"""A method on the toy federation, with compiled rounds that all checks share."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from fedjax_core.algorithm import Algorithm, PyTree
from fedjax_core.engine import client_loop, simulator
from fedjax_core.engine.sharding import mesh
from fedjax_core.task import Task
from fedjax_core.testing import toy_federation
from fedjax_core.training import local_training

COHORT = 5  # of eight clients


class Case:
    """A method with its options."""

    def __init__(self, method: Callable[..., Algorithm], *, task: Callable[..., Task] = toy_federation.task, mixed: bool = False):
        """Initializes the case.

        Args:
          method: builder with its options: `functools.partial(feddyn, alpha=0.1, epochs=2, batch=4)`.
          task: (width of the hidden layer, 6 or 7, statistics) -> Task.
          mixed: whether every second client has a wider network.
        """
        self.method, self.task, self.mixed = method, task, mixed

    def simulate(
        self,
        *,
        plan: tuple[int, int] = (1, 1),
        optimizer: local_training.Optimizer | optax.GradientTransformation | None = None,
        mixed: bool | None = None,
        statistics: bool = True,
        **settings: Any,
    ) -> simulator.Simulator:
        """Builds a simulation.

        Args:
          plan: (clients at once on a device, devices).
          optimizer: round -> optax transformation, or the same one in all rounds; None: SGD with momentum.
          mixed: overrides the case's.
          statistics: whether the network has a running mean.
          settings: of `build_spec`; by default five clients a round.
        """
        optimizer = optimizer or local_training.sgd(0.1, momentum=0.5)
        of_round = (lambda round_num: optimizer) if isinstance(optimizer, optax.GradientTransformation) else optimizer
        build = functools.partial(self.method, optimizer=of_round)
        client_groups = groups(build, self.mixed if mixed is None else mixed, statistics, self.task)
        settings = {"cohort": COHORT, "rounds_per_dispatch": 2} | settings
        data = settings.pop("data", toy_federation.data())
        return simulator.Simulator(simulator.build_spec(client_groups, data, plan=client_loop.Plan(*plan), **settings))

    @functools.cached_property
    def reference_run(self) -> tuple[simulator.Simulator, simulator.State, simulator.State]:
        """(simulation, state before, state after two rounds, on the host), one client at a time on one device."""
        sim = self.simulate()
        state = sim.init(0)
        before = jax.device_get(state)
        state, _ = sim.run_rounds(state, 2)
        return sim, before, jax.device_get(state)

    @functools.cached_property
    def offloaded_run(self) -> tuple[simulator.Simulator, simulator.State, list[PyTree]]:
        """(simulation, state after two rounds, (client states, touched) of each group) under another plan.

        Data are on the host and client states on the disk; two clients are trained at once on each
        of two devices (of one, if there are no more); and every client has more padding.
        """
        sim = self.simulate(plan=(2, min(2, jax.device_count())), hold="disk", data_on="host")
        sim = simulator.Simulator(add_padding(sim.spec))
        state, _ = sim.run_rounds(self._begun(sim), 2)
        assert sim.offloaded_states is not None
        return sim, state, [jax.tree.map(np.copy, (store.states, store.touched)) for store in sim.offloaded_states.stores]

    def _begun(self, sim: simulator.Simulator) -> simulator.State:
        """Returns the reference's initial state with client states off the device; prepared anew if the method does so."""
        if any(sim.spec.abstract_algorithm(g).prepare is not None for g in range(len(sim.spec.groups))):
            return sim.init(0)
        before = self.reference_run[1]
        states = sim.compiled.states
        states.replace_offloaded(states.make_untouched(sim.compiled.put(before.server)), before)
        return sim.compiled.put(before._replace(clients=tuple(() for _ in sim.spec.bound_groups)))

    def drop_offloaded_run(self) -> None:
        """Drops `offloaded_run`, with its data and states. `reference_run` stays, and compiles again after `jax.clear_caches`."""
        self.__dict__.pop("offloaded_run", None)

    def make_round_fn(self) -> tuple[Callable, list, list[PyTree]]:
        """Returns the first round of `offloaded_run`, with a cohort and its client states, all on the host.

        The round is a function (drawn, client states) -> (server, states, record).
        """
        sim, state, _ = self.offloaded_run
        before = self.reference_run[1]
        start = sim.compiled.put(before)._replace(clients=state.clients)
        drawn = jax.device_get(sim.compiled.programs.draw_cohorts(sim.compiled.device_arrays, start.key, start.round))
        rows = [
            jax.tree.map(lambda x, p=p: np.take(x, p, axis=0, mode="clip"), s)
            for s, (_, p) in zip(before.clients, drawn, strict=True)
        ]
        spread = mesh.client_sharded(sim.spec.mesh)
        touched = jax.device_put([np.ones(len(p), bool) for _, p in drawn], spread)

        def run(drawn, rows):
            arrays = sim.compiled.feed.for_cohort(sim.compiled.device_arrays, [cohort.ids for cohort, _ in drawn], ["index"])
            # Where the round expects them, or it would compile again.
            drawn, rows = sim.compiled.put(drawn), jax.device_put(rows, spread)
            run_round = sim.compiled.programs.run_offloaded_round[False]
            after, rows, record = run_round(arrays, start, drawn, rows, start.server, touched)
            return jax.device_get((after.server, rows, record))

        return run, drawn, rows


def groups(
    build: simulator.Build, mixed: bool = False, statistics: bool = True, task: Callable[..., Task] = toy_federation.task
) -> list[simulator.Group]:
    """Returns the groups of the toy federation: one network for all, or a wider one for every second client."""
    clients = np.arange(toy_federation.CLIENTS)
    if not mixed:
        return simulator.one_group(build, task(statistics=statistics), len(clients))
    return [
        simulator.Group("narrow", build, task(6, statistics), clients[::2]),
        simulator.Group("wide", build, task(7, statistics), clients[1::2]),
    ]


def add_padding(spec: simulator.SimulationSpec) -> simulator.SimulationSpec:
    """Returns the specification with three more examples for every client that do not count."""
    index = spec.host_arrays.index
    more = dataclasses.replace(index, rows=np.pad(index.rows, (0, 3)), most=index.most + 3, filler=1)
    return dataclasses.replace(spec, host_arrays=spec.host_arrays._replace(index=more))
