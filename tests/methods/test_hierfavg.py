"""HierFAVG in loops over clients and edges, and its limits."""

import tempfile

import chex
import jax
import numpy as np
from absl.testing import parameterized

from fedjax_core.training import local_training
from methods.hierfavg import hierfavg
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedavg import oracle as fedavg_after
from tests.methods.test_fedper import ended, made, one, simulate

BYTES = 4 * ((5 * 6 + 6) + (6 * 3 + 3) + 5)


def oracle(rounds, edges, period, edge_of=None):
    """The edges' models, the cloud's, and the bytes (client to edge, edge to cloud) of each round."""
    clients = naive.rows(toy.data())
    edge_of = [i % edges for i in range(len(clients))] if edge_of is None else edge_of
    cloud = tuple(MODEL.init(naive.stream(0, naive.INIT)))
    models, examples, traffic = [cloud] * edges, [0] * edges, []
    for r in range(rounds):
        ends, came = [[] for _ in range(edges)], naive.cohort(0, r, len(clients), 5)
        for i in came:
            (params, stats), key = models[edge_of[i]], naive.client_key(0, r, i)
            end = naive.train(MODEL, params, stats, *clients[i], key, epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)
            ends[edge_of[i]].append(((end.params, end.stats), len(clients[i][1])))
        for edge, of_edge in enumerate(ends):
            if of_edge:
                models[edge] = naive.mean(*zip(*of_edge, strict=True))
                examples[edge] += sum(n for _, n in of_edge)
        traffic.append((2 * len(came) * BYTES, 0))
        if (r + 1) % period == 0:
            cloud = naive.mean(models, examples)
            traffic[-1] = traffic[-1][0], (edges + np.count_nonzero(examples)) * BYTES
            models, examples = [cloud] * edges, [0] * edges
    return models, cloud, traffic


class HierFAVGTest(chex.TestCase):
    def test_equals_the_loops(self):
        sim, before, _ = toy.reference("hierfavg")
        state, records = sim.compiled.put(before), []
        for rounds in (1, 2, 3):
            state, record = sim.run_rounds(state, 1)
            records += record
            models, cloud, traffic = oracle(rounds, 3, 2)
            for edge, net in enumerate(models):
                chex.assert_trees_all_close(tuple(one(jax.device_get(state.server.edges), edge)), net, atol=5e-6)
            chex.assert_trees_all_close(tuple(state.server.cloud), cloud, atol=5e-6)
        names = "server/client_edge_bytes", "server/edge_cloud_bytes"
        self.assertEqual([tuple(record[name] for name in names) for record in records], traffic)

    def test_a_file_assigns_clients_to_edges(self):
        edge_of = [2, 2, 0, 1, 0, 0, 1, 0]
        with tempfile.TemporaryDirectory() as folder:
            np.savetxt(f"{folder}/edges.txt", edge_of, fmt="%d")
            server = ended(made(hierfavg, edges=3, assignment=f"{folder}/edges.txt", epochs=2)).server
        models, cloud, _ = oracle(2, 3, 2, edge_of)
        chex.assert_trees_all_close(tuple(server.cloud), cloud, atol=5e-6)
        chex.assert_trees_all_close(tuple(one(jax.device_get(server.edges), 2)), models[2], atol=5e-6)

    def test_files_that_do_not_fit(self):
        for text, message in {
            "0 1": "has 2 numbers, and there are 8 clients",
            "0 1 2 3 0 1 2 3": "has 3, and edges=3 are the integers from 0 to 2",
            "0 1 0 1 0 1 0 1.5": "has 1.5, and edges=3 are",
            "0 1 0 1 0 1 0 1": "gives edge 2 no client",
            "a": "is not a file of numbers",
        }.items():
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                file.write(text.replace(" ", "\n"))
                file.flush()
                with self.assertRaisesRegex(ValueError, f"^assignment='{file.name}' {message}"):
                    made(hierfavg, edges=3, assignment=file.name)(toy.task())

    @parameterized.parameters((dict(edges=1, cloud_period=2),), (dict(edges=3, cloud_period=1),))
    def test_one_edge_or_a_cloud_in_every_round_is_fedavg(self, arguments):
        server = ended(made(hierfavg, epochs=2, **arguments)).server
        chex.assert_trees_all_close(server.cloud, toy.reference("fedavg")[2].server.net, atol=2e-6)

    def test_an_edge_for_each_client_is_fedavg_with_longer_rounds(self):
        """Of whole batches without momentum: two rounds of two epochs are one of four."""
        sgd = local_training.sgd(0.1)
        sim = simulate(made(hierfavg, edges=8, cloud_period=2, epochs=2, batch=16, optimizer=sgd), cohort=8)
        state, _ = sim.run_rounds(sim.init(0), 2)
        w = fedavg_after(0, 1, weights="samples", lr=0.1, momentum=0.0, cohort=8, epochs=4, batch=16)
        chex.assert_trees_all_close(tuple(state.server.cloud), w, atol=2e-6)

    def test_what_travels(self):
        shapes = toy.reference("hierfavg")[0].spec.shapes
        self.assertEqual((shapes.down, shapes.up), (BYTES, BYTES))

    @parameterized.parameters(
        (dict(edges=9), "^edges=9 must be at most the number of clients, 8$"),
        (dict(cloud_period=0), "^cloud_period=0 must be at least 1$"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            made(hierfavg, **arguments)(toy.task())
