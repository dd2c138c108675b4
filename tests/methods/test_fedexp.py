"""FedExP against the paper's Algorithm 1 in loops, and its limits."""

import functools

import chex
import jax
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.training import local_training
from methods.fedexp import Server, fedexp
from tests import naive, quadratics, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedopt import SOMEBODY, deltas


def square(tree):
    return sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(tree))


def oracle(seed, rounds, eps, *, cohort=5, epochs=2, batch=toy.BATCH):
    """(w, statistics) of the last two rounds."""
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(seed, naive.INIT)))
    history = [w]
    for r in range(rounds):
        changes = []
        for i in naive.cohort(seed, r, len(clients), cohort):
            key = naive.client_key(seed, r, i)
            w_i = naive.train(MODEL, *w, *clients[i], key, epochs=epochs, batch=batch, lr=0.1, momentum=0.5)
            changes.append(naive.minus((w_i.params, w_i.stats), w))
        params, stats = naive.mean(changes, [1] * len(changes))
        eta = max(1.0, sum(square(change[0]) for change in changes) / (2 * len(changes) * (square(params) + eps)))
        w = naive.plus(w[0], params, eta), naive.plus(w[1], stats)
        history.append(w)
    return history[-1], history[-2]


def step(given, eps=0.0, squares=None):
    """The server's learning rate after a mean of `given` and of their squared norms, and the new server."""
    algorithm = fedexp(toy.task(), optimizer=local_training.sgd(0.1), eps=eps)
    net = MODEL.init(jax.random.key(0))
    mean = naive.mean(given, [1] * len(given))
    squares = np.float32(np.mean([square(delta.params) for delta in given]) if squares is None else squares)
    server, metrics = algorithm.server_update(Server(net, net), (mean, squares), SOMEBODY, None)
    return float(metrics["eta_g"][0]), server


class FedExPTest(chex.TestCase):
    def test_equals_the_algorithm_box(self):
        _, _, after = toy.reference("fedexp")
        last, before = oracle(0, 2, 1e-3)
        chex.assert_trees_all_close(tuple(after.server.net), last, atol=1e-5)
        chex.assert_trees_all_close(tuple(after.server.previous), before, atol=1e-5)

    def test_disagreeing_clients_lengthen_the_step(self):
        """One step of constant gradients of all clients."""
        method = functools.partial(fedexp, optimizer=local_training.sgd(0.1), eps=0.0, epochs=1, batch=6)
        w = quadratics.weights(quadratics.run(method, 1, loss=quadratics.linear).server.net)
        changes = [-0.1 * c for c in quadratics.constant_gradients()]
        eta = np.mean([np.sum(c**2) for c in changes]) / (2 * np.sum(np.mean(changes, 0) ** 2))
        self.assertGreater(eta, 1.05)
        np.testing.assert_allclose(w, quadratics.first() + eta * np.mean(changes, 0), rtol=1e-5)

    def test_limits_of_the_rate(self):
        """Equal changes: 1/2, so 1. Orthogonal ones of one length: half their number. None: 1. A large epsilon: 1."""
        (same,) = deltas(1)
        self.assertEqual(step([same, same, same])[0], 1.0)
        zero = jax.tree.map(np.zeros_like, same)
        one_entry = lambda i: zero._replace(params=zero.params | {"head": zero.params["head"] | {"bias": np.eye(3, dtype="f")[i]}})
        self.assertAlmostEqual(step([one_entry(i) for i in range(3)])[0], 1.5, places=5)
        eta, server = step([zero, zero])
        self.assertEqual(eta, 1.0)
        chex.assert_trees_all_equal(server.net, server.previous)
        self.assertEqual(step([one_entry(i) for i in range(3)], eps=1e6)[0], 1.0)

    def test_the_mean_of_the_last_two_is_scored(self):
        x, before = toy.data().test.x, MODEL.init(jax.random.key(0))
        after = jax.tree.map(lambda w: w + 0.1, before)
        for score, net in [("last", after), ("last_two", jax.tree.map(lambda w: w + 0.05, before))]:
            algorithm = fedexp(toy.task(), optimizer=local_training.sgd(0.1), score=score)
            logits = algorithm.predict["global"](Server(after, before), (), x)["logits"]
            np.testing.assert_allclose(logits, MODEL.apply(net, x)[0]["logits"], atol=1e-6)

    def test_a_round_without_clients_changes_nothing(self):
        sim, _, state = toy.reference("fedexp")
        algorithm = sim.spec.algorithm(0, sim.spec.host_arrays, 2)
        uplink = toy.update_client(algorithm, algorithm.broadcast(state.server, 0), (), 0).uplink
        collected = jax.tree.map(np.zeros_like, uplink)
        after, _ = algorithm.server_update(state.server, collected, Cohort(np.arange(2), np.zeros(2, int)), None)
        chex.assert_trees_all_close(after, state.server, atol=1e-7)

    def test_what_travels(self):
        shapes = toy.reference("fedexp")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * (numbers + 1)))

    @parameterized.parameters(
        (dict(eps=-1.0), "^eps=-1.0 must be .*at least 0$"),
        (dict(score="both"), "score='both' must be one of 'last_two', 'last'"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            fedexp(toy.task(), optimizer=local_training.sgd(0.1), **wrong)

    @parameterized.parameters("uniform", "samples")
    def test_before_its_bound_of_one_the_rate_is_at_least_a_half(self, weights):
        """Holds with eps 0 by Jensen; four times the squares lift the rate above the bound."""
        algorithm = fedexp(toy.task(), optimizer=local_training.sgd(0.1), eps=0.0, weights=weights)
        net, (same, *others) = MODEL.init(jax.random.key(0)), deltas(4)
        for given in ([same] * 3, [same, *others], [same, jax.tree.map(lambda x: 1.01 * x, same)]):
            cohort = Cohort(np.arange(len(given)), np.array([9, 4, 1, 7])[: len(given)])
            uplinks = [(delta, np.float32(4 * square(delta.params))) for delta in given]
            collected = []
            for part, reduce in enumerate(algorithm.collect):
                mapped = [reduce.map(up[part], jax.tree.map(lambda x, c=c: x[c], cohort)) for c, up in enumerate(uplinks)]
                collected.append(reduce.finalize(jax.tree.map(lambda *x: sum(x), *mapped)))
            _, metrics = algorithm.server_update(Server(net, net), tuple(collected), SOMEBODY, None)
            raw = float(metrics["eta_g"][0]) / 4
            share = np.ones(len(given)) if weights == "uniform" else cohort.examples
            mean = jax.tree.map(lambda *x, s=share: np.average(x, axis=0, weights=s), *[delta.params for delta in given])
            expected = np.average([square(delta.params) for delta in given], weights=share) / (2 * square(mean))
            np.testing.assert_allclose(raw, expected, rtol=1e-5)
            self.assertGreaterEqual(raw, 0.5 - 1e-6)
