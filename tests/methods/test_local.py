"""Local training: loops over clients, and nothing between them."""

import chex
import jax
import numpy as np

from tests import naive, toy

MODELS = toy.model(6), toy.model(7)


def oracle(seed, rounds, i):
    """Client i's network after the rounds in which it was sampled; even clients have the first architecture."""
    model = MODELS[i % 2]
    w = tuple(model.init(naive.stream(seed, naive.INIT)))
    for r in range(rounds):
        if i in naive.cohort(seed, r, toy.CLIENTS, 5):
            key, rows = naive.client_key(seed, r, i), naive.rows(toy.data())[i]
            w = naive.train(model, *w, *rows, key, epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)[:2]
    return w


def of(state, i):
    """Client i's network in a state with two architectures."""
    return tuple(jax.tree.map(lambda x: x[i // 2], state.clients[i % 2]))


class LocalTest(chex.TestCase):
    def test_equals_a_loop_over_clients(self):
        _, _, after = toy.reference("local")
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(of(after, i), oracle(0, 2, i), atol=2e-6)

    def test_no_client_notices_the_data_of_another(self):
        sim, before, after = toy.reference("local")
        sampled = set(naive.cohort(0, 0, 8, 5)) & set(naive.cohort(0, 1, 8, 5))
        stranger = min(sampled)
        x = np.array(sim.spec.host_arrays.train.x)
        x[toy.data().train_index[stranger]] *= 1.5
        held = sim.compiled.device_arrays._replace(train=sim.compiled.device_arrays.train._replace(x=sim.compiled.put(x)))
        changed, _ = sim.compiled.programs.run_resident_rounds(held, sim.compiled.put(before), sim.compiled.put(np.int32(2)))
        changed = jax.device_get(changed)
        for i in range(toy.CLIENTS):
            if i != stranger:
                chex.assert_trees_all_equal(of(changed, i), of(after, i))
        self.assertGreater(np.abs(of(changed, stranger)[0]["head"]["bias"] - of(after, stranger)[0]["head"]["bias"]).max(), 1e-3)

    def test_nothing_travels(self):
        shapes = toy.reference("local")[0].spec.shapes
        self.assertEqual((shapes.down, shapes.up), (0, 0))
