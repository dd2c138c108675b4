"""FedCM in loops, and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.training import local_training
from fedjax_core.uplink import attacks
from methods.fedcm import Server, fedcm
from tests import naive, quadratics, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fednova import effective


def own(params, stats, x, y, given):
    """alpha times the cross-entropy with weight decay."""
    alpha, decay = given
    outputs, stats = MODEL.apply(type(MODEL.init(jax.random.key(0)))(params, stats), x, train=True)
    ce = naive.cross_entropy(outputs["logits"], y)
    square = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return alpha * (ce + decay / 2 * square), (stats, outputs["logits"], ce)


def oracle(seed, rounds, alpha, server_lr, decay, *, cohort=5, epochs=2, batch=toy.BATCH, momentum=0.5):
    """FedCM: x, its statistics and the direction."""
    clients = naive.rows(toy.data())
    x, stats = MODEL.init(naive.stream(seed, naive.INIT))
    direction = jax.tree.map(np.zeros_like, x)
    for r in range(rounds):
        deltas, drifts, directions = [], [], []
        shared = jax.tree.map(lambda d: (1 - alpha) * d, direction)
        for i in naive.cohort(seed, r, len(clients), cohort):
            settings = dict(epochs=epochs, batch=batch, lr=0.1, momentum=momentum, whole=own, given=(alpha, decay), drift=shared)
            y = naive.train(None, x, stats, *clients[i], naive.client_key(seed, r, i), **settings)
            deltas.append(naive.minus(y.params, x))
            drifts.append(naive.minus(y.stats, stats))
            worth = 0.1 * effective(len(y.gradients), momentum)
            directions.append(jax.tree.map(lambda d, w=worth: -d / w, deltas[-1]))
        alike = [1] * len(deltas)
        direction = naive.mean(directions, alike)
        x = naive.plus(x, naive.mean(deltas, alike), server_lr)
        stats = naive.plus(stats, naive.mean(drifts, alike))
    return x, stats, direction


def run(rounds, alpha=0.4, loss=quadratics.linear, **settings):
    settings = {"optimizer": local_training.sgd(0.1), "epochs": 2, "batch": 6} | settings
    return quadratics.run(functools.partial(fedcm, alpha=alpha, **settings), rounds, loss=loss).server


class FedCMTest(chex.TestCase):
    def test_equals_the_algorithm_box(self):
        _, _, after = toy.reference("fedcm")
        x, stats, direction = oracle(0, 2, 0.4, 0.8, 0.1)
        chex.assert_trees_all_close(tuple(after.server.net), (x, stats), atol=1e-5)
        chex.assert_trees_all_close(after.server.direction, direction, atol=1e-5)

    def test_limits_with_constant_gradients(self):
        """Alpha 1 is FedAvg; the first round FedAvg with alpha times the rate; the direction comes to the gradient by 1 - alpha."""
        c = np.mean(quadratics.constant_gradients(), 0)
        np.testing.assert_allclose(quadratics.weights(run(2, 1.0).net), quadratics.first() - 0.4 * c, rtol=1e-5)
        np.testing.assert_allclose(quadratics.weights(run(1).net), quadratics.first() - 0.4 * 0.2 * c, rtol=1e-5)
        np.testing.assert_allclose(run(3).direction["head"]["kernel"], c * (1 - 0.6**3), rtol=1e-4)

    def test_one_full_step_of_all_is_the_mean_gradients_exponential_mean(self):
        w, direction = quadratics.first(), 0.0
        for _ in range(3):
            gradient = np.mean([2 * x.T @ (x @ w - y) / len(x) for x, y in quadratics.rows()], 0)
            direction = 0.4 * gradient + 0.6 * direction
            w = w - 0.1 * direction
        server = run(3, loss=None, epochs=1)
        np.testing.assert_allclose(quadratics.weights(server.net), w, rtol=1e-4)
        np.testing.assert_allclose(server.direction["head"]["kernel"], direction, rtol=1e-4, atol=1e-5)

    def test_an_empty_round_keeps_the_direction(self):
        algorithm = fedcm(toy.task(), optimizer=local_training.sgd(0.1))
        net = MODEL.init(jax.random.key(0))
        zero = jax.tree.map(jnp.zeros_like, net)
        server, nobody = Server(net, net.params), Cohort(jnp.arange(5), jnp.zeros(5, jnp.int32))
        after, _ = algorithm.server_update(server, (zero, zero.params), nobody, None)
        chex.assert_trees_all_equal(after, server)

    def test_a_client_without_steps_has_no_direction(self):
        algorithm = fedcm(toy.task(), optimizer=local_training.sgd(0.1))
        net, nothing = MODEL.init(jax.random.key(0)), toy.client_data(0)._replace(size=jnp.int32(0))
        output = jax.jit(algorithm.client_update)(Server(net, net.params), (), nothing, jax.random.key(1))
        chex.assert_trees_all_equal(output.uplink[1], jax.tree.map(jnp.zeros_like, net.params))

    def test_what_travels(self):
        shapes = toy.reference("fedcm")[0].spec.shapes
        params, stats = (5 * 6 + 6) + (6 * 3 + 3), 5
        self.assertEqual((shapes.down, shapes.up), (4 * (2 * params + stats), 4 * (params + stats + 1)))
        attacked = toy.simulate("fedcm", mixed=False, transforms=[attacks.make_attack("sign_flip", attacks.sign_flip(), [2])])
        self.assertEqual(attacked.spec.shapes.up, shapes.up)

    @parameterized.parameters(
        (dict(alpha=0.0), r"^alpha=0.0 must be .*in \(0, 1\]$"),
        (dict(server_lr=0.0), "^server_lr=0.0 must be .*positive$"),
        (dict(decay=-1.0), "^decay=-1.0 must be .*at least 0$"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            fedcm(toy.task(), optimizer=local_training.sgd(0.1), **wrong)
