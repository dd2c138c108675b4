"""APFL in loops over steps, and its limits."""

import chex
import jax
import numpy as np
import optax
from absl.testing import parameterized

from fedjax_core.training import local_training
from methods.apfl import Client, apfl
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import ended, made, one, simulate
from tests.methods.test_local import of


def trained(w, v, alpha, x, y, key, *, eta, lr=0.1, momentum=0.5, epochs=2):
    """(w_i, v_i with the mixture's statistics, alpha_i) after one client's round."""
    gradient = naive.gradient(MODEL, naive.nothing)
    (w, w_stats), (v, v_stats) = (naive.arrays(tuple(net)) for net in (w, v))
    velocities = [jax.tree.map(np.zeros_like, w)] * 2
    for epoch in range(epochs):
        places = naive.order(key, epoch, len(y))
        for start in range(0, len(places), toy.BATCH):
            now = np.array(places[start : start + toy.BATCH])
            v_bar = jax.tree.map(lambda v, w, a=alpha: a * v + (1 - a) * w, v, w)
            g_w, (w_stats, *_) = naive.arrays(gradient(w, w_stats, x[now], y[now], ()))
            g_bar, (v_stats, *_) = naive.arrays(gradient(v_bar, v_stats, x[now], y[now], ()))
            slope = sum(np.sum(g * (a - b)) for g, a, b in zip(*map(jax.tree.leaves, (g_bar, v, w)), strict=True))
            g_v = jax.tree.map(lambda g, a=alpha: a * g, g_bar)
            velocities = [naive.plus(g, u, momentum) for g, u in zip((g_w, g_v), velocities, strict=True)]
            w, v = naive.plus(w, velocities[0], -lr), naive.plus(v, velocities[1], -lr)
            if epoch == start == 0:
                alpha = min(1.0, max(0.0, float(alpha - eta * slope)))
    return (w, w_stats), (v, v_stats), alpha


def oracle(rounds, alpha, eta):
    """The server's network, all clients' own ones, and their alphas."""
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(0, naive.INIT)))
    v, alphas = [w] * len(clients), [alpha] * len(clients)
    for r in range(rounds):
        ends, share = [], []
        for i in naive.cohort(0, r, len(clients), 5):
            end, v[i], alphas[i] = trained(w, v[i], alphas[i], *clients[i], naive.client_key(0, r, i), eta=eta)
            ends.append(end)
            share.append(len(clients[i][1]))
        w = naive.mean(ends, share)
    return w, v, alphas


class APFLTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("apfl")
        w, v, alphas = oracle(2, 0.4, 0.3)
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=5e-6)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(tuple(one(state.clients[0].v, i)), v[i], atol=5e-6)
        np.testing.assert_allclose(state.clients[0].alpha, alphas, atol=5e-6)
        self.assertGreater(np.abs(np.subtract(alphas, 0.4)).max(), 1e-3)
        mean = np.mean([alphas[i] for i in naive.cohort(0, 1, toy.CLIENTS, 5)])
        self.assertAlmostEqual(toy.records("apfl")[1]["train/alpha"], mean, places=5)

    def test_the_servers_model_is_fedavgs(self):
        chex.assert_trees_all_close(toy.reference("apfl")[2].server.net, toy.reference("fedavg")[2].server.net, atol=1e-7)

    def test_with_alpha_one_it_is_local(self):
        clients = ended(made(apfl, epochs=2, alpha=1.0)).clients[0]
        for i in range(0, toy.CLIENTS, 2):
            chex.assert_trees_all_close(tuple(one(clients.v, i)), of(toy.reference("local")[2], i), atol=1e-7)

    def test_with_alpha_zero_it_predicts_with_the_servers_parameters(self):
        w, v = (MODEL.init(jax.random.key(k)) for k in (1, 2))
        algorithm = made(apfl, alpha=0.0)(toy.task())
        out = toy.update_client(algorithm, w, Client(v, np.float32(0)))
        chex.assert_trees_all_equal(out.state.v.params, jax.device_get(v.params))
        logits = algorithm.predict["personal"](w, Client(w, np.float32(0)), toy.data().test.x)["logits"]
        np.testing.assert_allclose(logits, MODEL.apply(w, toy.data().test.x)[0]["logits"], atol=1e-6)

    def test_models_that_are_equal_leave_alpha(self):
        w = MODEL.init(jax.random.key(1))
        out = toy.update_client(made(apfl, alpha_lr=10.0)(toy.task()), w, Client(w, np.float32(0.4)))
        self.assertAlmostEqual(float(out.state.alpha), 0.4, places=6)

    def test_alpha_stays_a_fraction(self):
        w, v = (MODEL.init(jax.random.key(k)) for k in (1, 2))
        ends = [
            float(toy.update_client(made(apfl, alpha_lr=1e4)(toy.task()), *pair).state.alpha)
            for pair in ((w, Client(v, np.float32(0.4))), (v, Client(w, np.float32(0.4))))
        ]
        self.assertEqual(sorted(ends), [0.0, 1.0])

    def test_mixed_outputs(self):
        """The mean of two networks' logits, which is the network of mean weights only if both have one body."""
        w, v = (MODEL.init(jax.random.key(k)) for k in (1, 2))
        x, client = toy.data().test.x, Client(v, np.float32(0.3))
        outputs, weights = (
            made(apfl, mix=mix)(toy.task()).predict["personal"](w, client, x)["logits"] for mix in ("outputs", "weights")
        )
        logits = [MODEL.apply(net, x)[0]["logits"] for net in (w, v)]
        np.testing.assert_allclose(outputs, 0.7 * logits[0] + 0.3 * logits[1], atol=1e-6)
        self.assertGreater(np.abs(outputs - weights).max(), 1e-2)

    def test_sharpness_aware_steps_are_refused(self):
        """One step up for two models and alpha together is none of either."""
        sharp = lambda round_num: optax.chain(local_training.sharpness_aware(0.1), optax.sgd(0.1))
        with self.assertRaisesRegex(
            ValueError, "^optimizer.sharpness must be None with APFL, whose steps train two models and alpha"
        ):
            made(apfl, optimizer=sharp)(toy.task())

    def test_what_travels(self):
        shapes = toy.reference("apfl")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(alpha=1.5), r"^alpha=1.5 must be in \[0, 1\]$"),
        (dict(alpha_lr=-1.0), "^alpha_lr=-1.0 must be at least 0$"),
        (dict(mix="logits"), "^mix='logits' must be one of 'weights', 'outputs'$"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(apfl, **arguments))
