"""FedHe in loops over clients, batches and classes, and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.engine import client_loop, simulator
from fedjax_core.training import local_training
from methods.fedhe import fedhe
from tests import naive, toy
from tests.methods.test_fedtgp import uplink_numbers
from tests.methods.test_local import MODELS, of

K = toy.CLASSES


def distillation(logits, y, given):
    """alpha times the mean squared distance to the mean logits of the true class, over the rows whose class is known."""
    alpha, taught, known = given
    rows = known[y].astype(logits.dtype)
    squares = jnp.sum((logits - taught[y]) ** 2, 1) / K
    return alpha * jnp.sum(rows * squares) / jnp.maximum(jnp.sum(rows), 1)


def oracle(seed, rounds, models, *, alpha, cohort=5, dropout=0.0):
    """Networks of all clients, the server's logits, its known classes, and per round the classes that somebody sent."""
    clients = naive.rows(toy.data())
    w = [tuple(model.init(naive.stream(seed, naive.INIT))) for model in models]
    taught, known, sent_in = np.zeros((K, K), np.float32), np.zeros(K, bool), []
    for r in range(rounds):
        received = {c: [] for c in range(K)}
        for i in naive.cohort(seed, r, len(clients), cohort, dropout):
            key, given = naive.client_key(seed, r, i), (jnp.float32(alpha), taught, known)
            settings = dict(epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)
            trained = naive.train(models[i], *w[i], *clients[i], key, term=distillation, given=given, **settings)
            w[i] = trained.params, trained.stats
            for c in range(K):
                produced = [logits for label, logits in trained.seen if label == c]
                if produced:
                    received[c].append(sum(produced) / len(produced))
        taught, known = taught.copy(), known.copy()
        for c, uploads in received.items():
            if uploads:
                taught[c] = sum(uploads) / len(uploads)
                known[c] = True
        sent_in.append({c for c in range(K) if received[c]})
    return w, taught, known, sent_in


def simulate(alpha, **settings):
    build = functools.partial(fedhe, optimizer=local_training.sgd(0.1, momentum=0.5), alpha=alpha, epochs=2, batch=toy.BATCH)
    return simulator.Simulator(
        simulator.build_spec(
            toy.groups(build, mixed=True), toy.data(), plan=client_loop.Plan(1, 1), rounds_per_dispatch=4, cohort=5, **settings
        )
    )


def client(algorithm, server, net):
    """Client 0's round."""
    return toy.update_client(algorithm, server, net)


class FedHeTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("fedhe")
        w, taught, known, _ = oracle(0, 2, [MODELS[0]] * toy.CLIENTS, alpha=0.5)
        chex.assert_trees_all_close(after.server.logits, taught, atol=5e-6)
        np.testing.assert_array_equal(after.server.known, known)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(tuple(jax.tree.map(lambda x, i=i: x[i], after.clients[0])), w[i], atol=5e-6)

    def test_equals_the_loops_with_two_architectures(self):
        _, _, after = toy.reference("fedhe_mixed")
        w, taught, known, _ = oracle(0, 2, [MODELS[i % 2] for i in range(toy.CLIENTS)], alpha=0.5)
        chex.assert_trees_all_close(after.server.logits, taught, atol=5e-6)
        np.testing.assert_array_equal(after.server.known, known)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(of(after, i), w[i], atol=5e-6)

    def test_classes_without_sender_keep_their_logits(self):
        """So few come back that in one round only some classes are known, and in another a known class is not sent."""
        seed, settings = 2, dict(alpha=2.0, dropout=0.75)
        w, taught, known, sent_in = oracle(seed, 4, [MODELS[i % 2] for i in range(toy.CLIENTS)], **settings)
        so_far = [set().union(*sent_in[:r]) for r in range(5)]
        self.assertTrue(any(sent and set() < so_far[r] < set(range(K)) for r, sent in enumerate(sent_in)))
        self.assertTrue(any(sent and so_far[r] - sent for r, sent in enumerate(sent_in)))
        sim = simulate(2.0, dropout=0.75)
        state, _ = sim.run_rounds(sim.init(seed), 4)
        state = jax.device_get(state)
        np.testing.assert_array_equal(state.server.known, known)
        chex.assert_trees_all_close(state.server.logits, taught, atol=1e-5)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(of(state, i), w[i], atol=1e-5)

    def test_alpha_zero_is_local(self):
        sim = simulate(0.0)
        state, _ = sim.run_rounds(sim.init(0), 2)
        chex.assert_trees_all_close(jax.device_get(state.clients), toy.reference("local")[2].clients, atol=1e-7)

    def test_alone_it_is_not_local(self):
        """A client's own logits of the round before still teach it."""
        net = MODELS[0].init(jax.random.key(0))
        algorithm = fedhe(toy.task(), optimizer=local_training.sgd(0.1), batch=toy.BATCH)
        server = algorithm.server_init(jax.random.key(0))
        first = client(algorithm, server, net)
        lifted = algorithm.collect.map(first.uplink, Cohort(0, 9))
        server, _ = algorithm.server_update(server, algorithm.collect.finalize(lifted), None, None)
        taught, alone = client(algorithm, server, first.state), client(algorithm, algorithm.server_init(None), first.state)
        self.assertGreater(np.abs(taught.state.params["head"]["bias"] - alone.state.params["head"]["bias"]).max(), 1e-4)

    def test_logits_on_target_are_not_moved(self):
        """Logits equal to the server's have no distillation gradient, and a step along it lessens the distance of others."""
        taught, y = jnp.asarray([[1.0, -2.0, 0.5], [0.3, 0.1, 0.0], [2.0, 2.0, -1.0]]), jnp.asarray([0, 2, 1])
        given = (1.0, taught, jnp.ones(K, bool))
        chex.assert_trees_all_equal(jax.grad(distillation)(taught[y], y, given), jnp.zeros((3, K)))
        off = taught[y] + 1.0
        chex.assert_trees_all_close(jax.grad(distillation)(off, y, given), jnp.full((3, K), 2 / (3 * K)), atol=1e-6)

    def test_what_travels(self):
        shapes = toy.reference("fedhe_mixed")[0].spec.shapes
        self.assertEqual(shapes.up, 4 * K * (K + 1))
        self.assertEqual(shapes.down, 4 * K * K + K)
        self.assertEqual([uplink_numbers(fedhe, k, 6) for k in (10, 100)], [110, 10_100])  # FedHPL, Table 9

    @parameterized.parameters(-0.1, float("nan"))
    def test_alpha_must_not_be_negative(self, alpha):
        with self.assertRaisesRegex(ValueError, f"^alpha={alpha} must be .*at least 0$"):
            fedhe(toy.task(), optimizer=local_training.sgd(0.1), alpha=alpha)
