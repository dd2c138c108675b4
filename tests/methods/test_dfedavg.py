"""Decentralized averaging in loops over clients and their neighbours, and its limits."""

import functools
import tempfile

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.training import local_training
from methods.dfedavg import dfedavg
from methods.local import local
from tests import naive, quadratics, toy
from tests.methods.test_fedamp import flat
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedavg import oracle as fedavg_after
from tests.methods.test_fedper import made, one, simulate

NUMBERS = (5 * 6 + 6) + (6 * 3 + 3) + 5  # body, head, running mean


def torus(i):
    """Neighbours of client i of eight, two rows of four; the row above is the row below."""
    row, column = divmod(i, 4)
    return [(1 - row) * 4 + column] * 2 + [row * 4 + (column + 1) % 4, row * 4 + (column - 1) % 4]


def oracle(rounds, cohort=5):
    """Every client's model; also the links of each round, and the last deltas and models before it."""
    clients = naive.rows(toy.data())
    models, links = [tuple(MODEL.init(naive.stream(0, naive.INIT)))] * len(clients), []
    for r in range(rounds):
        trained, came = {}, naive.cohort(0, r, len(clients), cohort)
        for i in came:
            (params, stats), key = models[i], naive.client_key(0, r, i)
            end = naive.train(MODEL, params, stats, *clients[i], key, epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)
            trained[i] = end.params, end.stats
        pairs = {(i, j) for i in came for j in torus(i) if j in trained}
        for i in came:
            near = [j for j in torus(i) if j in trained]
            own = 1 - len(near) / 5
            models[i] = naive.mean([trained[i], *(trained[j] for j in near)], [own, *[1 / 5] * len(near)])
        links.append(len(pairs))
    return models, links


@functools.cache
def server_update(**arguments):
    algorithm = made(dfedavg, **arguments)(toy.task())
    return jax.jit(lambda server, deltas, cohort: algorithm.server_update(server, deltas, cohort, None))


def random_models(seed):
    net = MODEL.init(jax.random.key(0))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: rng.normal(size=(8, *p.shape)).astype(np.float32), net)


def mix(models, deltas, active=tuple(range(8)), **arguments):
    """(models, metrics) after the server's step of some topology; ids in reverse order."""
    server = made(dfedavg, **arguments)(toy.task()).server_init(jax.random.key(0))
    ids = jnp.arange(8)[::-1]
    cohort = Cohort(ids, jnp.asarray([3 * (int(i) in active) for i in ids]))
    after, metrics = server_update(**arguments)(server._replace(models=models), one(deltas, ids), cohort)
    return jax.device_get(after), {name: float(a / b) for name, (a, b) in metrics.items()}


class DFedAvgTest(chex.TestCase):
    def test_equals_the_loops(self):
        sim, before, state = toy.reference("dfedavg")
        models, links = oracle(2)
        for i, net in enumerate(models):
            chex.assert_trees_all_close(tuple(one(state.server.models, i)), net, atol=5e-6)
        chex.assert_trees_all_close(tuple(state.server.mean), naive.mean(models, [1] * 8), atol=5e-6)
        _, records = sim.run_rounds(sim.compiled.put(before), 2)
        mean = flat(naive.mean([net[0] for net in models], [1] * 8))
        apart = np.mean([np.sum((flat(net[0]) - mean) ** 2) for net in models])
        self.assertAlmostEqual(records[1]["server/consensus_distance"], apart, places=5)
        self.assertEqual([record["server/links"] for record in records], links)
        self.assertEqual([record["server/link_bytes"] for record in records], [4 * NUMBERS * n for n in links])

    @parameterized.parameters("full", "graph", "matrix")
    def test_a_full_graph_of_all_clients_is_fedavg(self, topology):
        """Also one that a file gives, by its links or by its weights."""
        with tempfile.TemporaryDirectory() as folder:
            file = None if topology == "full" else f"{folder}/links.csv"
            if file:
                np.savetxt(file, np.full((8, 8), 1 if topology == "graph" else 1 / 8), delimiter=",")
            sim = simulate(made(dfedavg, topology=topology, matrix=file, epochs=2), cohort=8)
            state, records = sim.run_rounds(sim.init(0), 2)
        w = fedavg_after(0, 2, weights="uniform", lr=0.1, momentum=0.5, cohort=8)
        chex.assert_trees_all_close(tuple(one(jax.device_get(state.server.models), 3)), w, atol=2e-6)
        chex.assert_trees_all_close(tuple(state.server.mean), w, atol=2e-6)
        self.assertLess(records[1]["server/consensus_distance"], 1e-10)

    def test_a_client_whose_neighbours_are_absent_trains_alone(self):
        models, deltas = random_models(0), random_models(1)
        after, metrics = mix(models, deltas, active=(0, 2, 4), topology="ring")
        expected = jax.tree.map(
            lambda x, d: x + d * np.isin(np.arange(8), (0, 2, 4)).reshape(-1, *(1,) * (x.ndim - 1)), models, deltas
        )
        chex.assert_trees_all_close(after.models, expected, atol=1e-6)
        self.assertEqual(metrics["links"], 0)

    @parameterized.parameters("ring", "torus", "exponential", "random", "full")
    def test_mixing_keeps_the_mean_and_contracts(self, topology):
        """By the square of the second singular value of a matrix that is written here, or at least a bit."""
        models = random_models(2)
        after, metrics = mix(models, jax.tree.map(np.zeros_like, models), topology=topology)
        mean = jax.tree.map(lambda x: np.mean(x, 0), models)
        chex.assert_trees_all_close(after.mean, mean, atol=1e-6)
        x = np.stack([flat(one(models.params, i)) for i in range(8)])
        before = np.mean(np.sum((x - x.mean(0)) ** 2, 1))
        steps = {"ring": (0, 1, -1), "exponential": (0, 1, 2, 4)}.get(topology)
        second = {"torus": 0.6, "full": 0.0}.get(topology, 0.99)
        if steps:
            eigenvalues = [abs(np.mean([np.exp(2j * np.pi * k * s / 8) for s in steps])) for k in range(1, 8)]
            second = max(eigenvalues)
        self.assertLessEqual(metrics["consensus_distance"], before * second**2 + 1e-5)

    def test_three_rounds_with_one_peer_are_the_exact_mean(self):
        models = random_models(3)
        x = jax.tree.map(jnp.asarray, models)
        for r in range(3):
            algorithm = made(dfedavg, topology="one_peer")(toy.task().bind(((), ()), r))
            server = algorithm.server_init(jax.random.key(0))._replace(models=x)
            cohort = Cohort(jnp.arange(8), jnp.ones(8, jnp.int32))
            server, metrics = algorithm.server_update(server, jax.tree.map(jnp.zeros_like, x), cohort, None)
            x = server.models
            self.assertEqual(float(metrics["links"][0]), 8)
        chex.assert_trees_all_close(one(x, 5), jax.tree.map(lambda p: np.mean(p, 0), models), atol=1e-6)

    def test_mixing_before_training_is_d_psgd(self):
        models, deltas = random_models(4), random_models(5)
        after, _ = mix(models, deltas, topology="torus", order="mix_train")
        for i in (0, 6):
            near = [one(models, j) for j in (i, *torus(i))]
            chex.assert_trees_all_close(one(after.models, i), naive.plus(naive.mean(near, [1] * 5), one(deltas, i)), atol=1e-6)

    def test_an_unseen_client_uses_the_mean(self):
        sim, _, state = toy.reference("dfedavg")
        algorithm, server = sim.spec.abstract_algorithm(0), state.server
        x, sent = toy.data().test.x[:5], algorithm.broadcast(server, jnp.int32(0))
        begin = algorithm.init_unseen
        assert callable(begin)
        logits = algorithm.predict["personal"](sent, begin(sent, jnp.int32(0)), x)["logits"]
        np.testing.assert_allclose(logits, MODEL.apply(server.mean, x)[0]["logits"], atol=1e-6)
        own = algorithm.predict["personal"](algorithm.broadcast(server, jnp.int32(1)), jnp.int32(0), x)["logits"]
        np.testing.assert_allclose(own, MODEL.apply(one(server.models, 1), x)[0]["logits"], atol=1e-6)

    def test_what_travels(self):
        """A client of this torus has three neighbours: the row above is the row below."""
        shapes = toy.reference("dfedavg")[0].spec.shapes
        self.assertEqual((shapes.down, shapes.up), (3 * 4 * NUMBERS, 3 * 4 * NUMBERS))

    @parameterized.parameters(
        (dict(topology="star"), "^topology='star' must be one of 'ring', 'torus'"),
        (dict(topology="graph"), "^topology='graph' needs a file, matrix=None$"),
        (dict(matrix="w.csv"), "^topology='ring' takes no file; 'graph' and 'matrix' do, matrix='w.csv'$"),
        (dict(topology="random", degree=8), r"^degree=8 of topology='random' must be in \[2, 7\] for 8 clients"),
        (dict(order="none"), "^order='none' must be one of 'train_mix', 'mix_train'$"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            made(dfedavg, **arguments)(toy.task())

    def test_one_client_a_round_is_local(self):
        """All of its weights are its own: W = I, which a file may not have, since nobody would be connected."""
        mixed, alone = (
            jax.device_get((sim := simulate(build, cohort=1, rounds_per_dispatch=4)).run_rounds(sim.init(0), 4)[0])
            for build in (made(dfedavg, topology="full", epochs=2), made(local, epochs=2))
        )
        chex.assert_trees_all_close(mixed.server.models, alone.clients[0], atol=1e-6)
        first = simulate(made(local, epochs=2), cohort=1).init(0).clients[0].params["head"]["kernel"]
        came = {i for i in range(toy.CLIENTS) if np.any(one(alone.clients[0].params["head"]["kernel"], i) != first[i])}
        self.assertGreater(len(came), 1)

    def test_one_full_step_of_all_in_a_full_graph_is_gradient_descent(self):
        method = functools.partial(dfedavg, topology="full", optimizer=local_training.sgd(0.1), epochs=1, batch=6)
        server, w = quadratics.run(method, 3).server, quadratics.first()
        for _ in range(3):
            w = w - 0.1 * np.mean([2 * x.T @ (x @ w - y) / len(x) for x, y in quadratics.rows()], 0)
        np.testing.assert_allclose(quadratics.weights(server.mean), w, rtol=1e-4)
        np.testing.assert_allclose(quadratics.weights(server.models), [w] * 6, rtol=1e-4)
