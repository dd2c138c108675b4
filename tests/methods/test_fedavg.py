"""FedAvg against the paper's Algorithm 1 in loops, and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

from fedjax_core.algorithm import ClientData
from fedjax_core.data import federated_data, sources
from fedjax_core.engine import client_loop, simulator
from fedjax_core.training import local_training
from methods.fedavg import fedavg
from tests import naive, toy

MODEL, PLAIN = toy.model(), toy.model(statistics=False)


def oracle(seed, rounds, *, weights, lr, momentum, cohort=5, epochs=2, batch=toy.BATCH, dropout=0.0, server_momentum=0.0):
    """Algorithm 1: (params, stats) after the given number of rounds."""
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(seed, naive.INIT)))
    velocity = jax.tree.map(jnp.zeros_like, w)
    for r in range(rounds):
        deltas, share = [], []
        for k in naive.cohort(seed, r, len(clients), cohort, dropout):
            x, y = clients[k]
            key = naive.client_key(seed, r, k)
            w_k = naive.train(MODEL, *w, x, y, key, epochs=epochs, batch=batch, lr=lr, momentum=momentum)
            deltas.append(naive.minus((w_k.params, w_k.stats), w))
            share.append(len(y) if weights == "samples" else 1)
        velocity = naive.plus(naive.mean(deltas, share), velocity, server_momentum)
        w = naive.plus(w, velocity)
    return w


def simulate(data, *, cohort=None, dropout=0.0, **arguments):
    groups = simulator.one_group(functools.partial(fedavg, **arguments), toy.task(), data.clients)
    return simulator.Simulator(
        simulator.build_spec(groups, data, cohort=cohort, dropout=dropout, plan=client_loop.Plan(1, 1), rounds_per_dispatch=3)
    )


def divided(*lists):
    """The toy data with other clients."""
    whole = toy.data()
    everything = np.arange(len(whole.test.y))
    dataset = sources.Dataset("toy", whole.train, whole.test, whole.class_names)
    return federated_data.from_index(dataset, lists, [everything] * len(lists))


class FedAvgTest(chex.TestCase):
    @parameterized.named_parameters(("samples", "fedavg", "samples"), ("uniform", "fedavg_uniform", "uniform"))
    def test_equals_the_algorithm_box(self, name, weights):
        _, _, after = toy.reference(name)
        w = oracle(0, 2, weights=weights, lr=0.1, momentum=0.5)
        chex.assert_trees_all_close(tuple(after.server.net), w, atol=2e-6)

    def test_server_momentum_and_dropout(self):
        settings = dict(epochs=2, batch=toy.BATCH, optimizer=local_training.sgd(0.1, momentum=0.5))
        sim = simulate(toy.data(), cohort=5, dropout=0.4, review=optax.trace(0.9), **settings)
        state, records = sim.run_rounds(sim.init(3), 3)
        there = [len(naive.cohort(3, r, 8, 5, 0.4)) for r in range(3)]
        self.assertEqual([r["cohort"] for r in records], there)
        self.assertLess(min(there), 5)  # somebody dropped out
        w = oracle(3, 3, weights="samples", lr=0.1, momentum=0.5, dropout=0.4, server_momentum=0.9)
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=5e-6)

    def test_one_client_is_plain_sgd(self):
        index = np.arange(4, 17)
        sim = simulate(divided(index), optimizer=local_training.sgd(0.1), epochs=2, batch=toy.BATCH)
        state, records = sim.run_rounds(sim.init(1), 2)
        x, y = toy.data().train.x[index], toy.data().train.y[index]
        w = tuple(MODEL.init(naive.stream(1, naive.INIT)))
        for r in range(2):
            trained = naive.train(MODEL, *w, x, y, naive.client_key(1, r, 0), epochs=2, batch=toy.BATCH, lr=0.1)
            w = trained.params, trained.stats
            self.assertAlmostEqual(records[r]["train/loss"], trained.loss, places=5)
            right = np.mean([label == int(row.argmax()) for label, row in trained.seen])
            self.assertAlmostEqual(records[r]["train/accuracy"], right, places=6)
            self.assertEqual(records[r]["train/examples"], len(trained.seen))
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=2e-6)

    def test_another_loss_is_used(self):
        """With a loss that is zero everywhere nothing is learnt."""

        def nothing(net, batch, key):
            value, aux = local_training.model_loss(MODEL)(net, batch, key)
            return 0.0 * value, aux

        algorithm = fedavg(toy.task(), optimizer=local_training.sgd(0.1), loss=nothing, batch=toy.BATCH)
        net = MODEL.init(jax.random.key(0))
        held = toy.reference("fedavg")[0].spec.host_arrays
        data = ClientData(held.train, held.index[0], held.size[0])
        out = jax.jit(algorithm.client_update)(net, (), data, jax.random.key(1))
        chex.assert_trees_all_equal(out.uplink.params, jax.tree.map(jnp.zeros_like, net.params))

    def test_what_travels(self):
        shapes = toy.reference("fedavg")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5  # body, head, running mean
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    def test_unknown_weights(self):
        with self.assertRaisesRegex(ValueError, "weights='sample' is not one of 'samples', 'uniform'"):
            fedavg(toy.task(), optimizer=local_training.sgd(0.1), weights="sample")
