"""q-FedAvg against the paper's Algorithm 2 in loops, and its limits."""

import functools

import chex
import jax
import numpy as np
from absl.testing import parameterized

from fedjax_core.training import local_training, losses
from methods.fedavg import fedavg
from methods.qfedavg import qfedavg
from tests import naive, quadratics, toy
from tests.methods.test_fedavg import MODEL


def oracle(seed, rounds, q, *, rate=0.1, epochs=2, batch=toy.BATCH):
    """Algorithm 2: w and its statistics, which are averaged."""
    clients = naive.rows(toy.data())
    w, stats = MODEL.init(naive.stream(seed, naive.INIT))
    net = type(MODEL.init(jax.random.key(0)))
    for r in range(rounds):
        deltas, hs, drifts = [], [], []
        for k in naive.cohort(seed, r, len(clients), 5):
            x, y = clients[k]
            risk = float(naive.cross_entropy(MODEL.apply(net(w, stats), x)[0]["logits"], y))
            w_k = naive.train(
                MODEL, w, stats, x, y, naive.client_key(seed, r, k), epochs=epochs, batch=batch, lr=rate, momentum=0.5
            )
            change = jax.tree.map(lambda a, b: (a - b) / rate, naive.arrays(w), w_k.params)
            square = sum(float(np.sum(leaf**2)) for leaf in jax.tree.leaves(change))
            deltas.append(jax.tree.map(lambda c, f=risk: f**q * c, change))
            hs.append(q * risk ** (q - 1) * square + risk**q / rate)
            drifts.append(w_k.stats)
        w = naive.plus(w, functools.reduce(naive.plus, deltas), -1 / sum(hs))
        stats = naive.mean(drifts, [1] * len(drifts))
    return w, stats


def run(method, **settings):
    method = functools.partial(method, optimizer=local_training.sgd(0.05), epochs=3, batch=6, **settings)
    return quadratics.weights(getattr((server := quadratics.run(method, 1).server), "net", server)) - quadratics.first()


class QFedAvgTest(chex.TestCase):
    def test_equals_the_algorithm_box(self):
        _, _, after = toy.reference("qfedavg")
        chex.assert_trees_all_close(tuple(after.server), oracle(0, 2, 0.8), atol=1e-5)

    def test_q_zero_is_uniform_fedavg(self):
        np.testing.assert_allclose(run(qfedavg, q=0.0), run(fedavg, weights="uniform"), rtol=1e-5)

    def test_a_high_q_follows_the_worst_client_with_short_steps(self):
        w = quadratics.first()
        risks = [np.mean((x @ w - y) ** 2) for x, y in quadratics.rows()]
        worst = quadratics.rows()[int(np.argmax(risks))]
        own = w
        for _ in range(3):
            own = own - 0.05 * 2 * worst[0].T @ (worst[0] @ own - worst[1]) / len(worst[1])
        moved, towards = run(qfedavg, q=30.0).ravel(), (own - w).ravel()
        cosine = moved @ towards / (np.linalg.norm(moved) * np.linalg.norm(towards))
        self.assertGreater(cosine, 0.98)
        self.assertLess(np.linalg.norm(moved), 0.5 * np.linalg.norm(run(qfedavg, q=0.0)))

    def test_what_travels(self):
        shapes = toy.reference("qfedavg")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * (numbers + 1)))

    @parameterized.parameters(-1.0, float("nan"))
    def test_q_must_not_be_negative(self, q):
        with self.assertRaisesRegex(ValueError, f"^q={q} must be .*at least 0$"):
            qfedavg(toy.task(), optimizer=local_training.sgd(0.1), q=q)

    def test_powers_of_losses_that_are_all_zero_are_refused(self):
        """In float32 the tenth power of 1e-5 is 0: the network would stand still without a word."""

        def loss(outputs, y, mask):
            value = losses.target_loss(outputs, y, mask)
            return value + (1e-6 - 1) * jax.lax.stop_gradient(value)

        method = functools.partial(qfedavg, optimizer=local_training.sgd(0.05), epochs=1, batch=6)
        quadratics.run(functools.partial(method, q=2.0), 1, loss=loss)
        with self.assertRaisesRegex(FloatingPointError, "round 1: the server's new state is not finite.*q, if every loss"):
            quadratics.run(functools.partial(method, q=10.0), 1, loss=loss)

    def test_losses_in_another_unit_leave_the_direction(self):
        """All clients' values are multiplied, and no gradient is: the step is as steep, and longer."""

        def loss(outputs, y, mask, factor):
            value = losses.target_loss(outputs, y, mask)
            return value + (factor - 1) * jax.lax.stop_gradient(value)

        method = functools.partial(qfedavg, optimizer=local_training.sgd(0.05), epochs=3, batch=6, q=2.0)
        moved = [
            quadratics.weights(quadratics.run(method, 1, loss=functools.partial(loss, factor=factor)).server) - quadratics.first()
            for factor in (1.0, 5.0)
        ]
        once, louder = map(np.linalg.norm, moved)
        np.testing.assert_allclose(moved[1] / louder, moved[0] / once, rtol=1e-5)
        self.assertGreater(louder, 1.2 * once)
