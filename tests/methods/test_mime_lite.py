"""MimeLite in loops, and its limits."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import ClientData, Cohort
from fedjax_core.task import make_task
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.mime_lite import mime_lite
from tests import naive, quadratics, toy
from tests.methods.test_fedavg import MODEL


def find_gradient(params, stats, x, y):
    """Returns a minibatch's gradient, and the batch statistics after it."""
    g, (stats, _, _) = naive.arrays(naive.gradient(MODEL, naive.nothing)(params, stats, x, y, ()))
    return g, stats


def direct(g, s, base, b1, b2, tau):
    """Returns U(g, s) and V(g, s), number by number."""
    m, v, steps = s
    m = jax.tree.map(lambda m, g: (b1 * m + (1 - b1) * g).astype(g.dtype), m, g)
    v = jax.tree.map(lambda v, g: (b2 * v + (1 - b2) * g * g).astype(g.dtype), v, g)
    steps += 1
    if base == "momentum":
        return m, (m, v, steps)
    root = lambda v: np.sqrt(v / (1 - b2**steps)) + tau
    return jax.tree.map(lambda m, v: (m / (1 - b1**steps) / root(v)).astype(m.dtype), m, v), (m, v, steps)


def full_gradient(params, stats, x, y, batch):
    """Returns the gradient of all examples, batch by batch."""
    parts, sizes = [], []
    for start in range(0, len(y), batch):
        some = slice(start, start + batch)
        g, stats = find_gradient(params, stats, x[some], y[some])
        parts.append(g)
        sizes.append(len(y[some]))
    return naive.mean(parts, sizes)


def oracle(seed, rounds, *, base, b1, b2=0.99, tau=1e-3, server_lr=1.0, cohort=5, epochs=2, batch=toy.BATCH):
    """Algorithm 1: x, its statistics and s."""
    clients = naive.rows(toy.data())
    x, stats = naive.arrays(MODEL.init(naive.stream(seed, naive.INIT)))
    nothing = jax.tree.map(np.zeros_like, x)
    s = nothing, nothing, 0
    for r in range(rounds):
        members = naive.cohort(seed, r, len(clients), cohort)
        alike = [1] * len(members)
        mean = naive.mean([full_gradient(x, stats, *clients[i], batch) for i in members], alike)
        models, moved_stats = [], []
        for i in members:
            key, (rows, labels) = naive.client_key(seed, r, i), clients[i]
            y, y_stats, velocity = x, stats, nothing
            for epoch in range(epochs):
                places = naive.order(key, epoch, len(labels))
                for start in range(0, len(places), batch):
                    now = np.array(places[start : start + batch])
                    g, new_stats = find_gradient(y, y_stats, rows[now], labels[now])
                    u, _ = direct(g, s, base, b1, b2, tau)
                    velocity = naive.plus(u, velocity, 0.5)  # of config.optimizer
                    y, y_stats = naive.plus(y, velocity, -0.1), new_stats
            models.append(y)
            moved_stats.append(y_stats)
        s = direct(mean, s, base, b1, b2, tau)[1]
        x = naive.plus(x, naive.minus(naive.mean(models, alike), x), server_lr)
        stats = naive.plus(stats, naive.minus(naive.mean(moved_stats, alike), stats))
    return x, stats, s


def run(rounds, loss=quadratics.linear, **settings):
    settings = {"optimizer": local_training.sgd(0.1), "epochs": 2, "batch": 6} | settings
    return quadratics.run(functools.partial(mime_lite, **settings), rounds, loss=loss).server


def linear_task():
    return dataclasses.replace(make_task(quadratics._model(), classes=1, population=6, shape=(2,)), loss=quadratics.linear)


def rows_of(i):
    """Returns the data of client i."""
    index = jnp.asarray(quadratics.data().train_index[i], jnp.int32)
    return ClientData(quadratics.data().train, index, jnp.int32(len(index)))


def mean_gradient(w):
    return np.mean([2 * x.T @ (x @ w - y) / len(x) for x, y in quadratics.rows()], 0)


class MimeTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("mime_lite")
        x, stats, (m, _, _) = oracle(0, 2, base="momentum", b1=0.6, server_lr=0.8)
        chex.assert_trees_all_close(tuple(after.server.net), (x, stats), atol=1e-5)
        chex.assert_trees_all_close(after.server.s.ema, m, atol=1e-5)

    def test_with_adam_equals_the_loops(self):
        _, _, after = toy.reference("mime_lite_adam")
        x, stats, (m, v, steps) = oracle(0, 2, base="adam", b1=0.6, tau=0.3)
        chex.assert_trees_all_close(tuple(after.server.net), (x, stats), atol=1e-5)
        chex.assert_trees_all_close((after.server.s.mu, after.server.s.nu), (m, v), atol=1e-5)
        self.assertEqual(int(after.server.s.count), steps)

    def test_without_statistics_is_fedavg(self):
        options = dict(optimizer=local_training.sgd(0.1), epochs=2, batch=toy.BATCH, weights="samples")
        builds = functools.partial(mime_lite, base="sgd", **options), functools.partial(fedavg, **options)
        states = []
        for build in builds:
            sim = toy.Case(build, task=toy.task).simulate()
            states.append(jax.device_get(sim.run_rounds(sim.init(0), 2)[0].server))
        chex.assert_trees_all_close(*(server.net for server in states), atol=1e-6)

    def test_one_full_step_of_all_is_the_central_optimizers(self):
        """x - eta m with m = (1 - beta) g + beta m."""
        w, m = quadratics.first(), 0.0
        for _ in range(4):
            m = 0.4 * mean_gradient(w) + 0.6 * m
            w = w - 0.1 * m
        server = run(4, loss=None, epochs=1, b1=0.6)
        np.testing.assert_allclose(quadratics.weights(server.net), w, rtol=1e-4)
        np.testing.assert_allclose(server.s.ema["head"]["kernel"], m, rtol=1e-4, atol=1e-5)

    def test_statistics_stay_as_they_are_in_local_steps(self):
        """Each of two local steps is (1 - beta) c + beta m of the round's m, for constant gradients c."""
        c, w, m = np.mean(quadratics.constant_gradients(), 0), quadratics.first(), 0.0
        for _ in range(3):
            w, m = w - 0.1 * 2 * (0.4 * c + 0.6 * m), 0.4 * c + 0.6 * m
        np.testing.assert_allclose(quadratics.weights(run(3, b1=0.6).net), w, rtol=1e-5)

    def test_an_empty_round_changes_nothing(self):
        algorithm = mime_lite(toy.task(), optimizer=local_training.sgd(0.1))
        server, nobody = algorithm.server_init(jax.random.key(0)), Cohort(jnp.arange(5), jnp.zeros(5, jnp.int32))
        server = server._replace(s=jax.tree.map(lambda x: x + 1, server.s))
        zero = jax.tree.map(jnp.zeros_like, server.net)
        after, _ = algorithm.server_update(server, (zero, zero.params), nobody, jax.random.key(1))
        chex.assert_trees_all_equal(after, server)

    def test_what_travels(self):
        params, stats = (5 * 6 + 6) + (6 * 3 + 3), 5
        for name, sizes in (("mime_lite", 2), ("mime_lite_adam", 3)):  # and Optax's number of steps
            shapes = toy.reference(name)[0].spec.shapes
            self.assertEqual((shapes.down, shapes.up), (4 * (sizes * params + stats + 1), 4 * (2 * params + stats)))

    @parameterized.parameters(
        (dict(base="yogi"), "base='yogi' must be one of 'sgd', 'momentum', 'adam'"),
        (dict(b1=1.0), r"^b1=1.0 must be .*\[0, 1\)$"),
        (dict(tau=0.0), "^tau=0.0 must be .*positive$"),
        (dict(weights="both"), "weights='both' is not one of"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            mime_lite(toy.task(), optimizer=local_training.sgd(0.1), **wrong)
