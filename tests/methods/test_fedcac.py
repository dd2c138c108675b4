"""FedCAC in loops over clients, tensors and entries, and its limits."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from methods.fedcac import compute_overlaps, fedcac, select_collaborators, select_critical, unpack_bits
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import made, one, plain, simulate


def marked(sensitivity, tau):
    """The critical entries of one tensor."""
    values = np.asarray(sensitivity).ravel()
    count = int(tau * len(values))
    if count == 0:
        return np.zeros(np.shape(sensitivity), bool)
    threshold = sorted(values)[-count]
    if threshold <= 1e-10:
        threshold = min([v for v in values if v > 1e-20], default=np.inf)
    return np.array([v >= threshold for v in values]).reshape(np.shape(sensitivity))


def oracle(rounds, tau, beta, train=plain):
    """The shared parameters, what each client would be sent, its statistics, and per round and client how many it was mixed of."""
    clients = naive.rows(toy.data())
    params, first = MODEL.init(naive.stream(0, naive.INIT))
    g, stats, sizes = params, [first] * len(clients), []
    custom, masks = [params] * len(clients), [jax.tree.map(lambda p: np.zeros(p.shape, bool), params)] * len(clients)
    send = lambda i: jax.tree.map(lambda m, u, w: jnp.where(m, u, w), masks[i], custom[i], g)
    for r in range(rounds):
        came, v, n = naive.cohort(0, r, len(clients), 5), {}, []
        for i in came:
            start = send(i)
            end = train(start, stats[i], *clients[i], naive.client_key(0, r, i))
            v[i], stats[i] = end.params, end.stats
            masks[i] = jax.tree.map(lambda new, old: marked(jnp.abs((new - old) * new), tau), end.params, start)
            n.append(len(clients[i][1]))
        g = naive.mean([v[i] for i in came], n)
        whole = {i: np.concatenate([m.ravel() for m in jax.tree.leaves(masks[i])]).astype(int) for i in came}
        overlap = {(i, j): 1 - np.abs(whole[i] - whole[j]).sum() / max(2 * whole[i].sum(), 1) for i in came for j in came if i != j}
        average, largest = np.mean(list(overlap.values())), max(overlap.values())
        threshold = average + (r + 1) / beta * (largest - average)
        for i in came:
            similar = [j for j in came if j == i or overlap[i, j] >= threshold - 1e-9]
            custom[i] = naive.mean([v[j] for j in similar], [1] * len(similar))
            sizes.append(len(similar))
    return g, [send(i) for i in range(len(clients))], stats, sizes


def sent(name):
    sim, _, state = toy.reference(name)
    algorithm = sim.spec.algorithm(0, sim.spec.host_arrays, 2)
    return [algorithm.broadcast(state.server, i) for i in range(toy.CLIENTS)]


class FedCACTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("fedcac")
        g, mixed, stats, sizes = oracle(2, 0.4, 4)
        self.assertTrue(set(sizes) - {1, 5}, "no client with some similar ones and some not")
        chex.assert_trees_all_close(state.server.shared, g, atol=5e-6)
        for i, given in enumerate(sent("fedcac")):
            chex.assert_trees_all_close(given, mixed[i], atol=5e-6)
            chex.assert_trees_all_close(one(state.clients[0], i), stats[i], atol=5e-6)

    def test_if_all_entries_are_critical_everybody_gets_the_uniform_mean(self):
        sim = simulate(made(fedcac, epochs=2, tau=1.0), statistics=False, cohort=toy.CLIENTS)
        state, records = sim.run_rounds(sim.init(0), 2)
        self.assertEqual([r["server/collaborators"] for r in records], [8, 8])
        server = jax.device_get(state.server)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(one(server.custom, i), one(server.custom, 0), atol=1e-6)
        self.assertGreater(np.abs(server.custom["head"]["bias"][0] - server.shared["head"]["bias"]).max(), 1e-3)

    def test_fewer_and_fewer_collaborate(self):
        rng = np.random.default_rng(0)
        overlap, there = jnp.asarray(rng.random((6, 6)), jnp.float32), jnp.asarray([1, 1, 0, 1, 1, 1], bool)
        sizes = [np.asarray(select_collaborators(overlap, there, p)).sum(1) for p in (0.0, 0.3, 0.6, 0.99, 1.01)]
        for a, b in itertools.pairwise(sizes):
            self.assertTrue((a >= b).all())
        self.assertGreater(sizes[0].sum(), sizes[-1].sum())
        np.testing.assert_array_equal(sizes[-1], there)
        alone = jnp.asarray([1, 0, 0, 0, 0, 0], bool)
        np.testing.assert_array_equal(select_collaborators(overlap, alone, 0.5).sum(), 1)

    def test_overlaps(self):
        rng = np.random.default_rng(1)
        bits = {"a": rng.random((4, 3, 3)) < 0.4, "b": rng.random((4, 5)) < 0.4}
        bits["a"][3], bits["b"][3] = bits["a"][0], bits["b"][0]
        packed = jax.tree.map(lambda m: jnp.packbits(m.reshape(4, -1), axis=1), bits)
        for name, m in bits.items():
            np.testing.assert_array_equal(unpack_bits(packed[name], m[0].size), m.reshape(4, -1))
        found = compute_overlaps(packed, one(bits, 0), jnp.ones(4, bool))
        whole = np.concatenate([m.reshape(4, -1) for m in bits.values()], 1).astype(int)
        expected = [[1 - np.abs(a - b).sum() / (2 * a.sum()) for b in whole] for a in whole]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        self.assertEqual(float(found[0, 3]), 1.0)

    def test_a_client_without_critical_entries_does_not_choose_for_others(self):
        masks = np.zeros((4, 40), bool)
        masks[0, :20], masks[1, 2:22], masks[2, 16:36] = True, True, True  # 0 and 1 share 18 entries, 2 has 4 and 6 of theirs
        there = jnp.ones(4, bool)
        found = compute_overlaps({"a": jnp.packbits(masks, axis=1)}, {"a": masks[0]}, there)
        np.testing.assert_array_equal(found[3], 0)
        similar = np.asarray(select_collaborators(found, there, 0.5))
        np.testing.assert_array_equal(similar[:3, :3], [[1, 1, 0], [1, 1, 0], [0, 0, 1]])

    @parameterized.parameters(0.0, 0.3, 0.5, 1.0)
    def test_critical_entries(self, tau):
        rng = np.random.default_rng(2)
        for s in (rng.random((3, 7)), np.repeat(rng.random(5), 4), np.array([0, 0, 0, 1e-12, 0.5]), np.zeros(6)):
            s = np.asarray(s, np.float32)
            np.testing.assert_array_equal(select_critical(jnp.asarray(s), tau), marked(s, tau))

    def test_what_travels(self):
        shapes = toy.reference("fedcac")[0].spec.shapes
        numbers, packed = (5 * 6 + 6) + (6 * 3 + 3), 4 + 1 + 3 + 1
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers + packed))

    @parameterized.parameters((dict(tau=1.5), r"^tau=1.5 must be in \[0, 1\]$"), (dict(beta=0), "^beta=0 must be positive$"))
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(fedcac, **arguments))
