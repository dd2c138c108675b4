"""Centralised training: a loop over the union, whatever the partition."""

import functools

import chex
import jax
import numpy as np

from fedjax_core.engine import client_loop, simulator
from fedjax_core.training import local_training
from methods.centralized import centralized
from tests import naive, toy
from tests.methods.test_fedavg import MODEL, divided

UNION = np.unique(np.concatenate(toy.data().train_index))


class CentralizedTest(chex.TestCase):
    def test_equals_a_loop_over_the_union(self):
        _, _, after = toy.reference("centralized")
        w = tuple(MODEL.init(naive.stream(0, naive.INIT)))
        x, y = toy.data().train.x[UNION], toy.data().train.y[UNION]
        for r in range(2):
            w = naive.train(MODEL, *w, x, y, naive.client_key(0, r, 0), epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)[:2]
        chex.assert_trees_all_close(tuple(after.server.net), w, atol=5e-6)

    def test_only_the_number_of_epochs_in_all_counts(self):
        """For plain SGD on full batches, which have no order: 3 rounds of 1 epoch, or 1 round of 3."""
        ends = []
        for rounds, epochs in [(3, 1), (1, 3)]:
            build = functools.partial(centralized, optimizer=local_training.sgd(0.2), epochs=epochs, batch=len(UNION))
            groups = simulator.one_group(build, toy.task(statistics=False), toy.CLIENTS)
            sim = simulator.Simulator(simulator.build_spec(groups, toy.data(), plan=client_loop.Plan(1, 1), rounds_per_dispatch=3))
            state, _ = sim.run_rounds(sim.init(0), rounds)
            ends.append(jax.device_get(state.server.net))
        chex.assert_trees_all_close(*ends, atol=1e-6)

    def test_one_client_has_every_example_whatever_the_partition(self):
        """Whatever the cohort is."""
        build = functools.partial(centralized, optimizer=local_training.sgd(0.1), batch=toy.BATCH)
        shuffled = np.random.default_rng(0).permutation(UNION)
        for data in (toy.data(), divided(shuffled[:20], shuffled[20:23], shuffled[23:])):
            groups = simulator.one_group(build, toy.task(), data.clients)
            spec = simulator.build_spec(groups, data, cohort=3, plan=client_loop.Plan(1, 1))
            self.assertEqual((spec.population, spec.sampler.size), (1, 1))
            np.testing.assert_array_equal(spec.host_arrays.index[0], UNION)
            self.assertEqual((spec.shapes.down, spec.shapes.up), (0, 0), "nothing is sent")
