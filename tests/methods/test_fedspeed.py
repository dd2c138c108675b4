"""FedSpeed against the paper's Algorithm 1 in loops, and its limits."""

import functools

import chex
import jax
import numpy as np
from absl.testing import parameterized

from fedjax_core.training import local_training
from methods.feddyn import Server, feddyn
from methods.fedprox import fedprox
from methods.fedspeed import fedspeed
from tests import naive, quadratics, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedprox import compiled, one_round
from tests.methods.test_fedsam import train
from tests.methods.test_scaffold import one


def oracle(seed, rounds, alpha, rho, share):
    """Algorithm 1: x, its statistics, and the clients' prox-corrections."""
    clients, lam = naive.rows(toy.data()), 1 / alpha
    x, stats = MODEL.init(naive.stream(seed, naive.INIT))
    g = [jax.tree.map(np.zeros_like, x) for _ in clients]
    for r in range(rounds):
        sent, drifts = [], []
        for i in naive.cohort(seed, r, len(clients), 5):

            def step(y, low, high, x=x, g=g[i]):
                return jax.tree.map(lambda a, b, g, y, x: (1 - share) * a + share * b - g + (y - x) / lam, low, high, g, y, x)

            up = lambda y, low: naive.plus(y, low, rho)
            y, new, _ = train(x, stats, *clients[i], naive.client_key(seed, r, i), up, step)
            g[i] = naive.plus(g[i], naive.minus(y, x), -1 / lam)
            sent.append(naive.plus(y, g[i], -lam))
            drifts.append(new)
        x, stats = naive.mean(sent, [1] * len(sent)), naive.mean(drifts, [1] * len(sent))
    return x, stats, g


class FedSpeedTest(chex.TestCase):
    def test_equals_the_algorithm_box(self):
        _, _, after = toy.reference("fedspeed")
        x, stats, g = oracle(0, 2, 0.8, 0.3, 0.7)
        chex.assert_trees_all_close(tuple(after.server.net), (x, stats), atol=1e-5)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(one(after.clients[0], i), g[i], atol=1e-5)

    def test_without_a_step_up_all_duals_are_feddyns(self):
        net = MODEL.init(jax.random.key(0))
        zeros = jax.tree.map(np.zeros_like, net.params)
        sent, g = Server(net, zeros), jax.tree.map(lambda w: 0.1 * w, net.params)
        settings = dict(alpha=0.5)
        theirs, ours = (
            one_round(update, sent, g)
            for update in (compiled(feddyn, **settings), compiled(fedspeed, rho=0.0, dual_mean="all", **settings))
        )
        chex.assert_trees_all_equal((ours.state, ours.uplink), (theirs.state, theirs.uplink))
        near = one_round(compiled(fedprox, mu=0.5), net).uplink  # with a correction of 0
        first = one_round(compiled(fedspeed, rho=0.0, dual_mean="all", **settings), sent, zeros)
        chex.assert_trees_all_close(first.uplink, near, atol=1e-6)

    def test_with_all_clients_both_means_are_one(self):
        method = functools.partial(fedspeed, optimizer=local_training.sgd(0.1), alpha=1.0, rho=0.1, epochs=5, batch=6)
        active, everybody = (
            quadratics.weights(quadratics.run(functools.partial(method, dual_mean=mean), 3).server.net)
            for mean in ("active", "all")
        )
        np.testing.assert_allclose(active, everybody, atol=1e-5)

    def test_what_travels(self):
        shapes = toy.reference("fedspeed")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(alpha=0.0), "^alpha=0.0 must be .*positive$"),
        (dict(share=1.5), r"^share=1.5 must be .*in \[0, 1\]$"),
        (dict(dual_mean="some"), "dual_mean='some' must be one of 'active', 'all'"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            fedspeed(toy.task(), optimizer=local_training.sgd(0.1), **wrong)
