"""FedDC in loops, and its limits."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from configs import feddc as config
from fedjax_core import experiment
from fedjax_core.algorithm import Cohort
from fedjax_core.engine import client_loop, simulator
from fedjax_core.experiment import config_warnings
from fedjax_core.training import local_training
from methods.feddc import Client, Server, feddc
from methods.feddyn import feddyn
from tests import naive, quadratics, toy
from tests.methods.test_fedavg import MODEL, divided
from tests.methods.test_fednova import effective
from tests.methods.test_scaffold import one

ALPHA = 0.8  # of tests/toy.py


def terms(params, outputs, x, y, given):
    """alpha / 2 |theta - (w - h_i)|^2 + <theta, g - g_i>."""
    alpha, w, h_i, g, g_i = given
    pairs = zip(*map(jax.tree.leaves, (params, w, h_i, g, g_i)), strict=True)
    return sum(alpha / 2 * jnp.sum((t - (w - h)) ** 2) + jnp.sum(t * (c - c_i)) for t, w, h, c, c_i in pairs)


def oracle(seed, rounds, alpha, *, epochs=2, batch=toy.BATCH, momentum=0.5, cohort=5):
    """FedDC: w, statistics, g, and the drifts and directions of all clients."""
    clients, whole = naive.rows(toy.data()), naive.with_term(MODEL, terms)
    w, stats = MODEL.init(naive.stream(seed, naive.INIT))
    g = jax.tree.map(np.zeros_like, naive.arrays(w))
    drifts, directions = [g for _ in clients], [g for _ in clients]
    for r in range(rounds):
        models, moved_stats = [], []
        for i in naive.cohort(seed, r, len(clients), cohort):
            given = alpha, w, drifts[i], g, directions[i]
            settings = dict(epochs=epochs, batch=batch, lr=0.1, momentum=momentum, whole=whole, given=given)
            theta = naive.train(None, w, stats, *clients[i], naive.client_key(seed, r, i), **settings)
            delta, worth = naive.minus(theta.params, w), 0.1 * effective(len(theta.gradients), momentum)
            drifts[i] = naive.plus(drifts[i], delta)
            directions[i] = naive.plus(naive.minus(directions[i], g), delta, -1 / worth)
            models.append(theta.params)
            moved_stats.append(theta.stats)
        everyone, alike = [1] * len(clients), [1] * len(models)
        w = naive.plus(naive.mean(models, alike), naive.mean(drifts, everyone))
        g = naive.mean(directions, everyone)
        stats = naive.mean(moved_stats, alike)
    return w, stats, g, drifts, directions


def run(method, rounds, alpha=1.0, **settings):
    build = functools.partial(method, optimizer=local_training.sgd(0.1), alpha=alpha, epochs=2, batch=6)
    return quadratics.run(build, rounds, **settings)


class FedDCTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("feddc")
        w, stats, g, drifts, directions = oracle(0, 2, ALPHA)
        chex.assert_trees_all_close(tuple(after.server.net), (w, stats), atol=1e-5)
        chex.assert_trees_all_close(after.server.pull, g, atol=1e-5)
        chex.assert_trees_all_close(after.server.drift, naive.mean(drifts, [1] * len(drifts)), atol=1e-5)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(tuple(one(after.clients[0], i)), (drifts[i], directions[i]), atol=1e-5)

    def test_of_one_client_it_is_feddyn(self):
        """There g_i is g, and FedDyn's state is -alpha h_i."""
        index, states = np.arange(4, 17), []
        for method in (feddc, feddyn):
            build = functools.partial(method, optimizer=local_training.sgd(0.1), alpha=0.5, epochs=2, batch=toy.BATCH)
            groups = simulator.one_group(build, dataclasses.replace(toy.task(), population=1), 1)
            sim = simulator.Simulator(
                simulator.build_spec(groups, divided(index), plan=client_loop.Plan(1, 1), rounds_per_dispatch=3)
            )
            states.append(jax.device_get(sim.run_rounds(sim.init(1), 3)[0]))
        ours, theirs = states
        chex.assert_trees_all_close(ours.server.net, theirs.server.net, atol=1e-5)
        chex.assert_trees_all_close(jax.tree.map(lambda h: -0.5 * h, ours.server.drift), theirs.server.h, atol=1e-5)
        chex.assert_trees_all_close(ours.server.pull, one(ours.clients[0], 0).pull, atol=1e-6)

    def test_the_first_round_is_that_of_feddyn(self):
        """From states of 0 nothing is corrected; later the methods differ."""
        for rounds, differs in ((1, False), (2, True)):
            ours, theirs = (quadratics.weights(run(method, rounds, cohort=3).server.net) for method in (feddc, feddyn))
            self.assertEqual(np.abs(ours - theirs).max() > 1e-3, differs)

    @parameterized.parameters(None, 3)
    def test_converges_to_the_optimum_of_the_mean(self, cohort):
        """After few local steps too, with all clients or half of them a round."""
        state = run(feddc, 400, cohort=cohort)
        np.testing.assert_allclose(quadratics.weights(state.server.net), quadratics.optimum(), atol=2e-3)

    def test_a_direction_is_the_mean_gradient_of_loss_and_spring(self):
        """Without the correction that the client trained with, of which the loss's constant gradient is the rest."""
        (before, after), constant = (run(feddc, n, loss=quadratics.linear) for n in (3, 4)), quadratics.constant_gradients()
        w, w_i = quadratics.weights(before.server.net), lambda states: states.drift["head"]["kernel"]
        for i in range(6):
            pull = before.server.pull["head"]["kernel"] - before.clients[0].pull["head"]["kernel"][i]
            theta, springs = w, []
            for _ in range(2):
                springs.append(theta - (w - w_i(before.clients[0])[i]))
                theta = theta - 0.1 * (constant[i] + springs[-1] + pull)
            expected = constant[i] + np.mean(springs, 0)
            np.testing.assert_allclose(after.clients[0].pull["head"]["kernel"][i], expected, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(w_i(after.clients[0])[i], w_i(before.clients[0])[i] + theta - w, rtol=1e-3, atol=1e-4)

    def test_the_servers_states_are_the_means_of_all_clients(self):
        _, _, after = toy.reference("feddc")
        mean = jax.tree.map(lambda x: np.mean(x, 0), after.clients[0])
        chex.assert_trees_all_close((after.server.drift, after.server.pull), tuple(mean), atol=1e-5)

    def test_the_mean_of_the_models_is_scored(self):
        algorithm = feddc(toy.task(), optimizer=local_training.sgd(0.1), score="active_mean")
        net, x = MODEL.init(jax.random.key(0)), toy.data().test.x
        sent = Server(net, jax.tree.map(lambda w: 0.1 + w, net.params), net.params)
        mean = net._replace(params=jax.tree.map(lambda w, h: w - h, net.params, sent.drift))
        np.testing.assert_allclose(algorithm.predict["global"](sent, (), x)["logits"], MODEL.apply(mean, x)[0]["logits"], atol=1e-6)

    def test_after_training_a_client_has_the_model_that_it_trained(self):
        algorithm = feddc(toy.task(), optimizer=local_training.sgd(0.1), score="active_mean")
        net, x = MODEL.init(jax.random.key(0)), toy.data().test.x
        zero = jax.tree.map(jnp.zeros_like, net.params)
        output = toy.update_client(algorithm, Server(net, net.params, zero), Client(zero, zero))
        trained = jax.tree.map(jnp.add, net, output.uplink[0])
        scored = algorithm.predict["global"](*output.local, x)["logits"]
        np.testing.assert_allclose(scored, MODEL.apply(trained, x)[0]["logits"], atol=1e-5)

    def test_an_empty_round_changes_nothing(self):
        algorithm = feddc(toy.task(), optimizer=local_training.sgd(0.1))
        net = MODEL.init(jax.random.key(0))
        zero = jax.tree.map(jnp.zeros_like, net)
        server, nobody = Server(net, net.params, net.params), Cohort(jnp.arange(5), jnp.zeros(5, jnp.int32))
        after, _ = algorithm.server_update(server, (zero, zero.params), nobody, None)
        chex.assert_trees_all_equal(after, server)

    def test_a_client_without_steps_keeps_its_state(self):
        algorithm = feddc(toy.task(), optimizer=local_training.sgd(0.1), epochs=0)
        net = MODEL.init(jax.random.key(0))
        kept = Client(net.params, jax.tree.map(lambda x: 2 * x, net.params))
        output = toy.update_client(algorithm, Server(net, net.params, net.params), kept)
        chex.assert_trees_all_equal((output.state, output.uplink[1]), (kept, jax.tree.map(jnp.zeros_like, net.params)))

    def test_what_travels(self):
        """The mean drift is at the server; a client's new direction follows from its change and one number."""
        shapes = toy.reference("feddc")[0].spec.shapes
        params, stats = (5 * 6 + 6) + (6 * 3 + 3), 5
        self.assertEqual((shapes.down, shapes.up), (4 * (2 * params + stats), 4 * (params + stats + 1)))

    @parameterized.parameters((3.0, ""), (0.01, "remember all rounds and the server steps by"), (30.0, "overshoot"))
    def test_a_run_warns_of_an_alpha_that_does_not_suit_its_steps(self, alpha, message):
        settings = config.get_config("smoke")
        settings.method.alpha = alpha
        lines = config_warnings.check_feddyn(experiment.resolve(settings), quadratics.data(), 0.4)
        self.assertEqual(len(lines), bool(message))
        for line in lines:
            self.assertStartsWith(line, f"method.alpha={alpha:g}: ")
            self.assertIn(message, line)

    @parameterized.parameters(({"aggregation.rule": "median"}, 1), ({"aggregation.rule": "mean"}, 0))
    def test_a_run_warns_of_a_server_that_does_not_sum_what_clients_keep(self, changes, lines):
        settings = config.get_config("smoke")
        settings.update_from_flattened_dict(changes)
        self.assertLen(config_warnings.check_kept_states(experiment.resolve(settings)), lines)

    @parameterized.parameters(
        (dict(alpha=0.0), "^alpha=0.0 must be .*positive$"),
        (dict(score="mean"), "score='mean' must be one of 'server', 'active_mean'"),
        (dict(optimizer=local_training.adam(0.1)), "FedDC needs an optimizer whose steps are proportional"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            feddc(toy.task(), **{"optimizer": local_training.sgd(0.1)} | wrong)
