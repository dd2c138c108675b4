"""FedACG in loops, and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.training import local_training
from methods.fedacg import Server, fedacg
from methods.fedavg import fedavg
from methods.fedopt import fedopt
from methods.fedprox import fedprox
from tests import naive, quadratics, toy
from tests.methods.test_fedavg import MODEL


def spring(params, outputs, x, y, given):
    """beta / 2 |theta_i - (theta + lambda m)|^2."""
    beta, ahead = given
    return sum(beta / 2 * jnp.sum((t - a) ** 2) for t, a in zip(*map(jax.tree.leaves, (params, ahead)), strict=True))


def oracle(seed, rounds, lam, beta, *, cohort=5, epochs=2, batch=toy.BATCH, momentum=0.5):
    """FedACG: theta, its statistics and m."""
    clients, whole = naive.rows(toy.data()), naive.with_term(MODEL, spring)
    theta, stats = MODEL.init(naive.stream(seed, naive.INIT))
    m = jax.tree.map(np.zeros_like, naive.arrays(theta))
    for r in range(rounds):
        ahead = naive.plus(theta, m, lam)
        deltas, drifts = [], []
        for i in naive.cohort(seed, r, len(clients), cohort):
            settings = dict(epochs=epochs, batch=batch, lr=0.1, momentum=momentum, whole=whole, given=(beta, ahead))
            theta_i = naive.train(None, ahead, stats, *clients[i], naive.client_key(seed, r, i), **settings)
            deltas.append(naive.minus(theta_i.params, ahead))
            drifts.append(naive.minus(theta_i.stats, stats))
        alike = [1] * len(deltas)
        m = naive.plus(naive.mean(deltas, alike), m, lam)
        theta = naive.plus(theta, m)
        stats = naive.plus(stats, naive.mean(drifts, alike))
    return theta, stats, m


def run(method, rounds, **settings):
    return quadratics.run(
        functools.partial(method, optimizer=local_training.sgd(0.1), epochs=2, batch=6, **settings), rounds
    ).server


class FedACGTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("fedacg")
        theta, stats, m = oracle(0, 2, 0.6, 0.7)
        chex.assert_trees_all_close(tuple(after.server.net), (theta, stats), atol=1e-5)
        chex.assert_trees_all_close(after.server.m, m, atol=1e-5)

    def test_clients_get_the_models_of_nesterovs_momentum(self):
        """Without the spring: theta + lambda m is FedAvgM's model."""
        ours = run(fedacg, 4, lam=0.7, beta=0.0)
        theirs = run(fedopt, 4, server="nesterov", server_lr=1.0, b1=0.7)
        ahead = quadratics.weights(ours.net) + 0.7 * ours.m["head"]["kernel"]
        np.testing.assert_allclose(ahead, quadratics.weights(theirs.net), rtol=1e-5)

    @parameterized.parameters((0.0, fedavg, {}), (0.5, fedprox, {"mu": 0.5}))
    def test_without_momentum_it_is_fedavg_or_fedprox(self, beta, method, options):
        ours, theirs = run(fedacg, 3, lam=0.0, beta=beta), run(method, 3, weights="uniform", **options)
        np.testing.assert_allclose(quadratics.weights(ours.net), quadratics.weights(theirs.net), rtol=1e-6)

    def test_an_empty_round_changes_nothing(self):
        algorithm = fedacg(toy.task(), optimizer=local_training.sgd(0.1))
        net = MODEL.init(jax.random.key(0))
        server, nobody = Server(net, net.params), Cohort(jnp.arange(5), jnp.zeros(5, jnp.int32))
        after, _ = algorithm.server_update(server, jax.tree.map(jnp.zeros_like, net), nobody, jax.random.key(1))
        chex.assert_trees_all_equal(after, server)

    def test_the_servers_model_is_scored(self):
        """Not the one that clients get."""
        algorithm = fedacg(toy.task(), optimizer=local_training.sgd(0.1))
        net, x = MODEL.init(jax.random.key(0)), toy.data().test.x
        sent = algorithm.broadcast(Server(net, net.params), jnp.int32(0))
        np.testing.assert_allclose(algorithm.predict["global"](sent, (), x)["logits"], MODEL.apply(net, x)[0]["logits"], atol=1e-6)

    def test_what_travels(self):
        shapes = toy.reference("fedacg")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(lam=1.0), r"^lam=1.0 must be .*\[0, 1\)$"),
        (dict(beta=-1.0), "^beta=-1.0 must be .*at least 0$"),
        (dict(weights="both"), "weights='both' is not one of"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            fedacg(toy.task(), optimizer=local_training.sgd(0.1), **wrong)
