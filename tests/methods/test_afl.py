"""AFL against the paper's algorithm in loops, and its limits."""

import functools

import chex
import jax
import numpy as np
import scipy.optimize
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.training import local_training
from methods.afl import afl
from methods.fedavg import fedavg
from tests import naive, quadratics, toy
from tests.methods.test_fedavg import MODEL


def project(v):
    """The nearest point of the simplex: v less the number with which the positive parts sum to 1."""
    low, high = v.min() - 1, v.max()
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


def oracle(seed, rounds, ascent, *, epochs=2, batch=toy.BATCH):
    """w and its statistics, the mean of the iterates, and lambda."""
    clients = naive.rows(toy.data())
    w = MODEL.init(naive.stream(seed, naive.INIT))
    weights, iterates = np.full(len(clients), 1 / len(clients)), []
    for r in range(rounds):
        moved, risk = [], {}
        members = naive.cohort(seed, r, len(clients), 5)
        for k in members:
            x, y = clients[k]
            risk[k] = float(naive.cross_entropy(MODEL.apply(w, x)[0]["logits"], y))
            key = naive.client_key(seed, r, k)
            moved.append(naive.train(MODEL, *w, x, y, key, epochs=epochs, batch=batch, lr=0.1, momentum=0.5))
        params = naive.mean([net.params for net in moved], [weights[k] for k in members])
        w = type(w)(params, naive.mean([net.stats for net in moved], [1] * len(moved)))
        iterates.append(tuple(w))
        raised = weights.copy()
        for k in members:
            raised[k] += ascent * (risk[k] - sum(risk.values()) / len(members))
        weights = project(raised)
    return tuple(w), naive.mean(iterates, [1] * rounds), weights


def run(method, rounds=1, alike=False, **settings):
    method = functools.partial(method, optimizer=local_training.sgd(0.05), epochs=3, batch=6, **settings)
    return quadratics.run(method, rounds, alike=alike).server


def risks(w):
    return [float(np.mean((x @ w - y) ** 2)) for x, y in quadratics.rows()]


def raised(ids, examples, losses):
    """lambda after one round of these clients from the uniform one."""
    algorithm = afl(toy.task(), optimizer=local_training.sgd(0.1), ascent_lr=0.05)
    server = algorithm.server_init(jax.random.key(0))
    step = jax.tree.map(np.zeros_like, server.net)
    after, _ = algorithm.server_update(server, (step, 1 / toy.CLIENTS, losses), Cohort(ids, examples), None)
    return after.weights


class AFLTest(chex.TestCase):
    def test_equals_the_algorithm_box(self):
        _, _, after = toy.reference("afl")
        w, average, weights = oracle(0, 2, 0.3)
        chex.assert_trees_all_close(tuple(after.server.net), w, atol=1e-5)
        chex.assert_trees_all_close(tuple(after.server.average), average, atol=1e-5)
        np.testing.assert_allclose(after.server.weights, weights, atol=1e-6)
        self.assertGreater(np.ptp(weights), 0.05)
        self.assertAlmostEqual(toy.records("afl")[1]["server/largest_weight"], max(weights), places=6)

    def test_without_ascent_it_is_uniform_fedavg(self):
        expected = quadratics.weights(run(fedavg, 2, weights="uniform").net)
        np.testing.assert_allclose(quadratics.weights(run(afl, 2, ascent_lr=0.0).net), expected, rtol=1e-5)

    def test_converges_to_the_least_largest_loss(self):
        """The minimax point, whose worst client is better off than with FedAvg."""
        worst = lambda w: max(risks(np.reshape(w, (2, 1))))
        least = scipy.optimize.minimize(worst, quadratics.optimum().ravel(), method="Nelder-Mead").fun
        fair = run(afl, 200, ascent_lr=0.02)
        self.assertAlmostEqual(worst(quadratics.weights(fair.net)), least, delta=0.01 * least)
        self.assertAlmostEqual(worst(quadratics.weights(fair.average)), least, delta=0.02 * least)
        self.assertGreater(worst(quadratics.optimum()), 1.1 * least)
        np.testing.assert_allclose(fair.weights.sum(), 1, rtol=1e-5)

    def test_a_high_rate_leaves_the_worst_client_alone(self):
        server = run(afl, 1, ascent_lr=100.0)
        worst = int(np.argmax(risks(quadratics.first())))
        np.testing.assert_allclose(server.weights, np.eye(6)[worst], atol=1e-6)

    @parameterized.named_parameters(("all", range(toy.CLIENTS), 1), ("some", (4, 1, toy.CLIENTS), 1), ("nobody", (4, 1), 0))
    def test_equal_losses_leave_the_weights_as_they_are(self, ids, examples):
        """Whoever takes part; an empty slot (`toy.CLIENTS`) and clients that dropped out count for nothing."""
        ids = np.array(ids)
        examples = np.where(ids < toy.CLIENTS, examples, 0)
        after = raised(ids, examples, np.where(examples > 0, 2.0, np.nan))
        np.testing.assert_allclose(after, np.full(toy.CLIENTS, 1 / toy.CLIENTS), rtol=1e-6)

    def test_an_absent_client_counts_as_one_with_the_mean_loss(self):
        everyone, some = np.arange(toy.CLIENTS), np.array([0, 2, 3])
        losses = np.full(toy.CLIENTS, 2.0)
        losses[some] = 1.0, 2.5, 2.5
        of_all = raised(everyone, np.ones(toy.CLIENTS), losses)
        np.testing.assert_allclose(raised(some, np.ones(3), losses[some]), of_all, rtol=1e-5)
        self.assertLess(of_all[0], of_all[1])
        self.assertLess(of_all[1], of_all[2])

    def test_a_round_without_clients_changes_nothing(self):
        sim, _, state = toy.reference("afl")
        algorithm = sim.spec.algorithm(0, sim.spec.host_arrays, 2)
        uplink = toy.update_client(algorithm, algorithm.broadcast(state.server, 0), (), 0).uplink
        collected = jax.tree.map(np.zeros_like, uplink)
        collected = (*collected[:2], np.zeros(2))  # the losses are stacked
        server = jax.tree.map(jax.numpy.asarray, state.server)
        after, _ = algorithm.server_update(server, collected, Cohort(np.arange(2), np.zeros(2, int)), None)
        chex.assert_trees_all_close(after, state.server, atol=1e-7)

    def test_what_travels(self):
        """The average is at the server; only for scores it is read beside the model."""
        shapes = toy.reference("afl")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * (numbers + 1)))

    @parameterized.parameters(
        (dict(ascent_lr=-1.0), "^ascent_lr=-1.0 must be .*at least 0$"),
        (dict(score="mean"), "score='mean' must be one of 'average', 'last'"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            afl(toy.task(), optimizer=local_training.sgd(0.1), **wrong)
