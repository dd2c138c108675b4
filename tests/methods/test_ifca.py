"""IFCA in loops over clients and clusters, and its limits."""

import functools

import chex
import jax
import numpy as np

from fedjax_core.algorithm import Examples
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import client_loop, simulator
from fedjax_core.task import make_partial_task
from fedjax_core.training import local_training
from methods.ifca import ifca
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedavg import oracle as fedavg_after
from tests.methods.test_fedper import STEPS, ended, made, one, simulate


def risk(net, x, y):
    return float(naive.cross_entropy(MODEL.apply(type(MODEL.init(jax.random.key(0)))(*net), x)[0]["logits"], y))


def nearest(models, x, y):
    losses = [risk(net, x, y) for net in models]
    return losses.index(min(losses))


def oracle(rounds, k, models=None):
    """The clusters' networks, and who chose which in each round."""
    clients, key = naive.rows(toy.data()), naive.stream(0, naive.INIT)
    models = models or [tuple(MODEL.init(jax.random.fold_in(key, j) if j else key)) for j in range(k)]
    choices = []
    for r in range(rounds):
        members = [[] for _ in range(k)]
        for i in naive.cohort(0, r, len(clients), 5):
            j = nearest(models, *clients[i])
            end = naive.train(MODEL, *models[j], *clients[i], naive.client_key(0, r, i), epochs=2, **STEPS)
            members[j].append((i, (end.params, end.stats)))
        models = [naive.mean([end for _, end in m], [1] * len(m)) if m else net for m, net in zip(members, models, strict=True)]
        choices.append({i: j for j, m in enumerate(members) for i, _ in m})
    return models, choices


class IFCATest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("ifca")
        models, choices = oracle(2, 3)
        for j, net in enumerate(models):
            chex.assert_trees_all_close(tuple(one(state.server, j)), net, atol=5e-6)
        for i, j in choices[-1].items():
            self.assertEqual(state.clients[0][i], j)

    def test_clients_with_different_data_train_different_models(self):
        """From models that favour a class each."""
        sim = simulate(made(ifca, clusters=3, epochs=2))
        state = jax.device_get(sim.init(0))
        params = state.server.params
        head = params["head"] | {"bias": 4 * np.eye(3, dtype=np.float32)}
        start = state.server._replace(params=params | {"head": head})
        after, records = sim.run_rounds(sim.compiled.put(state._replace(server=start)), 2)
        models, choices = oracle(2, 3, [tuple(one(start, j)) for j in range(3)])
        self.assertGreater(len(set(choices[0].values())), 1)
        largest = [max(np.bincount(list(chosen.values()))) / 5 for chosen in choices]
        np.testing.assert_allclose([record["server/largest_cluster"] for record in records], largest, rtol=1e-6)
        for j, net in enumerate(models):
            chex.assert_trees_all_close(tuple(one(jax.device_get(after.server), j)), net, atol=5e-6)

    def test_a_client_predicts_with_the_newest_model_that_fits_it_best(self):
        sim, _, state = toy.reference("ifca")
        models, _ = oracle(2, 3)
        for i, rows in enumerate(naive.rows(toy.data())):
            _, cluster = sim.client_view(sim.compiled.put(state), i).holds["personal"]
            self.assertEqual(int(cluster), nearest(models, *rows))

    def test_one_cluster_is_fedavg(self):
        server = ended(made(ifca, clusters=1, epochs=2)).server
        w = fedavg_after(0, 2, weights="uniform", lr=0.1, momentum=0.5)
        chex.assert_trees_all_close(tuple(one(server, 0)), w, atol=2e-6)

    def test_of_equal_models_the_first_gets_everybody_and_the_others_never_move(self):
        sim = simulate(made(ifca, clusters=3, epochs=2))
        state = jax.device_get(sim.init(0))
        first = one(state.server, 0)
        alike = state._replace(server=jax.tree.map(lambda x: np.stack([x] * 3), first))
        after = jax.device_get(sim.run_rounds(sim.compiled.put(alike), 1)[0])
        w = fedavg_after(0, 1, weights="uniform", lr=0.1, momentum=0.5)
        chex.assert_trees_all_close(tuple(one(after.server, 0)), w, atol=2e-6)
        for j in (1, 2):
            chex.assert_trees_all_equal(one(after.server, j), first)

    def test_clusters_are_weighted_by_examples_on_request(self):
        server = ended(made(ifca, clusters=1, epochs=2, weights="samples")).server
        chex.assert_trees_all_close(one(server, 0), toy.reference("fedavg")[2].server.net, atol=2e-6)

    def test_models_that_would_begin_equal_are_refused(self):
        arrays = jax.device_get(MODEL.init(jax.random.key(0)))
        task = make_partial_task(MODEL, arrays, "all", classes=toy.CLASSES, population=toy.CLIENTS)
        build = functools.partial(ifca, task, optimizer=local_training.sgd(0.1))
        for clusters in (2, 3):
            with self.assertRaisesRegex(ValueError, f"clusters={clusters} models would begin equal"):
                build(clusters=clusters)
        build(clusters=1)

    def test_what_travels(self):
        shapes = toy.reference("ifca")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (3 * 4 * numbers, 4 * numbers + 4))

    def test_bad_arguments(self):
        with self.assertRaisesRegex(ValueError, "^clusters=0 must be at least 1$"):
            simulate(made(ifca, clusters=0))

    def test_right_clusters_are_runs_of_fedavg_of_their_own(self):
        """Odd clients call each class by the next one's name, and there is a model for either."""
        whole, y = toy.data(), toy.data().train.y.copy()
        for rows in whole.train_index[1::2]:
            y[rows] = (y[rows] + 1) % toy.CLASSES
        dataset = sources.Dataset("toy", Examples(whole.train.x, y), whole.test, whole.class_names)
        data = federated_data.from_index(dataset, whole.train_index, whole.test_index)
        groups = toy.groups(made(ifca, clusters=2, epochs=2))
        sim = simulator.Simulator(simulator.build_spec(groups, data, plan=client_loop.Plan(1, 1), rounds_per_dispatch=2))
        state = jax.device_get(sim.init(0))
        reads = np.eye(toy.INPUTS, 6, dtype=np.float32), 4 * np.eye(6, toy.CLASSES, dtype=np.float32)  # a class by its input
        params = state.server.params
        params["body"]["kernel"] = np.stack([reads[0]] * 2)
        params["head"]["kernel"] = np.stack([reads[1], np.roll(reads[1], 1, 1)])
        start = state._replace(server=state.server._replace(params=params))
        after = jax.device_get(sim.run_rounds(sim.compiled.put(start), 2)[0])
        np.testing.assert_array_equal(after.clients[0], np.arange(toy.CLIENTS) % 2)
        clients = naive.rows(data)
        for j in range(2):
            w = tuple(one(start.server, j))
            for r in range(2):
                ends = [naive.train(MODEL, *w, *clients[i], naive.client_key(0, r, i), epochs=2, **STEPS) for i in range(j, 8, 2)]
                w = naive.mean([(end.params, end.stats) for end in ends], [1] * len(ends))
            chex.assert_trees_all_close(tuple(one(after.server, j)), w, atol=5e-6)
