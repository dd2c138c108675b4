"""Ditto in loops, and its limits."""

import chex
import jax
import numpy as np
from absl.testing import parameterized

from fedjax_core.training import local_training
from methods.ditto import ditto
from tests import naive, toy
from tests.methods.test_fedamp import pulled
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedavg import oracle as fedavg_after
from tests.methods.test_fedper import STEPS, ended, made, one, simulate
from tests.methods.test_local import of


def oracle(rounds, lam, epochs):
    """All clients' personal networks; the server's is FedAvg's, whatever they are."""
    clients = naive.rows(toy.data())
    v = [tuple(MODEL.init(naive.stream(0, naive.INIT)))] * len(clients)
    for r in range(rounds):
        w, _ = fedavg_after(0, r, weights="samples", lr=0.1, momentum=0.5)
        for i in naive.cohort(0, r, len(clients), 5):
            key = naive.client_key(0, r, i)
            v[i] = naive.train(MODEL, *v[i], *clients[i], key, epochs=epochs, whole=pulled, given=(lam, w), **STEPS)[:2]
    return v


class DittoTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("ditto")
        for i, v in enumerate(oracle(2, 0.7, 1)):
            chex.assert_trees_all_close(tuple(one(state.clients[0], i)), v, atol=5e-6)

    def test_the_servers_model_is_fedavgs(self):
        chex.assert_trees_all_close(toy.reference("ditto")[2].server.net, toy.reference("fedavg")[2].server.net, atol=1e-7)

    def test_without_pull_the_personal_models_are_locals(self):
        clients = ended(made(ditto, epochs=2, lam=0.0)).clients[0]
        for i in range(0, toy.CLIENTS, 2):
            chex.assert_trees_all_close(tuple(one(clients, i)), of(toy.reference("local")[2], i), atol=1e-7)

    def test_a_strong_pull_makes_them_the_servers(self):
        """With lr lambda = 1 a step by the pull alone ends at w."""
        lam, (w, v) = 1e4, (MODEL.init(jax.random.key(k)) for k in (1, 2))
        algorithm = made(ditto, lam=lam, optimizer=local_training.sgd(1 / lam), epochs=1)(toy.task())
        chex.assert_trees_all_close(toy.update_client(algorithm, w, v).state.params, w.params, atol=2e-3)

    def test_both_models_are_scored(self):
        sim, _, state = toy.reference("ditto")
        x, predict = toy.data().test.x, sim.spec.algorithm(0, sim.spec.host_arrays, 2).predict
        for name, net in (("global", state.server.net), ("personal", one(state.clients[0], 3))):
            logits = predict[name](state.server.net, one(state.clients[0], 3), x)["logits"]
            np.testing.assert_allclose(logits, jax.device_get(MODEL.apply(net, x)[0]["logits"]), atol=1e-6)

    def test_what_travels(self):
        shapes = toy.reference("ditto")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(lam=-1.0), "^lam=-1.0 must be at least 0$"), (dict(personal_epochs=-1), "^personal_epochs=-1 must be at least 0")
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(ditto, **arguments))
