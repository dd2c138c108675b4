"""FedAMP and HeurFedAMP in loops over pairs of clients, and their limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort, Net
from fedjax_core.training import local_training
from methods.fedamp import cosine_similarities, fedamp, squared_distances
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import STEPS, ended, made, one, simulate
from tests.methods.test_local import of


def pulled(params, stats, x, y, given):
    """Cross-entropy + rho / 2 |w - u|^2."""
    rho, u = given
    outputs, stats = MODEL.apply(Net(params, stats), x, train=True)
    apart = sum(jnp.sum((a - b) ** 2) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(u), strict=True))
    ce = naive.cross_entropy(outputs["logits"], y)
    return ce + rho / 2 * apart, (stats, outputs["logits"], ce)


def flat(params):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(params)])


def by_distance(w, alpha, sigma):
    xi = np.zeros((len(w), len(w)))
    for i in range(len(w)):
        for j in range(len(w)):
            if i != j:
                xi[i, j] = alpha * np.exp(-np.sum((w[i] - w[j]) ** 2) / sigma) / sigma
        xi[i, i] = 1 - sum(xi[i])
    return xi


def by_cosine(w, sigma, own_weight):
    xi = np.zeros((len(w), len(w)))
    for i in range(len(w)):
        near = {j: np.exp(sigma * w[i] @ w[j] / np.linalg.norm(w[i]) / np.linalg.norm(w[j])) for j in range(len(w)) if j != i}
        for j, value in near.items():
            xi[i, j] = (1 - own_weight) * value / sum(near.values())
        xi[i, i] = own_weight
    return xi


def oracle(rounds, rho, attention):
    """All clients' networks and cloud models."""
    clients = naive.rows(toy.data())
    first = MODEL.init(naive.stream(0, naive.INIT))
    w, u = [tuple(first)] * len(clients), [first.params] * len(clients)
    for r in range(rounds):
        came = naive.cohort(0, r, len(clients), 5)
        for i in came:
            key = naive.client_key(0, r, i)
            w[i] = naive.train(MODEL, *w[i], *clients[i], key, epochs=2, whole=pulled, given=(rho, u[i]), **STEPS)[:2]
        xi = attention([flat(w[i][0]) for i in came])
        for row, i in zip(xi, came, strict=True):
            u[i] = jax.tree.map(
                lambda *leaves, row=row: sum(x * leaf for x, leaf in zip(row, leaves, strict=True)), *(w[j][0] for j in came)
            )
    return w, u


COHORT = Cohort(jnp.arange(5), jnp.ones(5, jnp.int32))


class FedAMPTest(chex.TestCase):
    def test_equals_the_loops(self):
        state = toy.reference("fedamp")[2]
        w, u = oracle(2, 0.7, functools.partial(by_distance, alpha=0.1, sigma=0.5))
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(tuple(one(state.clients[0], i)), w[i], atol=5e-6)
            chex.assert_trees_all_close(one(state.server, i), u[i], atol=5e-6)

    @parameterized.named_parameters(
        ("distance", dict(alpha=1.0, sigma=20.0), functools.partial(by_distance, alpha=1.0, sigma=20.0)),
        ("none", dict(alpha=0.0), lambda w: np.eye(len(w))),
        (
            "cosine",
            dict(attention="cosine", sigma=2.0, own_weight=0.3),
            functools.partial(by_cosine, sigma=2.0, own_weight=0.3),
        ),
    )
    def test_cloud_models_equal_the_loops(self, arguments, attention):
        models = jax.vmap(lambda i: MODEL.init(jax.random.fold_in(jax.random.key(0), i)).params)(jnp.arange(5))
        algorithm = made(fedamp, **arguments)(toy.task())
        clouds, _ = jax.jit(algorithm.server_update)(algorithm.server_init(jax.random.key(3)), models, COHORT, None)
        xi = attention([flat(one(models, i)) for i in range(5)])
        expected = jax.tree.map(lambda w: np.tensordot(xi, w, 1), models)
        chex.assert_trees_all_close(jax.tree.map(lambda u: u[:5], clouds), expected, atol=1e-5)

    def test_without_pull_it_is_local(self):
        clients = ended(made(fedamp, epochs=2, rho=0.0, alpha=0.1, sigma=0.5)).clients[0]
        for i in range(0, toy.CLIENTS, 2):
            chex.assert_trees_all_close(tuple(one(clients, i)), of(toy.reference("local")[2], i), atol=1e-6)

    def test_without_attention_a_client_is_pulled_to_its_own_last_model(self):
        """Which is not local training."""
        state = ended(made(fedamp, epochs=2, rho=0.7, alpha=0.0))
        w, u = oracle(2, 0.7, lambda w: np.eye(len(w)))
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(tuple(one(state.clients[0], i)), w[i], atol=5e-6)
            chex.assert_trees_all_close(one(state.server, i), u[i], atol=5e-6)
        local = of(toy.reference("local")[2], 0)[0]["head"]["bias"]
        self.assertGreater(np.abs(one(state.clients[0], 0).params["head"]["bias"] - local).max(), 1e-4)

    def test_alike_clients_have_their_own_model_for_a_cloud(self):
        alike = jax.tree.map(lambda x: jnp.stack([x] * 5), MODEL.init(jax.random.key(3)).params)
        algorithm = made(fedamp, alpha=0.1, sigma=0.5)(toy.task())
        clouds, said = jax.jit(algorithm.server_update)(algorithm.server_init(jax.random.key(0)), alike, COHORT, None)
        for i in range(5):
            chex.assert_trees_all_close(one(clouds, i), one(alike, 0), atol=1e-5)
        self.assertAlmostEqual(float(said["own_weight"][0] / said["own_weight"][1]), 1 - 4 * 0.1 / 0.5, places=5)

    def test_distances_and_cosines(self):
        stacked = jax.tree.map(
            lambda *x: jnp.stack(x), *(jax.tree.map(lambda p: p + 10, MODEL.init(jax.random.key(i)).params) for i in range(4))
        )
        w = [flat(one(stacked, i)) for i in range(4)]
        apart = [[np.sum((a - b) ** 2) for b in w] for a in w]
        np.testing.assert_allclose(squared_distances(stacked), apart, rtol=1e-5)
        np.testing.assert_allclose(
            cosine_similarities(stacked), [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in w] for a in w], rtol=1e-5
        )

    def test_far_models_are_mixed_by_the_nearest(self):
        """As in the loop, although exp(-sigma) is 0 in float32."""
        w = [np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([-1.0, 0.2])]
        update = fedamp(
            toy.task(), optimizer=local_training.sgd(0.1), attention="cosine", sigma=200.0, own_weight=0.3
        ).server_update
        cohort = Cohort(jnp.arange(3), jnp.full(3, 5))
        clouds = np.asarray(update(jnp.zeros((3, 2)), jnp.asarray(np.stack(w), jnp.float32), cohort, jax.random.key(0))[0])
        np.testing.assert_allclose(clouds, by_cosine(w, 200.0, 0.3) @ np.stack(w), atol=1e-5)

    def test_what_travels(self):
        shapes = toy.reference("fedamp")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3)
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(alpha=-1.0), "^alpha=-1.0 must be at least 0$"),
        (dict(sigma=0.0), "^sigma=0.0 must be positive$"),
        (dict(rho=float("nan")), "^rho=nan must be "),
        (dict(attention="cos"), "attention='cos' must be one of 'distance', 'cosine'"),
        (dict(own_weight=1.5), r"own_weight=1.5 must be in \[0, 1\]"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(fedamp, **arguments))
