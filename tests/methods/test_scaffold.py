"""SCAFFOLD against the paper's Algorithm 1 in loops, and its limits."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import ClientData
from fedjax_core.engine import client_loop, simulator
from fedjax_core.training import local_training
from methods.scaffold import scaffold
from tests import naive, toy
from tests.methods.test_fedavg import MODEL, PLAIN


def oracle(seed, rounds, *, lr, server_lr, momentum=0.0, option="II", cohort=5, epochs=2, batch=toy.BATCH, dropout=0.0):
    """Algorithm 1: x, its statistics, c and all c_i; option "II" as the paper has it, "mean" as the mean of the raw gradients."""
    clients = naive.rows(toy.data())
    x, stats = MODEL.init(naive.stream(seed, naive.INIT))
    c = jax.tree.map(jnp.zeros_like, x)
    c_i = [c for _ in clients]
    for r in range(rounds):
        taking_part = naive.cohort(seed, r, len(clients), cohort, dropout)
        dx, dc, dstats = [], [], []
        for i in taking_part:
            key = naive.client_key(seed, r, i)
            drift = naive.minus(c, c_i[i])
            y = naive.train(MODEL, x, stats, *clients[i], key, epochs=epochs, batch=batch, lr=lr, momentum=momentum, drift=drift)
            steps = len(y.gradients)
            if option == "II":
                new = jax.tree.map(lambda ci, c, x, y, k=steps: ci - c + (x - y) / (k * lr), c_i[i], c, x, y.params)
            else:
                new = naive.mean(y.gradients, [1] * steps)
            dx.append(naive.minus(y.params, x))
            dc.append(naive.minus(new, c_i[i]))
            dstats.append(naive.minus(y.stats, stats))
            c_i[i] = new
        alike = [1] * len(taking_part)
        x = naive.plus(x, naive.mean(dx, alike), server_lr)
        c = naive.plus(c, naive.mean(dc, alike), len(taking_part) / len(clients))
        stats = naive.plus(stats, naive.mean(dstats, alike))
    return x, stats, c, c_i


def one(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


@functools.cache
def paper():
    """Plain SGD, partial participation, dropout, a server learning rate: (simulation, states before and after each of 3 rounds)."""
    build = functools.partial(scaffold, optimizer=local_training.sgd(0.2), server_lr=0.7, epochs=2, batch=toy.BATCH)
    groups = toy.groups(build)
    sim = simulator.Simulator(
        simulator.build_spec(groups, toy.data(), cohort=5, dropout=0.3, plan=client_loop.Plan(1, 1), rounds_per_dispatch=3)
    )
    states = [sim.init(2)]
    for _ in range(3):
        before = jax.device_get(states[-1])
        state, _ = sim.run_rounds(states[-1], 1)
        states = [*states[:-1], before, state]
    return [jax.device_get(s) for s in states]


class ScaffoldTest(chex.TestCase):
    def test_equals_the_algorithm_box(self):
        states = paper()
        self.assertLess(min(len(naive.cohort(2, r, 8, 5, 0.3)) for r in range(3)), 5)
        x, stats, c, c_i = oracle(2, 3, lr=0.2, server_lr=0.7, dropout=0.3)
        server, (clients,) = states[3].server, states[3].clients
        chex.assert_trees_all_close(tuple(server.net), (x, stats), atol=5e-6)
        chex.assert_trees_all_close(server.c, c, atol=5e-6)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(one(clients, i), c_i[i], atol=5e-6)

    def test_with_momentum_controls_are_mean_gradients(self):
        _, _, after = toy.reference("scaffold")
        x, stats, c, c_i = oracle(0, 2, lr=0.1, server_lr=1.0, momentum=0.5, option="mean")
        chex.assert_trees_all_close(tuple(after.server.net), (x, stats), atol=5e-6)
        chex.assert_trees_all_close(after.server.c, c, atol=5e-6)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(one(after.clients[0], i), c_i[i], atol=5e-6)

    def test_weight_decay_is_not_in_the_controls(self):
        """Of one client's first round: the loss's mean gradient; option II would store decay times the mean weights more."""
        lr, decay = 0.2, 0.1
        algorithm = scaffold(toy.task(), optimizer=local_training.sgd(lr, weight_decay=decay), batch=toy.SIZES[0])  # one full batch
        server = algorithm.server_init(jax.random.key(0))
        data = ClientData(jax.tree.map(jnp.asarray, toy.data().train), jnp.arange(toy.SIZES[0]), jnp.int32(toy.SIZES[0]))
        found = algorithm.client_update(server, server.c, data, jax.random.key(1))
        x, y = server.net.params, found.local[0].net.params
        option_ii = jax.tree.map(lambda x, y: (x - y) / lr, x, y)
        chex.assert_trees_all_close(found.state, jax.tree.map(lambda c, x: c - decay * x, option_ii, x), atol=1e-6)
        self.assertGreater(max(np.abs(decay * leaf).max() for leaf in jax.tree.leaves(x)), 1e-2)

    def test_option_ii_is_the_mean_gradient_for_plain_sgd(self):
        states = paper()
        x, stats, c, c_i = oracle(2, 3, option="mean", lr=0.2, server_lr=0.7, dropout=0.3)
        chex.assert_trees_all_close((*states[3].server.net, states[3].server.c), (x, stats, c), atol=5e-6)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(one(states[3].clients[0], i), c_i[i], atol=5e-6)

    def test_c_is_the_mean_of_all_controls_after_every_round(self):
        for state in paper()[1:]:
            (clients,) = state.clients
            chex.assert_trees_all_close(state.server.c, jax.tree.map(lambda x: np.mean(x, 0), clients), atol=1e-6)
            self.assertGreater(max(np.abs(leaf).max() for leaf in jax.tree.leaves(state.server.c)), 1e-2)

    def test_frozen_controls_are_uniform_fedavg(self):
        sim, before, _ = toy.reference("scaffold")
        state = before
        for _ in range(2):
            state, _ = sim.run_rounds(sim.compiled.put(state), 1)
            state = jax.device_get(state)
            nothing = functools.partial(jax.tree.map, np.zeros_like)
            state = state._replace(server=state.server._replace(c=nothing(state.server.c)), clients=nothing(state.clients))
        chex.assert_trees_all_close(state.server.net, toy.reference("fedavg_uniform")[2].server.net, atol=1e-6)

    def test_one_full_batch_of_all_is_a_step_by_the_mean_gradient(self):
        """In every round, whatever the controls; and a control is then the client's gradient at x, as in option I."""
        lr = 0.3
        build = functools.partial(scaffold, optimizer=local_training.sgd(lr), epochs=1, batch=max(toy.SIZES))
        sim = simulator.Simulator(
            simulator.build_spec(toy.groups(build, statistics=False), toy.data(), plan=client_loop.Plan(1, 1))
        )
        state = sim.init(0)
        for _ in range(3):
            net = jax.device_get(state.server.net)
            state, _ = sim.run_rounds(state, 1)
            gradients = [naive.gradient(PLAIN, naive.nothing)(net.params, {}, x, y, ())[0] for x, y in naive.rows(toy.data())]
            expected = naive.plus(net.params, naive.mean(gradients, [1] * len(gradients)), -lr)
            chex.assert_trees_all_close(state.server.net.params, expected, atol=2e-6)
            for i, gradient in enumerate(gradients):
                chex.assert_trees_all_close(one(jax.device_get(state.clients[0]), i), gradient, atol=2e-6)

    def test_what_travels(self):
        shapes = toy.reference("scaffold")[0].spec.shapes
        params, stats = (5 * 6 + 6) + (6 * 3 + 3), 5
        self.assertEqual((shapes.down, shapes.up), (4 * (2 * params + stats), 4 * (2 * params + stats)))

    @parameterized.parameters(0.0, -1.0, float("nan"))
    def test_server_lr_must_be_positive(self, server_lr):
        with self.assertRaisesRegex(ValueError, f"^server_lr={server_lr} must be .*positive$"):
            scaffold(toy.task(), optimizer=local_training.sgd(0.1), server_lr=server_lr)
