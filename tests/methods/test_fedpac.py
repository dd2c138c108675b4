"""FedPAC in loops over classes and pairs of clients, with every support of the shares tried, and its limits."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from methods.fedpac import fedpac, head_weights
from methods.fedrep import fedrep
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import STEPS, ended, made, one, simulate, there

HEAD, K, D = 0x68656164, toy.CLASSES, 6
NET = type(MODEL.init(jax.random.key(0)))


def aligned(params, stats, x, y, given):
    """Cross-entropy, and the mean squared difference of features and targets."""
    lam, targets = given
    outputs, stats = MODEL.apply(NET(params, stats), x, train=True)
    ce = naive.cross_entropy(outputs["logits"], y)
    return ce + lam * jnp.mean((outputs["features"] - targets[y]) ** 2), (stats, outputs["logits"], ce)


def features(params, stats, x):
    return np.asarray(MODEL.features(NET(params, stats), x)[0], np.float64)


def class_means(z, y):
    return {k: np.mean(z[y == k], 0) for k in range(K) if np.any(y == k)}


def shares(i, h, v):
    """The shares by the equal slopes of every support, then without small ones."""
    n = len(v)
    q = np.zeros((n, n))
    for j, l in itertools.product(range(n), repeat=2):
        q[j, l] = sum((h[i][k] - h[j][k]) @ (h[i][k] - h[l][k]) for k in range(K)) + (v[j] if j == l else 0)
    best = None
    for size in range(1, n + 1):
        for support in map(list, itertools.combinations(range(n), size)):
            a = np.zeros(n)
            a[support] = np.linalg.lstsq(q[np.ix_(support, support)] + 1e-12 * np.eye(size), np.ones(size), rcond=None)[0]
            a /= a.sum()
            if a.min() >= 0 and (best is None or a @ q @ a < best[0] - 1e-12):
                best = a @ q @ a, a
    a = np.where(best[1] < 1e-3, 0, best[1])
    return a / a.sum()


def oracle(rounds, lam, rate):
    """(body, statistics), all clients' heads, and the prototypes."""
    clients = naive.rows(toy.data())
    first = MODEL.init(naive.stream(0, naive.INIT))
    body, stats, heads, prototypes = first.params["body"], first.stats, [first.params["head"]] * len(clients), {}
    for r in range(rounds):
        ends, sent, h, v, after, counts = [], [], [], [], [], []
        came = naive.cohort(0, r, len(clients), 5)
        for i in came:
            (x, y), key, params = clients[i], naive.client_key(0, r, i), {"body": body, "head": heads[i]}
            z = features(params, stats, x)
            own, n = class_means(z, y), len(y)
            h.append([np.sum(y == k) / n * own.get(k, np.zeros(D)) for k in range(K)])
            v.append((np.mean(np.sum(z**2, 1)) - sum(m @ m for m in h[-1])) / n)
            targets = np.stack([prototypes.get(k, own.get(k, np.zeros(D))) for k in range(K)]).astype(np.float32)
            steps = STEPS | {"lr": STEPS["lr"] * rate}
            head_key = jax.random.fold_in(key, HEAD)
            half = naive.train(MODEL, params, stats, x, y, head_key, epochs=1, chosen=("head",), **steps)
            given, chosen = (lam if r else 0.0, targets), ("body",)
            end = naive.train(
                MODEL, half.params, half.stats, x, y, key, epochs=2, chosen=chosen, whole=aligned, given=given, **STEPS
            )
            ends.append((end.params["body"], end.stats))
            sent.append(end.params["head"])
            after.append(class_means(features(end.params, end.stats, x), y))
            counts.append({k: np.sum(y == k) for k in range(K)})
        body, stats = naive.mean(ends, [len(clients[i][1]) for i in came])
        for k in range(K):
            holders = [(m[k], c[k]) for m, c in zip(after, counts, strict=True) if k in m]
            if holders:
                prototypes[k] = sum(m * c for m, c in holders) / sum(c for _, c in holders)
        for place, i in enumerate(came):
            heads[i] = naive.mean(sent, shares(place, h, v))
    return (body, stats), heads, prototypes


def weights(i, h, v):
    h = jnp.asarray(h, jnp.float32)
    return np.asarray(head_weights(h[i], h, jnp.asarray(v, jnp.float32), jnp.ones(len(v), bool)))


class FedPACTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("fedpac")
        (body, stats), heads, prototypes = oracle(2, 0.7, 2.0)
        chex.assert_trees_all_close(there(state.server.body.params), {"body": body}, atol=1e-5)
        chex.assert_trees_all_close(state.server.body.stats, stats, atol=1e-5)
        for i, head in enumerate(heads):
            chex.assert_trees_all_close(there(one(state.server.heads.params, i)), {"head": head}, atol=2e-4)
        np.testing.assert_allclose(state.server.prototypes.means, [prototypes[k] for k in range(K)], atol=1e-5)

    def test_alone_and_without_alignment_it_is_fedrep(self):
        state = ended(made(fedpac, lam=0.0, collaborate=False, head_epochs=1, epochs=2))
        other = ended(made(fedrep, head_epochs=1, body_epochs=2))
        chex.assert_trees_all_close(state.server.body, other.server, atol=1e-6)
        chex.assert_trees_all_close(state.server.heads.params, other.clients[0].params, atol=1e-6)

    def test_shares_of_two_clients(self):
        h, v = np.random.default_rng(0).normal(size=(2, K, D)) * 0.3, np.asarray([0.4, 0.7])
        apart = np.sum((h[0] - h[1]) ** 2)
        first = (v[1] + apart) / (v[0] + v[1] + apart)
        np.testing.assert_allclose(weights(0, h, v), [first, 1 - first], atol=1e-4)

    def test_shares_of_alike_clients_are_inverse_to_their_variances(self):
        v = np.asarray([0.1, 0.2, 0.4, 0.8])
        np.testing.assert_allclose(weights(2, np.ones((4, K, D)), v), (1 / v) / np.sum(1 / v), atol=1e-4)

    def test_a_client_unlike_all_others_keeps_its_head(self):
        h = np.random.default_rng(0).normal(size=(4, K, D)) * 100
        for i in range(4):
            np.testing.assert_allclose(weights(i, h, np.ones(4)), np.eye(4)[i], atol=1e-6)

    def test_shares_are_those_of_the_best_support(self):
        for seed in range(3):
            rng = np.random.default_rng(seed)
            h, v = rng.normal(size=(5, K, D)) * 0.2, rng.uniform(0.05, 0.5, 5)
            for i in range(5):
                np.testing.assert_allclose(weights(i, h, v), shares(i, h, v), atol=1e-4)

    def test_shares_of_a_hundred_clients_have_the_least_objective(self):
        """In 40 groups, which differ much more than the clients in them."""
        rng = np.random.default_rng(0)
        group = rng.integers(40, size=100)
        h = 0.7 * rng.normal(size=(40, K, 64))[group] + 0.02 * rng.normal(size=(100, K, 64))
        v = rng.uniform(0.05, 0.5, 100)
        for i in (0, 7):
            apart = (h[i] - h).reshape(100, -1)
            root = np.concatenate([apart.T, np.diag(np.sqrt(v))])  # Q = root' root
            free, _ = scipy.optimize.nnls(np.concatenate([root, 1e4 * np.ones((1, 100))]), np.append(np.zeros(len(root)), 1e4))
            free = np.where(free / free.sum() < 1e-3, 0, free) / free.sum()
            np.testing.assert_allclose(weights(i, h, v), free / free.sum(), atol=2e-3)

    def test_absent_clients_have_no_share(self):
        h, v = np.random.default_rng(0).normal(size=(3, K, D)) * 0.2, np.asarray([0.3, np.nan, 0.2])
        h[1] = np.nan
        active = jnp.asarray([True, False, True])
        a = head_weights(jnp.asarray(h[0], jnp.float32), jnp.asarray(h, jnp.float32), jnp.asarray(v, jnp.float32), active)
        np.testing.assert_allclose(a[jnp.asarray([0, 2])], weights(0, h[[0, 2]], v[[0, 2]]), atol=1e-4)
        self.assertEqual(a[1], 0)

    def test_what_travels(self):
        shapes = toy.reference("fedpac")[0].spec.shapes
        body, head = (5 * 6 + 6) + 5, 6 * 3 + 3
        self.assertEqual(shapes.down, 4 * (body + head + K * D) + K)
        self.assertEqual(shapes.up, 4 * (body + head + K * D + K + K * D + 1))

    @parameterized.parameters(
        (dict(lam=-1.0), "^lam=-1.0 must be at least 0$"), (dict(head_rate=0.0), "^head_rate=0.0 must be positive$")
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(fedpac, **arguments))

    def test_alone_in_a_round_a_client_keeps_the_head_that_it_trained(self):
        """The absent keep theirs, and get the new body and prototypes; who else was drawn may have sent anything."""
        np.testing.assert_allclose(weights(0, np.random.default_rng(0).normal(size=(1, K, D)), np.ones(1)), [1.0])
        sim, _, state = toy.reference("fedpac")
        algorithm, server = sim.spec.algorithm(0, sim.spec.host_arrays, 2), state.server
        delta, means, *stacked = toy.update_client(algorithm, algorithm.broadcast(server, 3), (), 3).uplink
        stacked = jax.tree.map(lambda x: np.stack([x, np.full_like(x, np.nan)]), stacked)
        cohort = Cohort(jnp.asarray([3, 0]), jnp.asarray([7, 0]))
        after, metrics = jax.jit(algorithm.server_update)(server, (delta, means, *stacked), cohort, None)
        self.assertEqual([float(value) for value in metrics["own_share"]], [1.0, 1.0])
        for i in range(toy.CLIENTS):
            head = one(stacked[0], 0) if i == 3 else one(server.heads, i)
            chex.assert_trees_all_close(one(after.heads, i), head, atol=1e-7)
        sent = algorithm.broadcast(after, 0)
        chex.assert_trees_all_close(sent.body, jax.tree.map(np.add, server.body, delta), atol=1e-7)
        has_class = means[1] > 0
        np.testing.assert_allclose(sent.prototypes.means[has_class], means[0][has_class], atol=1e-6)
