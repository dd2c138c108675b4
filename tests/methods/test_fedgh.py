"""FedGH in loops over clients, classes and the means that came in; and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core import nn
from fedjax_core.algorithm import Cohort
from fedjax_core.engine import client_loop, simulator
from fedjax_core.nn.projection_head import with_projection
from fedjax_core.task import make_task
from fedjax_core.training import local_training
from methods.fedgh import fedgh
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedprox import compiled, one_round
from tests.methods.test_fedtgp import SERVER, mean_features, uplink_numbers

K, D = toy.CLASSES, 4
MODELS = tuple(with_projection(toy.model(hidden), K, D, hidden=False) for hidden in (6, 7))
STEPS = dict(epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)


def of_head(params, stats, x, y, given):
    """Cross-entropy of the head on features."""
    del given
    logits = x @ params["kernel"] + params["bias"][None]
    value = naive.cross_entropy(logits, y)
    return value, (stats, logits, value)


def oracle(rounds):
    """(networks of all clients with the heads they trained, the server's head)."""
    clients = naive.rows(toy.data())
    models = [MODELS[i % 2] for i in range(len(clients))]
    w = [model.init(naive.stream(0, naive.INIT)) for model in models]
    head = w[0].params["head"]
    for r in range(rounds):
        received = []
        for i in sorted(naive.cohort(0, r, len(clients), 5)):
            begun = w[i].params | {"head": head}
            trained = naive.train(models[i], begun, w[i].stats, *clients[i], naive.client_key(0, r, i), **STEPS)
            w[i] = type(w[i])(trained.params, trained.stats)
            received += mean_features(models[i], w[i], *clients[i])
        x, y = np.stack([m for m, _ in received]), np.array([c for _, c in received])
        head = naive.train(None, head, {}, x, y, naive.stream(0, SERVER, r), epochs=2, batch=4, lr=0.1, whole=of_head).params
    return w, head


def sent(seed=1):
    """Means of two clients; the second lacks a class."""
    means = jnp.asarray(np.random.default_rng(seed).normal(size=(2, K, 6)), jnp.float32)
    return means, jnp.asarray([[1.0, 2.0, 1.0], [3.0, 1.0, 0.0]])


class FedGHTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, before, after = toy.reference("fedgh")
        w, head = oracle(2)
        chex.assert_trees_all_close(after.server, head, atol=5e-6)
        for i in range(toy.CLIENTS):
            found = jax.tree.map(lambda x, i=i: x[i // 2], after.clients[i % 2])
            chex.assert_trees_all_close(found, w[i], atol=5e-6)
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), before.server, after.server)
        self.assertGreater(min(jax.tree.leaves(moved)), 1e-3)

    def test_a_client_predicts_under_the_newest_head_or_its_own(self):
        sim, _, after = toy.reference("fedgh")
        view = sim.client_view(sim.compiled.put(after), 3)
        x = toy.data().test.x[:4]
        own = jax.tree.map(lambda p: p[1], after.clients[1])
        newest = own._replace(params=own.params | {"head": after.server})
        for name, net in (("personal", newest), ("own_head", own)):
            found = view.predict(name, view.holds[name], x)["logits"]
            chex.assert_trees_all_close(found, MODELS[1].apply(net, x)[0]["logits"], atol=1e-6)

    def test_the_head_that_was_sent_is_where_training_starts(self):
        net = MODEL.init(jax.random.key(0))
        update, head = compiled(fedgh), net.params["head"]
        ends = [one_round(update, jax.tree.map(lambda p, s=s: p * s, head), net).state for s in (1.0, -1.0)]
        self.assertGreater(np.abs(ends[0].params["head"]["kernel"] - ends[1].params["head"]["kernel"]).max(), 1e-2)
        other = net._replace(params=net.params | {"head": jax.tree.map(jnp.zeros_like, head)})
        chex.assert_trees_all_equal(one_round(update, head, other).state, one_round(update, head, net).state)

    @parameterized.parameters((0.0, 3), (0.1, 0))
    def test_without_steps_the_head_stays(self, lr, epochs):
        algorithm = fedgh(toy.task(), optimizer=local_training.sgd(0.1), server_lr=lr, server_epochs=epochs)
        head, cohort = algorithm.server_init(jax.random.key(0)), Cohort(jnp.array([3, 1]), jnp.array([3, 3]))
        after, _ = jax.jit(algorithm.server_update)(head, sent(), cohort, jax.random.key(2))
        chex.assert_trees_all_equal(after, head)

    def test_one_full_step_does_not_ask_for_order(self):
        """It is a step on all means at once."""
        algorithm = fedgh(toy.task(), optimizer=local_training.sgd(0.1), server_lr=0.3, server_batch=99)
        head, cohort = algorithm.server_init(jax.random.key(0)), Cohort(jnp.array([3, 1]), jnp.array([3, 3]))
        (means, counts), update = sent(), jax.jit(algorithm.server_update)
        found = [update(head, (means, counts), cohort, jax.random.key(key))[0] for key in (2, 3)]
        chex.assert_trees_all_close(*found, atol=1e-6)
        x = jnp.concatenate([means[0], means[1, :2]])
        gradient = jax.grad(lambda head: of_head(head, {}, x, jnp.array([0, 1, 2, 0, 1]), ())[0])(head)
        chex.assert_trees_all_close(found[0], naive.plus(head, gradient, -0.3), atol=1e-6)

    def test_with_one_class_the_head_never_moves(self):
        task = make_task(toy.model(outputs=1), classes=1, population=toy.CLIENTS)
        algorithm = fedgh(task, optimizer=local_training.sgd(0.1), server_lr=0.3)
        head, cohort = algorithm.server_init(jax.random.key(0)), Cohort(jnp.array([0, 1]), jnp.array([3, 3]))
        collected = jnp.ones((2, 1, 6)), jnp.ones((2, 1))
        chex.assert_trees_all_equal(algorithm.server_update(head, collected, cohort, jax.random.key(2))[0], head)

    def test_what_travels(self):
        """K (D + 1) numbers up: 5,130 with 10 classes and 512 features, 51,300 with 100 (FedHPL, Table 9)."""
        shapes = toy.reference("fedgh")[0].spec.shapes
        self.assertEqual((shapes.up, shapes.down), (4 * K * (D + 1), 4 * (D * K + K)))
        for features, projection in ((512, None), (64, 512)):
            numbers = [uplink_numbers(fedgh, k, features, projection=projection) for k in (10, 100)]
            self.assertEqual(numbers, [5_130, 51_300])

    @parameterized.parameters(("resnet18", 10.907, 10.951), ("resnet34", 20.547, 20.591), ("resnet50", 23.417, 23.461))
    def test_numbers_of_the_projected_networks(self, name, *millions):
        """FedHPL, Table 7, in units of 2^20."""
        for classes, expected in zip((10, 100), millions, strict=True):
            model = with_projection(nn.build(name, classes, (32, 32, 3)), classes, 512, hidden=False)
            numbers = nn.count_parameters(jax.eval_shape(model.init, jax.random.key(0)).params)
            self.assertEqual(round(numbers / 2**20, 3), expected)

    def test_features_of_different_number_are_refused(self):
        make = functools.partial(fedgh, optimizer=local_training.sgd(0.1), batch=toy.BATCH)
        with self.assertRaisesRegex(ValueError, "toy6 has 6, toy7 has 7; fedgh exchanges features"):
            simulator.Simulator(simulator.build_spec(toy.groups(make, mixed=True), toy.data(), plan=client_loop.Plan(1, 1)))

    @parameterized.parameters(
        (dict(server_lr=-0.1), "server_lr=-0.1 must be at least 0"),
        (dict(projection=0), "projection=0 must be at least 1"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            fedgh(toy.task(), optimizer=local_training.sgd(0.1), **arguments)
