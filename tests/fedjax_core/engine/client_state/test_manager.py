"""Client states on the host: those that are touched, and no others."""

import dataclasses
import functools

import chex
import jax
import numpy as np

from fedjax_core.data import federated_data, sources
from fedjax_core.engine import client_loop, simulator
from fedjax_core.engine.simulator import Simulator, build_spec
from methods.scaffold import scaffold
from tests import naive, toy
from tests.fedjax_core.engine.client_state import snapshot
from tests.fedjax_core.engine.tallied import SGD, N, simulate, tally


class HostTest(chex.TestCase):
    def test_a_huge_population_costs_what_it_touches(self):
        population, cohort = 20_000, 6
        whole = toy.data()
        dataset = sources.Dataset("toy", whole.train, whole.test, whole.class_names)
        lists = [np.array([i % 30, i % 7 + 32], np.int32) for i in range(population)]
        data = federated_data.from_index(dataset, lists, [np.zeros(0, np.int32)] * population)
        build = functools.partial(scaffold, optimizer=SGD, batch=toy.BATCH)
        task = dataclasses.replace(toy.task(200), population=population)
        sim = Simulator(
            build_spec(simulator.one_group(build, task, population), data, cohort=cohort, plan=client_loop.Plan(1, 1), hold="host")
        )
        state = sim.init(0)
        expected = set()
        for _ in range(3):
            ((drawn, _),) = sim.compiled.programs.draw_cohorts(sim.compiled.device_arrays, state.key, state.round)
            expected |= set(np.asarray(drawn.ids).tolist())
            state, _ = sim.run_rounds(state, 1)
        (store,) = sim.offloaded_states.stores
        self.assertEqual(set(np.flatnonzero(store.touched).tolist()), expected)
        self.assertBetween(len(expected), 2 * cohort, 3 * cohort)
        self.assertLess(sim.offloaded_states.changed_bytes(), 3 * cohort * 10_000)
        self.assertEqual(sim.offloaded_states.touched_counts(), [len(expected)])
        # the server's control is the mean over the whole population, of which all others' are zero
        mean = jax.tree.map(lambda x: x[store.touched].sum(0) / population, store.states)
        chex.assert_trees_all_close(jax.device_get(state.server.c), mean, atol=1e-8)

    def test_absent_clients_stay_untouched(self):
        sim = simulate(tally, hold="host", dropout=0.5)
        sim.run_rounds(sim.init(3), 1)
        there = naive.cohort(3, 0, N, 5, 0.5)
        self.assertBetween(len(there), 1, 4)
        np.testing.assert_array_equal(np.flatnonzero(sim.offloaded_states.stores[0].touched), sorted(there))

    def test_a_state_that_the_stores_are_not_of_is_refused(self):
        """Another seed's init, or an older state, would train and score with client states that are not its own."""
        sim = simulate(tally, hold="host")
        first = sim.init(0)
        newest, _ = sim.run_rounds(first, 1)
        saved = snapshot.take(sim, newest)
        for use in (
            lambda state: sim.run_rounds(state, 1),
            sim.evaluate,
            lambda state: sim.client_view(state, 0),
            sim.to_host,
        ):
            with self.assertRaisesRegex(ValueError, "newest state alone, after round 1; the given state is one after round 0"):
                use(first)
        sim.evaluate(newest)
        sim.init(1)
        with self.assertRaisesRegex(ValueError, r"is one of another seed \(after round 1\)"):
            sim.run_rounds(newest, 1)
        with self.assertRaisesRegex(ValueError, "hold='host': `to_host` has no client states; give read_parts"):
            sim.from_host(saved[0])
        sim.run_rounds(snapshot.restore(sim, saved), 1)
