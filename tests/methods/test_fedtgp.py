"""FedTGP in loops over clients, classes and the means that came in; and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.engine import client_loop, simulator
from fedjax_core.nn import count_parameters
from fedjax_core.task import make_task
from fedjax_core.training import local_training
from methods.fedproto import Prototypes, fedproto
from methods.fedtgp import adaptive_margin, fedtgp, generate_prototypes, init_generator
from methods.local import local
from tests import naive, toy
from tests.methods.test_fedproto import regulariser
from tests.methods.test_fedprox import compiled, one_round, rows_of

K, D, SERVER = toy.CLASSES, 6, 5
MODELS = toy.task_alike(6).model, toy.task_alike(7).model


def mean_features(model, net, x, y):
    """[(mean feature, class)] of one client, in evaluation mode."""
    z = np.asarray(model.features(net, x)[0])
    return [(z[y == c].mean(0), c) for c in sorted(set(y.tolist()))]


def prototype(params, c):
    hidden = params["embedding"][c] @ params["hidden"]["kernel"] + params["hidden"]["bias"]
    return jnp.maximum(hidden, 0) @ params["out"]["kernel"] + params["out"]["bias"]


def contrast(params, stats, x, y, delta):
    """The mean, over means that came in, of -log of the share of the own prototype, which is delta farther away."""
    total, distances = 0.0, []
    for mean, k in zip(x, y, strict=True):
        apart = jnp.stack([jnp.sqrt(jnp.sum((mean - prototype(params, c)) ** 2)) for c in range(K)])
        own = jnp.exp(-(apart[k] + delta))
        total -= jnp.log(own / (own + jnp.sum(jnp.exp(-apart)) - jnp.exp(-apart[k])))
        distances.append(-apart)
    return total / len(y), (stats, jnp.stack(distances), total / len(y))


def margin_in_loops(means, most):
    """`means`: [(mean, class)]."""
    centres = {c: np.mean([m for m, k in means if k == c], 0) for c in {k for _, k in means}}
    gaps = [min(np.linalg.norm(a - b) for j, b in centres.items() if j != i) for i, a in centres.items() if len(centres) > 1]
    return min([max(gaps), most]) if gaps else most


def oracle(rounds, start):
    """(networks of all clients, generator, prototypes)."""
    clients = naive.rows(toy.data())
    models = [MODELS[i % 2] for i in range(len(clients))]
    w = [model.init(naive.stream(0, naive.INIT)) for model in models]
    psi, means, known, margins = start, np.zeros((K, D), np.float32), np.zeros(K, bool), []
    for r in range(rounds):
        received = []
        for i in sorted(naive.cohort(0, r, len(clients), 5)):
            settings = dict(epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5, given=(1.0, means, known))
            whole = naive.with_term(models[i], regulariser)
            trained = naive.train(None, *w[i], *clients[i], naive.client_key(0, r, i), whole=whole, **settings)
            w[i] = type(w[i])(trained.params, trained.stats)
            received += mean_features(models[i], w[i], *clients[i])
        delta = margin_in_loops(received, 0.5)
        margins.append(delta)
        x, y = np.stack([m for m, _ in received]), np.array([c for _, c in received])
        key = naive.stream(0, SERVER, r)
        psi = naive.train(None, psi, {}, x, y, key, epochs=3, batch=4, lr=0.01, whole=contrast, given=jnp.float32(delta)).params
        means, known = np.stack([prototype(psi, c) for c in range(K)]), np.ones(K, bool)
    return w, psi, means, margins


def uplink_numbers(builder, classes, features=512, **arguments):
    """How many numbers a client sends, with so many classes and features."""
    task = make_task(toy.model(features, outputs=classes), classes=classes, population=5)
    algorithm = builder(task, optimizer=local_training.sgd(0.1), **arguments)

    def uplink(key, data):
        server = algorithm.server_init(key)
        client = algorithm.client_init(key, server, jnp.int32(0))
        return algorithm.client_update(algorithm.broadcast(server, jnp.int32(0)), client, data, key).uplink

    return count_parameters(jax.eval_shape(uplink, jax.random.key(0), rows_of(0)))


class FedTGPTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, before, after = toy.reference("fedtgp")
        w, psi, means, _ = oracle(2, before.server.generator)
        chex.assert_trees_all_close(after.server.generator, psi, atol=5e-6)
        chex.assert_trees_all_close(after.server.prototypes.means, means, atol=5e-6)
        self.assertTrue(after.server.prototypes.known.all())
        for i in range(toy.CLIENTS):
            found = jax.tree.map(lambda x, i=i: x[i // 2], after.clients[i % 2])
            chex.assert_trees_all_close(found, w[i], atol=5e-6)
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), before.server.generator, after.server.generator)
        self.assertGreater(min(jax.tree.leaves(moved)), 1e-4)  # every part of it learns

    @parameterized.parameters(0.2, 0.5, 100.0)
    def test_the_margin(self, most):
        rng = np.random.default_rng(0)
        means = [(rng.normal(size=D).astype(np.float32), c) for c in (0, 2, 2, 3, 3, 0)]
        held = np.array([True, False, True, True])
        centres = [np.mean([m for m, k in means if k == c], 0) if held[c] else np.full(D, 9.0) for c in range(4)]
        found = adaptive_margin(jnp.asarray(np.stack(centres)), jnp.asarray(held), most)
        self.assertAlmostEqual(float(found), float(margin_in_loops(means, most)), places=5)

    def test_of_one_class_alone_the_margin_is_the_largest(self):
        held = jnp.array([False, True, False])
        self.assertEqual(adaptive_margin(jnp.zeros((K, D)), held, 7.0), 7.0)
        self.assertEqual(adaptive_margin(jnp.zeros((K, D)), jnp.zeros(K, bool), 7.0), 7.0)

    def test_the_margin_moves_the_prototypes(self):
        ends = []
        for most in (0.0, 0.5):
            sim = toy.simulate("fedtgp")
            algorithm = sim.spec.bound_groups[0].build(sim.spec.bound_groups[0].task, margin=most)
            server = algorithm.server_init(jax.random.key(0))
            rng = np.random.default_rng(1)
            sent = jnp.asarray(rng.normal(size=(2, K, D)), jnp.float32), jnp.asarray([[1.0, 2.0, 0.0], [1.0, 1.0, 1.0]])
            cohort = Cohort(jnp.array([3, 1]), jnp.array([3, 3]))
            ends.append(jax.jit(algorithm.server_update)(server, sent, cohort, jax.random.key(2))[0])
        self.assertGreater(np.abs(ends[0].prototypes.means - ends[1].prototypes.means).max(), 1e-4)

    def test_how_many_examples_a_class_has_does_not_count(self):
        algorithm = fedtgp(toy.task(), optimizer=local_training.sgd(0.1), server_epochs=2)
        server, cohort = algorithm.server_init(jax.random.key(0)), Cohort(jnp.array([3, 1]), jnp.array([3, 3]))
        means = jnp.asarray(np.random.default_rng(1).normal(size=(2, K, D)), jnp.float32)
        update = jax.jit(algorithm.server_update)
        few, many = (update(server, (means, c), cohort, jax.random.key(2))[0] for c in (jnp.ones((2, K)), 5 * jnp.ones((2, K))))
        chex.assert_trees_all_equal(few, many)

    def test_lam_zero_is_local(self):
        net = MODELS[0].init(jax.random.key(0))
        alone = one_round(compiled(local), (), net).state
        sent = Prototypes(jnp.asarray(np.random.default_rng(0).normal(size=(K, D)), jnp.float32), jnp.ones(K, bool))
        chex.assert_trees_all_close(one_round(compiled(fedtgp, lam=0.0), sent, net).state, alone, atol=1e-7)

    def test_numbers(self):
        """530,432 of the generator with 10 classes and 512 features (FedHPL, Table 9: 0.506 of 2^20); 5,130 up."""
        numbers = [count_parameters(jax.eval_shape(lambda k=k: init_generator(jax.random.key(0), k, 512))) for k in (10, 100)]
        self.assertEqual(numbers, [530_432, 10 * 512 + 90 * 512 + 525_312])
        self.assertEqual([round(n / 2**20, 3) for n in numbers], [0.506, 0.550])
        shapes = toy.reference("fedtgp")[0].spec.shapes
        self.assertEqual((shapes.up, shapes.down), (4 * K * (D + 1), 4 * K * D + K))
        for builder in (fedtgp, fedproto):
            self.assertEqual([uplink_numbers(builder, k) for k in (10, 100)], [5_130, 51_300])

    def test_prototypes_are_made_of_their_vectors(self):
        psi = init_generator(jax.random.key(1), K, D)
        chex.assert_trees_all_close(generate_prototypes(psi), jnp.stack([prototype(psi, c) for c in range(K)]), atol=1e-6)

    def test_features_of_different_number_are_refused(self):
        make = functools.partial(fedtgp, optimizer=local_training.sgd(0.1), batch=toy.BATCH)
        with self.assertRaisesRegex(ValueError, "toy6 has 6, toy7 has 7; fedtgp exchanges features, so all need the same number"):
            simulator.Simulator(simulator.build_spec(toy.groups(make, mixed=True), toy.data(), plan=client_loop.Plan(1, 1)))

    @parameterized.parameters(
        (dict(margin=-1.0), "margin=-1.0 must be at least 0"),
        (dict(lam=-1.0), "lam=-1.0 must be at least 0"),
        (dict(server_lr=0.0), "server_lr=0.0 must be positive"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            fedtgp(toy.task(), optimizer=local_training.sgd(0.1), **arguments)
