"""FedProto, personal and with a global model, in loops over clients, rows and classes; and their limits."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.engine import client_loop, simulator
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.fedproto import Prototypes, fedproto, init_prototypes, prototype_loss, update_prototypes
from methods.fedproto_g import Server, fedproto_g
from methods.local import local
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedprox import compiled, one_round, rows_of

K, D = toy.CLASSES, 6


def regulariser(params, outputs, x, y, given):
    """lam times the mean squared distance of features to the prototype of their class; nothing for an unknown class."""
    lam, means, known = given
    squares = [jnp.where(known[c], jnp.sum((z - means[c]) ** 2) / D, 0.0) for z, c in zip(outputs["features"], y, strict=True)]
    return lam * sum(squares) / len(y)


def class_means(net, x, y):
    """{class: (mean feature, number)} of one client, in evaluation mode."""
    z = np.asarray(MODEL.features(net, x)[0])
    return {c: (z[y == c].mean(0), int((y == c).sum())) for c in set(y.tolist())}


def oracle(seed, rounds, *, together, lam=1.0):
    """(the global model or all clients' models, means, known)."""
    clients = naive.rows(toy.data())
    start = MODEL.init(naive.stream(seed, naive.INIT))
    net, w = type(start), [start] * (1 if together else len(clients))
    means, known = np.zeros((K, D), np.float32), np.zeros(K, bool)
    for r in range(rounds):
        received, deltas, share = {c: [] for c in range(K)}, [], []
        for i in naive.cohort(seed, r, len(clients), 5):
            place = 0 if together else i
            settings = dict(epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5, given=(lam, means, known))
            whole = naive.with_term(MODEL, regulariser)
            trained = naive.train(None, *w[place], *clients[i], naive.client_key(seed, r, i), whole=whole, **settings)
            mine = net(trained.params, trained.stats)
            for c, upload in class_means(mine, *clients[i]).items():
                received[c].append(upload)
            if together:
                deltas.append(naive.minus(mine, w[0]))
                share.append(len(clients[i][1]))
            else:
                w[i] = mine
        if together:
            w[0] = naive.plus(w[0], naive.mean(deltas, share))
        means, known = means.copy(), known.copy()
        for c, uploads in received.items():
            if uploads:
                means[c] = sum(n * mean for mean, n in uploads) / sum(n for _, n in uploads)
                known[c] = True
    return w, means, known


def prototypes(seed=0):
    return Prototypes(jnp.asarray(np.random.default_rng(seed).normal(size=(K, D)), jnp.float32), jnp.ones(K, bool))


class FedProtoTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("fedproto")
        w, means, known = oracle(0, 2, together=False)
        chex.assert_trees_all_close(after.server.means, means, atol=5e-6)
        np.testing.assert_array_equal(after.server.known, known)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(jax.tree.map(lambda x, i=i: x[i], after.clients[0]), w[i], atol=5e-6)

    def test_with_a_global_model_equals_the_loops(self):
        _, _, after = toy.reference("fedproto_g")
        (w,), means, known = oracle(0, 2, together=True)
        chex.assert_trees_all_close(after.server.net, w, atol=5e-6)
        chex.assert_trees_all_close(after.server.prototypes.means, means, atol=5e-6)
        np.testing.assert_array_equal(after.server.prototypes.known, known)

    def test_features_of_training_are_those_of_the_last_epoch(self):
        """With one minibatch an epoch: those of the network that it begins with, in training mode; the network is the same."""
        x, y = naive.rows(toy.data())[1]
        net, sent, data = MODEL.init(jax.random.key(0)), prototypes(), rows_of(1)
        key, made = jax.random.key(3), {}
        for epochs in (1, 2):
            for features in ("trained", "training"):
                settings: Any = dict(optimizer=local_training.sgd(0.1), epochs=epochs, batch=64, features=features)
                made[epochs, features] = jax.jit(fedproto(toy.task(), **settings).client_update)(sent, net, data, key)
        for epochs, begins in ((1, net), (2, made[1, "trained"].state)):
            out = made[epochs, "training"]
            chex.assert_trees_all_equal(out.state, made[epochs, "trained"].state)
            z = np.asarray(MODEL.apply(begins, x, key, train=True, mask=np.ones(len(y), bool))[0]["features"])
            means, counts = out.uplink
            np.testing.assert_array_equal(counts, np.bincount(y, minlength=K))
            for c in set(y.tolist()):
                np.testing.assert_allclose(means[c], z[y == c].mean(0), rtol=1e-4, atol=1e-5)
            self.assertEqual(set(out.metrics), {"accuracy", "loss"})
            self.assertGreater(np.abs(means - made[epochs, "trained"].uplink[0]).max(), 1e-3)

    def test_features_of_training_need_an_epoch(self):
        for wrong, message in ((dict(epochs=0), "at least 1"), (dict(features="both"), "one of 'trained', 'training'")):
            settings: Any = dict(features="training") | wrong
            with self.assertRaisesRegex(ValueError, message):
                fedproto(toy.task(), optimizer=local_training.sgd(0.1), **settings)

    def test_lam_zero_is_local_or_fedavg(self):
        net = MODEL.init(jax.random.key(0))
        alone = one_round(compiled(local), (), net).state
        chex.assert_trees_all_close(one_round(compiled(fedproto, lam=0.0), prototypes(), net).state, alone, atol=1e-7)
        averaged = one_round(compiled(fedavg), net).uplink
        out = one_round(compiled(fedproto_g, lam=0.0), Server(net, prototypes()))
        chex.assert_trees_all_close(out.uplink[0], averaged, atol=1e-7)

    def test_lam_and_prototypes_move_the_client(self):
        net, task = MODEL.init(jax.random.key(0)), toy.task()
        base = one_round(compiled(fedproto), prototypes(), net).state.params["body"]["kernel"]
        for lam, sent in [(0.0, prototypes()), (1.0, prototypes(1)), (1.0, init_prototypes(task))]:
            moved = one_round(compiled(fedproto, lam=lam) if lam < 1 else compiled(fedproto), sent, net).state
            self.assertGreater(np.abs(moved.params["body"]["kernel"] - base).max(), 1e-3)

    def test_features_on_their_prototype_are_not_moved(self):
        net, x = MODEL.init(jax.random.key(0)), toy.data().test.x[:1]
        batch = local_training.Batch(x, np.array([1]), np.array([True]))
        z = MODEL.features(net, x, train=True, mask=batch.mask)[0]
        sent = Prototypes(jnp.zeros((K, D)).at[1].set(z[0]), jnp.ones(K, bool))
        gradients = [
            jax.grad(lambda net, lam=lam: prototype_loss(MODEL, sent, lam)(net, batch, jax.random.key(0))[0])(net)
            for lam in (0.0, 9.0)
        ]
        chex.assert_trees_all_close(*gradients, atol=1e-6)

    def test_unknown_classes_count_in_the_mean_with_zero(self):
        net, x = MODEL.init(jax.random.key(0)), toy.data().test.x[:4]
        y, mask = np.array([0, 1, 1, 2]), np.array([True, True, True, False])
        sent = prototypes()._replace(known=jnp.array([False, True, True]))
        batch = local_training.Batch(x, y, mask)
        values = [float(prototype_loss(MODEL, sent, lam)(net, batch, jax.random.key(0))[0]) for lam in (0.0, 1.0)]
        z = np.asarray(MODEL.features(net, x, train=True, mask=mask)[0])
        expected = sum(((z[b] - sent.means[1]) ** 2).mean() for b in (1, 2)) / 3
        self.assertAlmostEqual(values[1] - values[0], float(expected), places=5)

    def test_classes_without_owner_keep_their_prototype(self):
        old = prototypes()._replace(known=jnp.array([True, False, False]))
        new = update_prototypes(old, jnp.full((K, D), jnp.nan).at[1].set(2.0), jnp.array([0.0, 3.0, 0.0]))
        np.testing.assert_array_equal(new.means[jnp.array([0, 2])], old.means[jnp.array([0, 2])])
        np.testing.assert_array_equal(new.means[1], np.full(D, 2.0))
        np.testing.assert_array_equal(new.known, [True, True, False])

    @parameterized.parameters("samples", "uniform")
    def test_weights_of_the_prototypes(self, weights):
        net, task = MODEL.init(jax.random.key(0)), toy.task()
        algorithm = fedproto(task, optimizer=local_training.sgd(0.1), weights=weights)
        outs = [one_round(compiled(fedproto), init_prototypes(task), net, i) for i in (0, 7)]
        lifted = [algorithm.collect.map(out.uplink, Cohort(i, 9)) for i, out in enumerate(outs)]
        collected = algorithm.collect.finalize(jax.tree.map(jnp.add, *lifted))
        server, _ = algorithm.server_update(algorithm.server_init(None), collected, None, None)
        rows = naive.rows(toy.data())
        uploads = [class_means(out.state, *rows[i]) for i, out in zip((0, 7), outs, strict=True)]
        for c in range(K):
            parts = [upload[c] for upload in uploads if c in upload]
            shares = [n if weights == "samples" else 1 for _, n in parts]
            expected = sum(s * mean for s, (mean, _) in zip(shares, parts, strict=True)) / sum(shares)
            np.testing.assert_allclose(server.means[c], expected, atol=1e-5)
        self.assertEqual(sum(int(n) for n in outs[1].uplink[1]), int(rows_of(7).size))

    def test_the_nearest_prototype_predicts(self):
        net, x = MODEL.init(jax.random.key(0)), toy.data().test.x
        means = 0.1 * prototypes().means
        sent = Prototypes(means, jnp.array([True, False, True]))
        predict = fedproto(toy.task(), optimizer=local_training.sgd(0.1)).predict["nearest"]
        found = np.argmax(predict(sent, net, x)["logits"], 1)
        z = np.asarray(MODEL.features(net, x)[0])
        means = np.asarray(means)
        self.assertEqual(found.tolist(), [min((0, 2), key=lambda c, row=row: np.sum((row - means[c]) ** 2)) for row in z])
        self.assertLen(set(found.tolist()), 2)

    def test_what_travels(self):
        shapes = toy.reference("fedproto")[0].spec.shapes
        self.assertEqual((shapes.up, shapes.down), (4 * K * (D + 1), 4 * K * D + K))
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        shapes = toy.reference("fedproto_g")[0].spec.shapes
        self.assertEqual((shapes.up, shapes.down), (4 * (numbers + K * (D + 1)), 4 * (numbers + K * D) + K))

    def test_features_of_different_number_are_refused(self):
        make = functools.partial(fedproto, optimizer=local_training.sgd(0.1), batch=toy.BATCH)
        with self.assertRaisesRegex(ValueError, "toy6 has 6, toy7 has 7; fedproto exchanges features"):
            simulator.Simulator(simulator.build_spec(toy.groups(make, mixed=True), toy.data(), plan=client_loop.Plan(1, 1)))

    @parameterized.product(builder=(fedproto, fedproto_g), lam=(-0.1, float("nan")))
    def test_lam_must_not_be_negative(self, builder, lam):
        with self.assertRaisesRegex(ValueError, f"^lam={lam} must be .*at least 0$"):
            builder(toy.task(), optimizer=local_training.sgd(0.1), lam=lam)
