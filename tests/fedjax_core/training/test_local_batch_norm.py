"""Statistics that stay with their client, against a loop; and nothing else changes."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Net, is_net
from fedjax_core.engine import client_loop, simulator
from fedjax_core.training import local_training
from fedjax_core.training.local_batch_norm import with_local_statistics
from methods.afl import afl
from methods.dbe import dbe
from methods.dfedavg import dfedavg
from methods.fedacg import fedacg
from methods.fedavg import fedavg
from methods.feddc import feddc
from methods.feddyn import feddyn
from methods.fedopt import fedopt
from methods.fedper import fedper
from methods.fedrod import fedrod
from methods.hierfavg import hierfavg
from methods.local import local
from methods.mime_lite import mime_lite
from methods.scaffold import scaffold
from tests import naive, toy
from tests.methods.test_fedavg import MODEL

SGD = local_training.sgd(0.1, momentum=0.5)
SETTINGS = dict(optimizer=SGD, epochs=2, batch=toy.BATCH)
PARAMS, STATS = (5 * 6 + 6) + (6 * 3 + 3), 5


def simulate(build, **settings):
    settings = {"cohort": 5, "rounds_per_dispatch": 2, "plan": client_loop.Plan(1, 1)} | settings
    return simulator.Simulator(simulator.build_spec(toy.groups(build), toy.data(), **settings))


@functools.cache
def kept():
    """FedAvg with local statistics, its state before and after two rounds."""
    sim = simulate(
        with_local_statistics(functools.partial(fedavg, **SETTINGS)), evaluation=simulator.Evaluation(("own", "post_local"))
    )
    state = sim.init(0)
    before = jax.device_get(state)
    state, _ = sim.run_rounds(state, 2)
    return sim, before, jax.device_get(state)


def oracle(rounds):
    """(params, each client's statistics), and each cohort client's network right after training in the last round."""
    clients = naive.rows(toy.data())
    w, first = MODEL.init(naive.stream(0, naive.INIT))
    stats, ends = [first for _ in clients], {}
    for r in range(rounds):
        ends, deltas, sizes = {}, [], []
        for i in naive.cohort(0, r, toy.CLIENTS, 5):
            key = naive.client_key(0, r, i)
            end = naive.train(MODEL, w, stats[i], *clients[i], key, epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)
            deltas.append(naive.minus(end.params, w))
            sizes.append(len(clients[i][1]))
            stats[i] = end.stats
            ends[i] = Net(end.params, end.stats)
        w = naive.plus(w, naive.mean(deltas, sizes))
    return w, stats, ends


def accuracies(net, i):
    rows = toy.data().test_index[i]
    x, y = toy.data().test.x[rows], toy.data().test.y[rows]
    return float(np.mean(np.argmax(MODEL.apply(net, x)[0]["logits"], 1) == y))


class LocalStatisticsTest(chex.TestCase):
    def test_parameters_are_averaged_and_statistics_stay(self):
        _, _, after = kept()
        w, stats, _ = oracle(2)
        chex.assert_trees_all_close(after.server.net.params, w, atol=2e-6)
        self.assertEqual(after.server.net.stats, ())
        (_, mine) = after.clients[0]
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close({"mean": mine["mean"][i]}, stats[i], atol=2e-6)
        self.assertGreater(np.std(mine["mean"], axis=0).max(), 1e-3)

    def test_a_server_with_momentum_keeps_none_either(self):
        method = functools.partial(fedopt, server="momentum", server_lr=1.0, **SETTINGS)
        sim = simulate(with_local_statistics(method))
        self.assertEqual(sim.run_rounds(sim.init(0), 2)[0].server.net.stats, ())

    def test_the_personal_predictor_reads_the_clients_own(self):
        sim, before, after = kept()
        w, stats, _ = oracle(2)
        scores = sim.client_scores(sim.compiled.put(after))["own"]
        self.assertEqual(set(scores), {"personal"})
        found = scores["personal"]["accuracy"][0] / scores["personal"]["accuracy"][1]
        np.testing.assert_allclose(found, [accuracies(Net(w, stats[i]), i) for i in range(toy.CLIENTS)], atol=1e-6)
        _, records = sim.run_rounds(sim.compiled.put(before), 2, scored=True)
        _, _, ends = oracle(2)
        expected = np.mean([accuracies(net, i) for i, net in ends.items()])
        self.assertAlmostEqual(records[-1]["test/personal/post_local/accuracy/mean"], expected, places=6)

    @parameterized.parameters(
        (fedavg, PARAMS, PARAMS),
        (scaffold, 2 * PARAMS, 2 * PARAMS),
        (local, 0, 0),
        (fedper, 5 * 6 + 6, 5 * 6 + 6),
        (afl, PARAMS, PARAMS + 1),
        (feddyn, PARAMS, PARAMS),
        (feddc, 2 * PARAMS, PARAMS + 1),
        (fedacg, PARAMS, PARAMS),
        (mime_lite, 2 * PARAMS + 1, 2 * PARAMS),  # and the number of steps of its momentum
        (hierfavg, PARAMS, PARAMS),
        (dfedavg, 2 * PARAMS, 2 * PARAMS),
    )
    def test_statistics_never_travel(self, method, down, up):
        shapes = simulate(with_local_statistics(functools.partial(method, **SETTINGS))).spec.shapes
        self.assertEqual((shapes.down, shapes.up), (4 * down, 4 * up))
        self.assertNotIn((STATS,), [x.shape for x in jax.tree.leaves(shapes.groups[0].server)])

    def test_links_carry_none_either(self):
        sim = simulate(with_local_statistics(functools.partial(dfedavg, topology="full", **SETTINGS)), cohort=2)
        _, (record,) = sim.run_rounds(sim.init(0), 1)
        self.assertEqual((record["server/links"], record["server/link_bytes"]), (2, 2 * 4 * PARAMS))

    def test_afl_keeps_what_training_made_of_the_statistics(self):
        """Not that times the client's weight."""
        stats = []
        for method in (fedavg, afl):
            algorithm = with_local_statistics(functools.partial(method, **SETTINGS))(toy.task())
            server = algorithm.server_init(jax.random.key(0))
            client = algorithm.client_init(jax.random.key(0), server, 0)
            stats.append(toy.update_client(algorithm, algorithm.broadcast(server, 0), client).state[1])
        chex.assert_trees_all_close(*stats, atol=1e-6)

    @parameterized.parameters(dbe, fedrod)
    def test_a_method_s_own_personal_model_is_the_one_that_is_scored(self, method):
        inner, key, x = functools.partial(method, **SETTINGS)(toy.task()), jax.random.key(0), toy.data().test.x[:5]
        algorithm = with_local_statistics(lambda task: inner)(toy.task())
        server = inner.server_init(key)
        sent = inner.broadcast(server, 0)
        client = jax.tree.map(lambda p: p + 1, inner.client_init(key, server, 0))
        stats = {"mean": jnp.arange(5.0)}
        with_stats = lambda tree: jax.tree.map(lambda n: n._replace(stats=stats) if isinstance(n, Net) else n, tree, is_leaf=is_net)
        expected = inner.predict["personal"](with_stats(sent), client, x)["logits"]
        self.assertEqual(set(algorithm.predict), {"personal"})
        np.testing.assert_allclose(algorithm.predict["personal"](sent, (client, stats), x)["logits"], expected, atol=1e-6)

    def test_without_statistics_nothing_changes(self):
        outputs, task, key = [], toy.task(statistics=False), jax.random.key(0)
        for wrap in (lambda build: build, with_local_statistics):
            algorithm = wrap(functools.partial(scaffold, **SETTINGS))(task)
            server = algorithm.server_init(key)
            out = toy.update_client(algorithm, algorithm.broadcast(server, 0), algorithm.client_init(key, server, 0))
            outputs.append(jax.tree.leaves((out.uplink, out.state, out.metrics)))
        chex.assert_trees_all_close(*outputs, atol=1e-7)

    def test_prepare_and_personalise_see_the_clients_statistics(self):
        def method(task):
            def prepare(sent, client, data, key):
                return client + sent.stats["mean"]

            def personalise(sent, client, data, key):
                moved = Net(jax.tree.map(lambda p: p + 1, sent.params), {"mean": sent.stats["mean"] + data.size})
                return moved, client + 1

            inner = fedavg(task, **SETTINGS)
            return inner._replace(
                client_init=lambda key, server, i: jnp.zeros(toy.INPUTS), prepare=prepare, personalise=personalise
            )

        algorithm = with_local_statistics(method)(toy.task())
        key = jax.random.key(0)
        server = algorithm.server_init(key)
        sent = algorithm.broadcast(server, 0)
        mine, stats = algorithm.client_init(key, server, 0)
        chex.assert_trees_all_equal(stats, MODEL.init(key).stats)
        stats = {"mean": stats["mean"] + 3.0}
        prepared = algorithm.prepare(sent, (mine, stats), None, key)
        chex.assert_trees_all_equal(prepared, (mine + 3.0, stats))
        size = local_training.ClientData((), jnp.zeros(1), jnp.int32(5))
        new, (mine2, stats2) = algorithm.personalise(sent, (mine, stats), size, key)
        chex.assert_trees_all_equal(new, Net(jax.tree.map(lambda p: p + 1, sent.params), ()))
        np.testing.assert_array_equal(mine2, mine + 1)
        np.testing.assert_array_equal(stats2["mean"], stats["mean"] + 5)

    def test_a_client_may_begin_with_a_copy_of_the_servers_network(self):
        def method(task):
            return fedavg(task, **SETTINGS)._replace(client_init=lambda key, server, i: server.net)

        algorithm, key = with_local_statistics(method)(toy.task()), jax.random.key(0)
        mine, stats = algorithm.client_init(key, algorithm.server_init(key), 0)
        chex.assert_trees_all_equal(mine, MODEL.init(key))
        chex.assert_trees_all_equal(stats, MODEL.init(key).stats)

    @parameterized.parameters("ifca", "fedfomo")
    def test_stacked_networks_are_refused(self, name):
        algorithm, key = with_local_statistics(functools.partial(toy.METHODS[name], optimizer=SGD))(toy.task()), jax.random.key(0)
        with self.assertRaisesRegex(
            ValueError, "statistics='local' needs sent networks to have the statistics of the client's own"
        ):
            server = jax.eval_shape(algorithm.server_init, key)
            client = jax.eval_shape(lambda server: algorithm.client_init(key, server, 0), server)
            sent = jax.eval_shape(lambda server: algorithm.broadcast(server, 0), server)
            jax.eval_shape(algorithm.client_update, sent, client, toy.client_data(0), key)

    @parameterized.parameters("cfl", "dfedavg", "hierfavg")
    def test_networks_stacked_at_the_server_alone_work(self, name):
        algorithm, key = with_local_statistics(functools.partial(toy.METHODS[name], optimizer=SGD))(toy.task()), jax.random.key(0)
        server = jax.eval_shape(algorithm.server_init, key)
        client = jax.eval_shape(lambda server: algorithm.client_init(key, server, 0), server)
        sent = jax.eval_shape(lambda server: algorithm.broadcast(server, 0), server)
        out = jax.eval_shape(algorithm.client_update, sent, client, toy.client_data(0), key)
        chex.assert_trees_all_equal_shapes(out.state, client)

    def test_two_networks_in_the_uplink_are_refused(self):
        def method(task):
            inner = fedavg(task, **SETTINGS)

            def client_update(*arguments):
                out = inner.client_update(*arguments)
                return out._replace(uplink=(out.uplink, out.uplink))

            return inner._replace(client_update=client_update, collect=(inner.collect, inner.collect))

        with self.assertRaisesRegex(ValueError, "statistics='local' needs an uplink with at most one network, this method's has 2"):
            simulate(with_local_statistics(method))
