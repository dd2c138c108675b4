"""CFL in loops over clusters, with every bipartition tried, and its limits."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from methods.cfl import bipartition, cfl
from tests import naive, toy
from tests.methods.test_fedamp import flat
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedavg import oracle as fedavg_after
from tests.methods.test_fedper import STEPS, ended, made, one, simulate
from tests.methods.test_local import of


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def cut(similarity, members):
    """The two parts with the smallest largest similarity between them; the first has the lowest id."""
    best = None
    for size in range(1, len(members)):
        for rest in itertools.combinations(members[1:], size):
            first = [i for i in members if i not in rest]
            worst = max(similarity(i, j) for i in first for j in rest)
            if best is None or worst < best[0]:
                best = worst, first, list(rest)
    return best[1:]


def merge(similarity, members):
    """Complete linkage: the two groups whose least similar members are most similar, until two are left."""
    groups = [[i] for i in members]
    while len(groups) > 2:
        pairs = itertools.combinations(range(len(groups)), 2)
        a, b = max(pairs, key=lambda pair: min(similarity(i, j) for i in groups[pair[0]] for j in groups[pair[1]]))
        groups[a] += groups.pop(b)
    return sorted(sorted(group) for group in groups)


def oracle(rounds, mean_norm, client_norm):
    """Every client's model, and the clusters."""
    clients = naive.rows(toy.data())
    models, updates = [tuple(MODEL.init(naive.stream(0, naive.INIT)))] * len(clients), {}
    clusters = [list(range(len(clients)))]
    for r in range(rounds):
        deltas = {}
        for i in naive.cohort(0, r, len(clients), 5):
            end = naive.train(MODEL, *models[i], *clients[i], naive.client_key(0, r, i), epochs=2, **STEPS)
            deltas[i] = naive.minus((end.params, end.stats), models[i])
            updates[i] = flat(deltas[i][0])
        after = []
        for cluster in clusters:
            sent = [i for i in cluster if i in updates]
            norms = [np.linalg.norm(updates[i]) for i in sent]
            mean = np.linalg.norm(sum(updates[i] for i in sent) / max(1, len(sent)))
            if len(sent) > 2 and mean < mean_norm and max(norms) > client_norm:
                _, second = cut(lambda i, j: cosine(updates[i], updates[j]), sent)
                after += [[i for i in cluster if i not in second], second]
            else:
                after.append(cluster)
        clusters = after
        for cluster in clusters:
            came = [deltas[i] for i in cluster if i in deltas]
            for i in cluster if came else ():
                models[i] = naive.plus(models[i], naive.mean(came, [1] * len(came)))
    return models, sorted(clusters)


class CFLTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("cfl")
        models, clusters = oracle(2, 5.0, 0.1)
        for i, net in enumerate(models):
            chex.assert_trees_all_close(tuple(one(state.server.models, i)), net, atol=5e-6)
        labels = state.server.labels
        self.assertEqual(sorted(np.flatnonzero(labels == c).tolist() for c in np.unique(labels)), clusters)
        self.assertEqual(np.unique(labels).tolist(), [min(cluster) for cluster in clusters])
        self.assertGreater(len(clusters), 2)
        self.assertEqual(toy.records("cfl")[1]["server/clusters"], len(clusters))

    def test_that_never_splits_is_fedavg(self):
        state = ended(made(cfl, epochs=2, mean_norm=0.0, first_split=0))
        w = fedavg_after(0, 2, weights="uniform", lr=0.1, momentum=0.5)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(tuple(one(state.server.models, i)), w, atol=2e-6)
        self.assertFalse(np.any(state.server.labels))

    def test_clusters_of_one_are_local(self):
        sim = simulate(made(cfl, epochs=2))
        state = jax.device_get(sim.init(0))
        alone = state._replace(server=state.server._replace(labels=np.arange(toy.CLIENTS, dtype=np.int32)))
        after = jax.device_get(sim.run_rounds(sim.compiled.put(alone), 2)[0])
        for i in range(0, toy.CLIENTS, 2):
            chex.assert_trees_all_close(tuple(one(after.server.models, i)), of(toy.reference("local")[2], i), atol=1e-6)

    @parameterized.parameters((1.0, 0.1, 0, True), (0.0, 0.1, 0, False), (1.0, 1e3, 0, False), (1.0, 0.1, 1, False))
    def test_opposite_groups_are_split_exactly(self, mean_norm, client_norm, first_split, is_split):
        signs = np.asarray([1, -1, 1, -1, 1, -1, 1, -1], np.float32)
        net = MODEL.init(jax.random.key(1))
        deltas = jax.tree.map(lambda p: jnp.asarray(signs.reshape(-1, *(1,) * p.ndim)) * p[None], net)
        settings = dict(mean_norm=mean_norm, client_norm=client_norm, first_split=first_split)
        algorithm = made(cfl, **settings)(toy.task())
        cohort = Cohort(jnp.arange(8), jnp.ones(8, jnp.int32))
        server, metrics = jax.jit(algorithm.server_update)(algorithm.server_init(jax.random.key(0)), deltas, cohort, None)
        self.assertEqual(server.labels.tolist(), [0, 1] * 4 if is_split else [0] * 8)
        self.assertAlmostEqual(float(metrics["mean_norm"][0]), 0, places=5)
        self.assertAlmostEqual(float(metrics["client_norm"][0]), np.linalg.norm(flat(net.params)), places=4)
        start = algorithm.server_init(jax.random.key(0)).models
        moved = naive.minus(server.models, start)
        chex.assert_trees_all_close(moved, naive.arrays(deltas) if is_split else jax.tree.map(np.zeros_like, moved), atol=1e-6)

    @parameterized.parameters(("single", lambda s, m: list(cut(s, m))), ("complete", merge))
    def test_bipartitions_are_those_of_loops(self, linkage, loops):
        for seed in range(4):
            x = np.random.default_rng(seed).normal(size=(7, 3))
            similarity = np.asarray([[cosine(a, b) for b in x] for a in x], np.float32)
            members = [0, 1, 3, 4, 6]
            group = bipartition(jnp.asarray(similarity), jnp.isin(jnp.arange(7), jnp.asarray(members)), linkage)
            parts = sorted([i for i in members if group[i] == g] for g in {int(group[i]) for i in members})
            self.assertEqual(parts, sorted(loops(lambda i, j, s=similarity: s[i, j], members)))

    def test_what_travels(self):
        shapes = toy.reference("cfl")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(mean_norm=-1.0), "^mean_norm=-1.0 must be at least 0$"),
        (dict(linkage="ward"), "^linkage='ward' must be one of 'single', 'complete'$"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(cfl, **arguments))
