"""FedDyn against the paper's Algorithm 1 in loops, and its limits."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from configs import feddyn as config
from configs import fedprox
from configs import fedspeed as fedspeed_config
from fedjax_core import experiment
from fedjax_core.engine import client_loop, simulator
from fedjax_core.experiment import config_warnings
from fedjax_core.training import local_training
from methods.feddyn import Server, feddyn
from tests import naive, quadratics, toy
from tests.methods.test_fedavg import MODEL, divided
from tests.methods.test_fedprox import rows_of
from tests.methods.test_scaffold import one

ALPHA = 0.8  # of tests/toy.py


def bend(params, outputs, x, y, given):
    """-<lambda, theta> + alpha / 2 |theta - w|^2."""
    alpha, sent, dual = given
    pairs = zip(*map(jax.tree.leaves, (params, sent, dual)), strict=True)
    return sum(jnp.sum(alpha / 2 * (t - w) ** 2 - l * t) for t, w, l in pairs)


def oracle(seed, rounds, alpha, *, epochs=2, batch=toy.BATCH, cohort=5):
    """Algorithm 1: theta, statistics, h, and the clients' gradients."""
    clients, whole = naive.rows(toy.data()), naive.with_term(MODEL, bend)
    theta, stats = MODEL.init(naive.stream(seed, naive.INIT))
    h = jax.tree.map(np.zeros_like, theta)
    g = [h for _ in clients]
    for r in range(rounds):
        members = naive.cohort(seed, r, len(clients), cohort)
        models, moved_stats = [], []
        for k in members:
            settings = dict(epochs=epochs, batch=batch, lr=0.1, momentum=0.5, whole=whole, given=(alpha, theta, g[k]))
            theta_k = naive.train(None, theta, stats, *clients[k], naive.client_key(seed, r, k), **settings)
            g[k] = naive.plus(g[k], naive.minus(theta_k.params, theta), -alpha)
            models.append(theta_k.params)
            moved_stats.append(theta_k.stats)
        total = functools.reduce(naive.plus, [naive.minus(model, theta) for model in models])
        h = naive.plus(h, total, -alpha / len(clients))
        theta = naive.plus(naive.mean(models, [1] * len(models)), h, -1 / alpha)
        stats = naive.mean(moved_stats, [1] * len(models))
    return theta, stats, h, g


class FedDynTest(chex.TestCase):
    def test_equals_the_algorithm_box(self):
        _, _, after = toy.reference("feddyn")
        theta, stats, h, g = oracle(0, 2, ALPHA)
        chex.assert_trees_all_close(tuple(after.server.net), (theta, stats), atol=1e-5)
        chex.assert_trees_all_close(after.server.h, h, atol=1e-5)
        for k in range(toy.CLIENTS):
            chex.assert_trees_all_close(one(after.clients[0], k), g[k], atol=1e-5)
        norms = [np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(part))) for part in (h, theta)]
        self.assertAlmostEqual(toy.records("feddyn")[1]["server/correction"], norms[0] / ALPHA / norms[1], places=5)

    def test_h_is_the_mean_of_all_clients_states(self):
        _, _, after = toy.reference("feddyn")
        chex.assert_trees_all_close(after.server.h, jax.tree.map(lambda x: np.mean(x, 0), after.clients[0]), atol=1e-6)
        self.assertGreater(max(np.abs(leaf).max() for leaf in jax.tree.leaves(after.server.h)), 1e-2)

    @parameterized.parameters(None, 3)
    def test_converges_to_the_optimum_of_the_mean(self, cohort):
        """Where local training solves its problem, with all clients or half of them a round; FedAvg does not."""
        method = functools.partial(feddyn, optimizer=local_training.sgd(0.1), alpha=1.0, epochs=40, batch=6)
        state = quadratics.run(method, 150, cohort=cohort)
        np.testing.assert_allclose(quadratics.weights(state.server.net), quadratics.optimum(), atol=2e-3)

    def test_the_mean_of_the_models_is_scored(self):
        """The score "active_mean" is of w + h / alpha."""
        algorithm = feddyn(toy.task(), optimizer=local_training.sgd(0.1), alpha=0.5, score="active_mean")
        net = MODEL.init(jax.random.key(0))
        sent = Server(net, jax.tree.map(lambda x: 0.1 + x, net.params))
        mean = net._replace(params=jax.tree.map(lambda w, h: w + h / 0.5, net.params, sent.h))
        x = toy.data().test.x
        np.testing.assert_allclose(algorithm.predict["global"](sent, (), x)["logits"], MODEL.apply(mean, x)[0]["logits"], atol=1e-6)

    def test_after_training_a_client_has_the_model_that_it_trained(self):
        """Whatever is scored in place of the server's model."""
        algorithm = feddyn(toy.task(), optimizer=local_training.sgd(0.1), alpha=0.5, score="active_mean")
        net, data = MODEL.init(jax.random.key(0)), toy.data()
        sent = algorithm.server_init(jax.random.key(0))._replace(net=net, h=jax.tree.map(jnp.ones_like, net.params))
        output = jax.jit(algorithm.client_update)(sent, jax.tree.map(jnp.zeros_like, net.params), rows_of(0), jax.random.key(1))
        trained = jax.tree.map(jnp.add, net, output.uplink)
        scored = algorithm.predict["global"](*output.local, data.test.x)["logits"]
        np.testing.assert_allclose(scored, MODEL.apply(trained, data.test.x)[0]["logits"], atol=1e-5)

    def test_with_constant_gradients_it_is_a_momentum(self):
        """h/alpha^+ = (1 - alpha kappa) h/alpha + kappa g, so that a small alpha remembers more than one round."""
        alpha, rate, steps = 0.5, 0.1, 3
        kappa = (1 - (1 - rate * alpha) ** steps) / alpha
        method = functools.partial(feddyn, optimizer=local_training.sgd(rate), alpha=alpha, epochs=steps, batch=6)
        run = functools.partial(quadratics.run, method, loss=quadratics.linear)
        mean, expected = np.mean(quadratics.constant_gradients(), 0), 0.0
        for _ in range(4):
            expected = (1 - alpha * kappa) * expected + kappa * mean
        np.testing.assert_allclose(run(4).server.h["head"]["kernel"] / alpha, expected, rtol=1e-5)

    @parameterized.parameters(
        (3.0, {}, ""),
        (0.01, {}, "remember all rounds and the server steps by"),
        (30.0, {}, "overshoot"),
        (3.0, {"momentum": 0.9}, "overshoot"),
        (3.0, {"decay": 0.99}, ""),
        (3.0, {"decay": 0.2}, "remember all rounds once the rate is 0.00016 and"),
        (3.0, {"decay": 1e-6}, "remember all rounds once the rate is 1e-25 and"),
    )
    def test_a_run_warns_of_an_alpha_that_does_not_suit_its_steps(self, alpha, optimizer, message):
        settings = config.get_config("smoke")
        settings.method.alpha = alpha
        settings.optimizer.update(optimizer)
        lines = config_warnings.check_feddyn(experiment.resolve(settings), quadratics.data(), 0.4)
        self.assertEqual(len(lines), bool(message))
        for line in lines:
            self.assertStartsWith(line, f"method.alpha={alpha:g}: ")
            self.assertIn(message, line)
        self.assertEmpty(config_warnings.check_feddyn(experiment.resolve(fedprox.get_config()), quadratics.data(), 0.4))

    @parameterized.parameters("all", "active")
    def test_a_run_warns_of_fedspeed_with_its_server(self, dual_mean):
        settings = fedspeed_config.get_config("smoke")
        settings.method.alpha, settings.method.dual_mean = 0.01, dual_mean
        lines = config_warnings.check_feddyn(experiment.resolve(settings), quadratics.data(), 0.4)
        self.assertEqual(len(lines), dual_mean == "all")

    @parameterized.parameters(
        ({"schedule": "fedbuff(buffer=2)"}, 1),
        ({"schedule": "fedbuff(buffer=2, staleness='constant')"}, 0),
        ({"aggregation.rule": "median"}, 1),
        ({"aggregation.rule": "mean"}, 0),
        (
            {
                "privacy.mechanism": "gaussian",
                "privacy.clip": 1.0,
                "privacy.noise": 1.0,
                "privacy.delta": 1e-5,
                "normalise": "unit",
            },
            1,
        ),
    )
    def test_a_run_warns_of_a_server_that_does_not_sum_what_clients_keep(self, changes, lines):
        settings = config.get_config("smoke")
        settings.update_from_flattened_dict(changes)
        self.assertLen(config_warnings.check_kept_states(experiment.resolve(settings)), lines)

    def test_what_travels(self):
        """h is at the server; only for scores it is read beside the model."""
        shapes = toy.reference("feddyn")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(alpha=0.0), "^alpha=0.0 must be .*positive$"),
        (dict(score="mean"), "score='mean' must be one of 'server', 'active_mean'"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            feddyn(toy.task(), optimizer=local_training.sgd(0.1), **wrong)

    def test_of_one_client_the_model_goes_as_far_again_as_all_its_changes(self):
        """w = theta - h / alpha, where -h / alpha is the sum of theta - w over all rounds."""
        alpha, index = 0.5, np.arange(4, 17)
        build = functools.partial(feddyn, optimizer=local_training.sgd(0.1), alpha=alpha, epochs=2, batch=toy.BATCH)
        groups = simulator.one_group(build, dataclasses.replace(toy.task(), population=1), 1)
        sim = simulator.Simulator(simulator.build_spec(groups, divided(index), plan=client_loop.Plan(1, 1), rounds_per_dispatch=3))
        state = jax.device_get(sim.run_rounds(sim.init(1), 3)[0])
        x, y = toy.data().train.x[index], toy.data().train.y[index]
        w, stats = MODEL.init(naive.stream(1, naive.INIT))
        moved = jax.tree.map(np.zeros_like, naive.arrays(w))
        settings = dict(epochs=2, batch=toy.BATCH, lr=0.1, whole=naive.with_term(MODEL, bend))
        for r in range(3):
            given = alpha, w, jax.tree.map(lambda m: (-alpha * m).astype(m.dtype), moved)
            theta = naive.train(None, w, stats, x, y, naive.client_key(1, r, 0), given=given, **settings)
            moved = naive.plus(moved, naive.minus(theta.params, w))
            w, stats = naive.plus(theta.params, moved), theta.stats
        chex.assert_trees_all_close(tuple(state.server.net), (w, stats), atol=5e-6)
        h = jax.tree.map(lambda m: -alpha * m, moved)
        chex.assert_trees_all_close((state.server.h, one(state.clients[0], 0)), (h, h), atol=5e-6)

    @parameterized.parameters(3, 6)
    def test_the_first_round_is_one_and_a_share_times_the_mean_delta(self, cohort):
        """From states of 0: w = w_0 + (1 + P) mean delta, P being the cohort's share of all clients."""
        method = functools.partial(feddyn, optimizer=local_training.sgd(0.1), alpha=0.5, epochs=2, batch=6)
        after, first, ends = quadratics.run(method, 1, cohort=cohort).server, quadratics.first(), []
        for i in naive.cohort(0, 0, 6, cohort):
            (x, y), w = quadratics.rows()[i], first
            for _ in range(2):
                w = w - 0.1 * (2 * x.T @ (x @ w - y) / len(x) + 0.5 * (w - first))
            ends.append(w)
        np.testing.assert_allclose(quadratics.weights(after.net), first + (1 + cohort / 6) * (np.mean(ends, 0) - first), atol=1e-5)
