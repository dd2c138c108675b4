"""Per-FedAvg in loops over steps with three minibatches each, and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.per_fedavg import per_fedavg
from tests import naive, quadratics, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedavg import oracle as fedavg_after
from tests.methods.test_fedper import ended, made, personalised, simulate

INNER, HESSIAN = 0x64, 0x6464
NET = type(MODEL.init(jax.random.key(0)))


@functools.cache
def risk_gradient():
    def risk(params, stats, x, y):
        outputs, stats = MODEL.apply(NET(params, stats), x, train=True)
        return naive.cross_entropy(outputs["logits"], y), stats

    return jax.jit(jax.grad(risk, has_aux=True))


@functools.cache
def hessian_product():
    """(params, stats, x, y, u) -> the Hessian times u, from the gradient of <gradient, u>."""

    def along(params, stats, x, y, u):
        g, _ = risk_gradient()(params, stats, x, y)
        return sum(jnp.sum(a * b) for a, b in zip(jax.tree.leaves(g), jax.tree.leaves(u), strict=True))

    return jax.jit(jax.grad(along))


def drawn(key, size, number):
    """Indices of a client's examples, with replacement."""
    return np.asarray(jax.random.randint(key, (number,), 0, size))


def trained(w, x, y, key, *, alpha, hessian, delta, lr=0.1, momentum=0.5, epochs=2, capacity=9):
    gradient = risk_gradient()
    params, stats = naive.arrays(tuple(w))
    velocity, number = jax.tree.map(np.zeros_like, params), min(toy.BATCH, capacity)
    for epoch in range(epochs):
        places = naive.order(key, epoch, len(y))
        _, steps = jax.random.split(jax.random.fold_in(key, epoch))
        for i in range(-(-len(places) // number)):
            step = jax.random.fold_in(steps, i)
            outer = np.array(places[i * number : (i + 1) * number])
            inner, again = (drawn(jax.random.fold_in(step, n), len(y), number) for n in (INNER, HESSIAN))
            g, _ = gradient(params, stats, x[inner], y[inner])
            u, moved = naive.arrays(gradient(naive.plus(params, g, -alpha), stats, x[outer], y[outer]))
            direction = u
            if hessian == "difference":
                ahead, _ = gradient(naive.plus(params, u, delta), stats, x[again], y[again])
                behind, _ = gradient(naive.plus(params, u, -delta), stats, x[again], y[again])
                d = jax.tree.map(lambda a, b: a / (2 * delta), naive.minus(ahead, behind), u)
                direction = naive.plus(u, d, -alpha)
            elif hessian == "exact":
                direction = naive.plus(u, hessian_product()(params, stats, x[again], y[again], u), -alpha)
            stats, velocity = moved, naive.plus(direction, velocity, momentum)
            params = naive.plus(params, velocity, -lr)
    return params, stats


def oracle(rounds, **settings):
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(0, naive.INIT)))
    for r in range(rounds):
        came = naive.cohort(0, r, len(clients), 5)
        ends = [trained(w, *clients[i], naive.client_key(0, r, i), **settings) for i in came]
        w = naive.mean(ends, [1] * len(ends))
    return w


class PerFedAvgTest(chex.TestCase):
    def test_hessian_free_equals_the_loops(self):
        _, _, state = toy.reference("per_fedavg")
        w = oracle(2, alpha=0.3, hessian="difference", delta=0.05)
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=2e-5)

    @parameterized.parameters("none", "exact")
    def test_equals_the_loops(self, hessian):
        state = ended(made(per_fedavg, epochs=2, alpha=0.3, hessian=hessian))
        w = oracle(2, alpha=0.3, hessian=hessian, delta=0.05)
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=5e-6)
        near = np.abs(
            state.server.net.params["head"]["kernel"] - toy.reference("per_fedavg")[2].server.net.params["head"]["kernel"]
        )
        self.assertGreater(near.max(), 1e-3 if hessian == "none" else 1e-6)

    def test_exact_is_the_gradient_of_the_adapted_risk(self):
        """Of a client with one example, whose three minibatches are alike."""
        w, alpha, lr = MODEL.init(jax.random.key(1)), 0.7, 0.1
        x, y = naive.rows(toy.data())[2]
        self.assertLen(y, 1)

        def adapted(params):
            g, _ = risk_gradient()(params, w.stats, x, y)
            at = jax.tree.map(lambda p, g: p - alpha * g, params, g)
            return naive.cross_entropy(MODEL.apply(NET(at, w.stats), x, train=True)[0]["logits"], y)

        step = jax.tree.map(lambda g: -lr * g, jax.grad(adapted)(w.params))
        exact, near = (
            toy.update_client(made(per_fedavg, alpha=alpha, hessian=hessian)(toy.task()), w, (), 2).uplink.params
            for hessian in ("exact", "difference")
        )
        chex.assert_trees_all_close(exact, step, atol=1e-6)
        chex.assert_trees_all_close(near, step, atol=1e-4)

    def test_without_adaptation_it_is_fedavg(self):
        state = ended(made(per_fedavg, epochs=2, alpha=0.0))
        w = fedavg_after(0, 2, weights="uniform", lr=0.1, momentum=0.5)
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=5e-6)

    def test_a_client_predicts_after_steps_on_all_of_its_examples(self):
        w = tuple(jax.device_get(toy.reference("per_fedavg")[2].server.net))
        for i in (0, 3):
            params, stats = w
            x, y = naive.rows(toy.data())[i]
            for _ in range(2):  # minibatches in stored order, each with its own statistics
                total, moved = jax.tree.map(np.zeros_like, params), stats
                for start in range(0, len(y), toy.BATCH):
                    now = slice(start, start + toy.BATCH)
                    g, moved = naive.arrays(risk_gradient()(params, moved, x[now], y[now]))
                    total = naive.plus(total, g, len(y[now]))
                params, stats = naive.plus(params, total, -0.3 / len(y)), moved
            net, _ = personalised("per_fedavg", i)
            chex.assert_trees_all_close(tuple(net), (params, stats), atol=5e-6)

    def test_without_steps_a_client_predicts_with_the_servers_model(self):
        self.assertIsNone(made(per_fedavg, adapt_steps=0)(toy.task()).personalise)

    def test_what_travels(self):
        shapes = toy.reference("per_fedavg")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(alpha=-0.1), "^alpha=-0.1 must be at least 0$"),
        (dict(delta=0.0), "^delta=0.0 must be positive$"),
        (dict(adapt_steps=-1), "^adapt_steps=-1 must be at least 0$"),
        (dict(hessian="full"), "^hessian='full' must be one of 'none', 'difference', 'exact'$"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(per_fedavg, **arguments))

    def test_of_a_linear_loss_no_second_order_term_is_left(self):
        """Nor any adaptation: its gradient is the same at all weights. Least squares have such a term."""
        settings = dict(optimizer=local_training.sgd(0.1), epochs=2, batch=2)

        def run(method, loss=quadratics.linear, **more):
            return quadratics.weights(quadratics.run(functools.partial(method, **settings, **more), 2, loss=loss).server.net)

        step = dict(alpha=0.3, delta=0.05)
        plain, curved = run(per_fedavg, **step), [run(per_fedavg, hessian=h, **step) for h in ("difference", "exact")]
        for other in (*curved, run(fedavg, weights="uniform")):
            np.testing.assert_allclose(other, plain, rtol=1e-6)
        apart = run(per_fedavg, None, **step) - run(per_fedavg, None, hessian="exact", **step)
        self.assertGreater(np.abs(apart).max(), 1e-3)
