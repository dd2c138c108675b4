"""FedNH in loops over clients, rows and classes, and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.engine import client_loop, simulator
from fedjax_core.task import make_task
from fedjax_core.training import local_training
from fedjax_core.training.local_batch_norm import with_local_statistics
from methods.fednh import Server, fednh
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedprox import compiled, one_round

K, D = toy.CLASSES, 6


def normalised(net, x, train=False):
    """z / |z|, and the statistics."""
    z, stats = MODEL.features(net, x, train=train)
    return jnp.stack([naive.direction(row) for row in z]), stats


def cosine_loss(params, stats, x, y, given):
    """Cross-entropy of the scaled cosines with the prototypes, which are given."""
    net = type(jax.eval_shape(MODEL.init, jax.random.key(0)))
    u, stats = normalised(net({"body": params["body"]}, stats), x, train=True)
    logits = params["scale"] * jnp.stack([jnp.stack([jnp.sum(row * w) for w in given]) for row in u])
    ce = naive.cross_entropy(logits, y)
    return ce, (stats, logits, ce)


def oracle(seed, rounds, prototypes, *, rho, scale):
    """(body and scale, statistics, prototypes)."""
    clients = naive.rows(toy.data())
    start = MODEL.init(naive.stream(seed, naive.INIT))
    w = {"body": start.params["body"], "scale": jnp.float32(scale)}, start.stats
    for r in range(rounds):
        deltas, received = [], {c: [] for c in range(K)}
        for i in naive.cohort(seed, r, len(clients), 5):
            x, y = clients[i]
            settings = dict(epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5, whole=cosine_loss, given=prototypes)
            trained = naive.train(None, *w, x, y, naive.client_key(seed, r, i), **settings)
            u = np.asarray(normalised(type(start)({"body": trained.params["body"]}, trained.stats), x)[0])
            for c in set(y.tolist()):
                mean = u[y == c].mean(0)
                received[c].append((mean / np.linalg.norm(mean), int((y == c).sum())))
            deltas.append(naive.minus((trained.params, trained.stats), w))
        w = naive.plus(w, naive.mean(deltas, [1] * len(deltas)))
        prototypes = np.array(prototypes)
        for c, uploads in received.items():
            if uploads:
                mean = sum(n * mu for mu, n in uploads) / sum(n for _, n in uploads)
                moved = rho * prototypes[c] + (1 - rho) * mean / np.linalg.norm(mean)
                prototypes[c] = moved / np.linalg.norm(moved)
    return *w, prototypes


def build(task=None, **settings):
    return fednh(task or toy.task(), optimizer=local_training.sgd(0.1), epochs=2, batch=toy.BATCH, **settings)


class FedNHTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, before, after = toy.reference("fednh")
        params, stats, prototypes = oracle(0, 2, before.server.prototypes, rho=0.5, scale=4.0)
        chex.assert_trees_all_close(tuple(after.server.net), (params, stats), atol=1e-5)
        chex.assert_trees_all_close(after.server.prototypes, prototypes, atol=1e-5)

    def test_prototypes_have_length_one_and_are_orthonormal_at_first(self):
        _, before, after = toy.reference("fednh")
        np.testing.assert_allclose(before.server.prototypes @ before.server.prototypes.T, np.eye(K), atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(after.server.prototypes, axis=1), np.ones(K), atol=1e-6)
        self.assertGreater(np.abs(after.server.prototypes - before.server.prototypes).max(), 1e-2)

    def test_with_more_classes_than_features_they_are_spread(self):
        task = make_task(toy.model(2), classes=7, population=toy.CLIENTS)
        rows = np.asarray(build(task).server_init(jax.random.key(0)).prototypes)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), np.ones(7), atol=1e-6)
        self.assertLess(max((rows @ rows.T)[a, b] for a in range(7) for b in range(a)), 1 - 1e-4)

    def test_no_client_trains_the_prototypes(self):
        server = build().server_init(jax.random.key(0))
        self.assertEqual(set(server.net.params), {"body", "scale"})
        out = one_round(compiled(fednh), server)
        self.assertEqual(jax.tree.structure(out.uplink[0]), jax.tree.structure(server.net))
        self.assertGreater(abs(float(out.uplink[0].params["scale"])), 1e-5)
        self.assertGreater(np.abs(out.uplink[0].params["body"]["kernel"]).max(), 1e-3)

    def test_rho_says_what_stays(self):
        server = build().server_init(jax.random.key(0))
        _, (means, counts) = one_round(compiled(fednh), server).uplink
        self.assertGreater(float(jnp.min(counts)), 0)
        collected = jax.tree.map(jnp.zeros_like, server.net), (2.5 * means, counts)
        for rho, expected in [(1.0, server.prototypes), (0.0, means)]:
            new, _ = jax.jit(build(rho=rho).server_update)(server, collected, None, None)
            np.testing.assert_allclose(new.prototypes, expected, atol=1e-6)

    def test_a_class_without_examples_keeps_its_prototype(self):
        server = build().server_init(jax.random.key(0))
        delta, (means, counts) = one_round(compiled(fednh), server, i=7).uplink  # client 7 has no class 0
        self.assertEqual(float(counts[0]), 0)
        new, _ = jax.jit(build().server_update)(server, (delta, (means, counts)), None, None)
        np.testing.assert_array_equal(new.prototypes[0], server.prototypes[0])
        self.assertGreater(np.abs(new.prototypes[1:] - server.prototypes[1:]).max(), 1e-2)

    def test_the_scale_moves_the_client(self):
        server = build().server_init(jax.random.key(0))
        ends = []
        for scale in (1.0, 4.0):
            sent = Server(server.net._replace(params=server.net.params | {"scale": jnp.float32(scale)}), server.prototypes)
            ends.append(one_round(compiled(fednh), sent).uplink[0].params["body"]["kernel"])
        self.assertGreater(np.abs(ends[0] - ends[1]).max(), 1e-3)
        self.assertEqual(float(build(scale=7.0).server_init(jax.random.key(0)).net.params["scale"]), 7.0)

    def test_statistics_may_stay_with_the_client(self):
        make = functools.partial(fednh, optimizer=local_training.sgd(0.1), batch=toy.BATCH)
        groups = toy.groups(with_local_statistics(make))
        spec = simulator.build_spec(groups, toy.data(), cohort=5, plan=client_loop.Plan(1, 1))  # checks that states keep their form
        whole = toy.reference("fednh")[0].spec.shapes
        self.assertEqual((whole.down - spec.shapes.down, whole.up - spec.shapes.up), (4 * toy.INPUTS,) * 2)

    def test_what_travels(self):
        shapes = toy.reference("fednh")[0].spec.shapes
        numbers = (5 * 6 + 6) + 1 + 5
        self.assertEqual((shapes.down, shapes.up), (4 * (numbers + K * D), 4 * (numbers + K * (D + 1))))

    @parameterized.parameters(
        (dict(rho=1.5), r"rho=1.5 must be in \[0, 1\]"),
        (dict(scale=0.0), "scale=0.0 must be positive"),
        (dict(weights="sizes"), "weights='sizes' is not one of"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            build(**wrong)
