"""MOON in loops, and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.engine import client_loop, simulator
from fedjax_core.nn.projection_head import with_projection
from fedjax_core.task import make_task
from fedjax_core.training import local_training
from fedjax_core.training.local_batch_norm import with_local_statistics
from methods.fedavg import fedavg
from methods.moon import Client, contrastive_loss, moon
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedprox import compiled, one_round

SIZE, TAU = 4, 0.5
WIDER = with_projection(MODEL, toy.CLASSES, SIZE)


def contrastive(params, outputs, x, y, given):
    """mu times the mean over the rows of -log of the global model's share."""
    mu, tau, near, far = given
    total = 0.0
    for z, z_glob, z_prev in zip(outputs["features"], WIDER.features(near, x)[0], WIDER.features(far, x)[0], strict=True):
        a, b = (jnp.exp(jnp.sum(naive.direction(z) * naive.direction(other)) / tau) for other in (z_glob, z_prev))
        total += -jnp.log(a / (a + b))
    return mu * total / len(y)


def oracle(seed, rounds, *, mu):
    """The global model and the clients' last own models, by id."""
    clients, previous = naive.rows(toy.data()), {}
    w = WIDER.init(naive.stream(seed, naive.INIT))
    net = type(w)
    for r in range(rounds):
        deltas, share = [], []
        for i in naive.cohort(seed, r, len(clients), 5):
            given = (mu if i in previous else 0.0, TAU, w, previous.get(i, w))
            settings = dict(epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5, given=given)
            whole = naive.with_term(WIDER, contrastive)
            trained = naive.train(None, *w, *clients[i], naive.client_key(seed, r, i), whole=whole, **settings)
            previous[i] = net(trained.params, trained.stats)
            deltas.append(naive.minus(previous[i], w))
            share.append(len(clients[i][1]))
        w = naive.plus(w, naive.mean(deltas, share))
    return w, previous


def update(mu=1.0, tau=TAU):
    return compiled(moon, mu=mu, tau=tau, projection=SIZE)


def nets():
    """A global and a previous model."""
    return WIDER.init(jax.random.key(0)), WIDER.init(jax.random.key(1))


class MoonTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("moon")
        w, previous = oracle(0, 2, mu=1.0)
        self.assertGreater(10 - len(previous), 1)  # some took part twice
        chex.assert_trees_all_close(after.server, w, atol=1e-5)
        (clients,) = after.clients
        for i in range(toy.CLIENTS):
            self.assertEqual(float(clients.trained[i]), float(i in previous))
            if i in previous:
                chex.assert_trees_all_close(jax.tree.map(lambda x, i=i: x[i], clients.previous), previous[i], atol=1e-5)

    def test_the_network_is_body_projection_head(self):
        net, x = nets()[0], toy.data().test.x
        self.assertEqual(set(net.params), {"body", "projection", "head"})
        z = np.asarray(MODEL.features(MODEL.init(jax.random.key(0)), x)[0])
        hidden, out, head = (jax.tree.map(np.asarray, p) for p in (*net.params["projection"].values(), net.params["head"]))
        projection = np.maximum(z @ hidden["kernel"] + hidden["bias"], 0) @ out["kernel"] + out["bias"]
        outputs, _ = WIDER.apply(net, x)
        np.testing.assert_allclose(outputs["features"], projection, atol=1e-5)
        np.testing.assert_allclose(outputs["logits"], projection @ head["kernel"] + head["bias"], atol=1e-5)
        self.assertEqual(outputs["features"].shape, (30, SIZE))

    def test_mu_zero_is_fedavg_on_the_same_network(self):
        plain = compiled(fedavg, task=make_task(WIDER, classes=toy.CLASSES, population=toy.CLIENTS))
        w, previous = nets()
        expected = one_round(plain, w).uplink
        for mu, trained in [(0.0, 1.0), (1.0, 0.0)]:  # nor is there a term in a client's first round
            out = one_round(update(mu), w, Client(previous, jnp.float32(trained)))
            chex.assert_trees_all_close(out.uplink, expected, atol=1e-7)
            chex.assert_trees_all_close(out.state.previous, naive.plus(w, expected), atol=1e-6)
            self.assertEqual(float(out.state.trained), 1.0)

    def test_a_previous_model_equal_to_the_global_one_pulls_nowhere(self):
        w, _ = nets()
        without, with_it = (one_round(update(), w, Client(w, jnp.float32(trained))) for trained in (0, 1))
        chex.assert_trees_all_close(without.uplink, with_it.uplink, atol=1e-6)

    def test_mu_tau_and_the_previous_model_move_the_client(self):
        w, previous = nets()
        base = one_round(update(), w, Client(previous, jnp.float32(1))).uplink.params
        for other, far in [(update(0.0), previous), (update(tau=0.2), previous), (update(), WIDER.init(jax.random.key(2)))]:
            moved = one_round(other, w, Client(far, jnp.float32(1))).uplink.params
            self.assertGreater(np.abs(moved["body"]["kernel"] - base["body"]["kernel"]).max(), 1e-4)

    def test_contrast_lies_in_its_range_and_leaves_out_padding(self):
        rng = np.random.default_rng(0)
        z, near, far = rng.normal(size=(3, 6, 4)).astype(np.float32)
        mask = np.array([1, 1, 0, 1, 1, 0], bool)
        value = float(contrastive_loss(z, near, far, mask, TAU))
        self.assertBetween(value, 0, np.log(1 + np.exp(2 / TAU)))
        near[~mask], far[~mask] = 7.0, -7.0
        self.assertAlmostEqual(float(contrastive_loss(z, near, far, mask, TAU)), value, places=6)
        self.assertAlmostEqual(float(contrastive_loss(z, -z, z, mask, TAU)), np.log(1 + np.exp(2 / TAU)), places=5)
        self.assertAlmostEqual(float(contrastive_loss(z, far, far, mask, TAU)), np.log(2), places=6)

    def test_statistics_may_stay_with_the_client(self):
        make = functools.partial(moon, optimizer=local_training.sgd(0.1), projection=SIZE, batch=toy.BATCH)
        groups = toy.groups(with_local_statistics(make))
        spec = simulator.build_spec(groups, toy.data(), cohort=5, plan=client_loop.Plan(1, 1))  # checks that states keep their form
        whole = toy.reference("moon")[0].spec.shapes
        self.assertEqual((whole.down - spec.shapes.down, whole.up - spec.shapes.up), (4 * toy.INPUTS,) * 2)

    def test_features_of_an_adapted_network_need_no_head(self):
        build = functools.partial(moon, epochs=1, batch=toy.BATCH, mu=1.0, projection=4)
        sim = toy.Case(build, task=functools.partial(toy.task_adapted, dropout=0.0, rank=2, alpha=4.0)).simulate()
        _, records = sim.run_rounds(sim.init(0), 1)
        self.assertTrue(np.isfinite(records[0]["train/loss"]))

    def test_what_travels(self):
        shapes = toy.reference("moon")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 6 + 6) + (6 * SIZE + SIZE) + (SIZE * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(mu=-1.0), "mu=-1.0 must be at least 0"),
        (dict(tau=0.0), "tau=0.0 must be positive"),
        (dict(projection=0), "projection=0 must be at least 1"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            moon(toy.task(), optimizer=local_training.sgd(0.1), **wrong)
