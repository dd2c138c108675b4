"""pFedMe in loops over minibatches and inner steps, FedOA's form of it, and their limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Net
from fedjax_core.training import local_training
from methods.pfedme import pfedme
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedavg import oracle as fedavg_after
from tests.methods.test_fedopt import SOMEBODY
from tests.methods.test_fedper import STEPS, first_round, made, one, simulate

FRESH = 0x6672
PLAIN = local_training.sgd(0.1)


def solved(w, x, y, key, *, lam, steps, outer, warm, lr, momentum=0.0, epochs=2):
    """(w_i, theta, statistics) after one client's round."""
    gradient = naive.gradient(MODEL, naive.nothing)
    w_i, stats = w
    theta, velocity = w_i, jax.tree.map(jnp.zeros_like, w_i)
    for epoch in range(epochs):
        places = naive.order(key, epoch, len(y))
        for start in range(0, len(places), toy.BATCH):
            now = np.array(places[start : start + toy.BATCH])
            theta = theta if warm else w_i
            for _ in range(steps):
                g, (stats, *_) = gradient(theta, stats, x[now], y[now], ())
                g = jax.tree.map(lambda g, t, w: g + lam * (t - w), g, theta, w_i)
                velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, g)
                theta = naive.plus(theta, velocity, -lr)
            w_i = jax.tree.map(lambda w, t: w - outer * lam * (w - t), w_i, theta)
    return w_i, theta, stats


def oracle(rounds, beta=1.0, **settings):
    """Server's network, and all clients' theta."""
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(0, naive.INIT)))
    theta = [w] * len(clients)
    for r in range(rounds):
        came = []
        for i in naive.cohort(0, r, len(clients), 5):
            w_i, mine, stats = solved(w, *clients[i], naive.client_key(0, r, i), **settings)
            theta[i] = mine, stats
            came.append((w_i, stats))
        mean = naive.mean(came, [1] * len(came))
        w = jax.tree.map(lambda old, new: (1 - beta) * old + beta * new, w, mean)
    return w, theta


class PFedMeTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("pfedme")
        w, theta = oracle(2, lam=2.0, steps=2, outer=0.3, warm=True, lr=0.1, momentum=0.5)
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=5e-6)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(tuple(one(state.clients[0], i)), theta[i], atol=5e-6)

    def test_one_inner_step_from_w_is_sgd_with_the_product_of_rates(self):
        settings = dict(lam=2.0, inner_steps=1, outer_lr=0.25, warm=False, epochs=2, optimizer=PLAIN)
        w, _, out = first_round(pfedme, **settings)
        expected = naive.train(MODEL, *w.net, *naive.rows(toy.data())[0], jax.random.key(5), epochs=2, batch=toy.BATCH, lr=0.05)
        chex.assert_trees_all_close(out.uplink.params, naive.minus(expected.params, w.net.params), atol=5e-6)

    def test_beta_moves_the_server_part_of_the_way(self):
        """Running statistics no further than the clients': beyond them a variance would be below 0."""
        for beta in (0.0, 0.4, 1.0, 2.0):
            algorithm = made(pfedme, beta=beta)(toy.task())
            server = algorithm.server_init(jax.random.key(0))
            delta = jax.tree.map(lambda p: 0.1 + 0 * p, server.net)
            moved = naive.minus(algorithm.server_update(server, delta, SOMEBODY, None)[0].net, server.net)
            expected = Net(*(jax.tree.map(lambda d, f=f: f * d, part) for part, f in zip(delta, (beta, min(beta, 1)), strict=True)))
            chex.assert_trees_all_close(moved, expected, atol=1e-6)

    def test_without_lambda_the_server_stays(self):
        """Of the released code after the first round, which is FedIT's."""
        for settings in ({}, {"variant": "released", "round_num": 1}):
            _, _, out = first_round(pfedme, lam=0.0, **settings)
            self.assertFalse(any(np.any(leaf) for leaf in jax.tree.leaves(out.uplink.params)))

    def test_a_strong_pull_solved_well_is_sgd_with_the_outer_rate(self):
        """theta = w_i - gradient / lambda, so that w_i moves by eta times the gradient."""
        lam = 1e4
        settings = dict(lam=lam, inner_steps=3, outer_lr=0.05, epochs=2, optimizer=local_training.sgd(1 / lam))
        w, _, out = first_round(pfedme, **settings)
        expected = naive.train(MODEL, *w.net, *naive.rows(toy.data())[0], jax.random.key(5), epochs=2, batch=toy.BATCH, lr=0.05)
        chex.assert_trees_all_close(out.uplink.params, naive.minus(expected.params, w.net.params), atol=2e-3)

    def test_an_optimiser_that_is_annealed_knows_where_it_is(self):
        """With a line to zero the last inner steps are small ones."""
        held, key = toy.reference("pfedme")[0].spec.host_arrays, jax.random.key(5)
        data = local_training.ClientData(held.train, held.index[0], held.size[0])
        w, ends = MODEL.init(jax.random.key(1)), []
        for anneal in (None, "linear"):
            build = made(pfedme, lam=2.0, inner_steps=2, outer_lr=0.3, optimizer=local_training.sgd(0.1, anneal=anneal))
            out = jax.jit(build(toy.task()).client_update)(w, w, data, key)
            ends.append(np.abs(np.subtract(out.state.params["head"]["kernel"], w.params["head"]["kernel"])).max())
        self.assertGreater(ends[0], ends[1])
        self.assertGreater(ends[1], 1e-3)

    def test_released(self):
        """Round 0 is FedIT's; then theta alone, and one step of w towards it."""
        sim = simulate(made(pfedme, lam=0.5, outer_lr=0.2, epochs=2, variant="released"))
        state = sim.init(0)
        begin = jax.device_get(state.clients[0])
        state, _ = sim.run_rounds(state, 1)
        chex.assert_trees_all_equal(jax.device_get(state.clients[0]), begin)
        w = fedavg_after(0, 1, weights="uniform", lr=0.1, momentum=0.5)
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=2e-6)
        state, _ = sim.run_rounds(state, 1)
        clients, moves, stats = naive.rows(toy.data()), [], []
        for i in naive.cohort(0, 1, len(clients), 5):
            own = MODEL.init(jax.random.fold_in(jax.random.fold_in(naive.stream(0, naive.INIT), FRESH), i))
            theta = naive.train(MODEL, *own, *clients[i], naive.client_key(0, 1, i), epochs=2, **STEPS)
            chex.assert_trees_all_close(one(jax.device_get(state.clients[0]), i).params, theta.params, atol=5e-6)
            moves.append(jax.tree.map(lambda w, t: w - 2 * 0.5 * 0.2 * (w - t), w[0], theta.params))
            stats.append(theta.stats)
        chex.assert_trees_all_close(state.server.net.params, naive.mean(moves, [1] * len(moves)), atol=5e-6)
        chex.assert_trees_all_close(state.server.net.stats, naive.mean(stats, [1] * len(stats)), atol=5e-6)

    def test_what_travels(self):
        shapes = toy.reference("pfedme")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(
        (dict(lam=-1.0), "^lam=-1.0 must be at least 0$"),
        (dict(beta=-0.1), "^beta=-0.1 must be at least 0$"),
        (dict(outer_lr=0.0), "^outer_lr=0.0 must be positive$"),
        (dict(inner_steps=0), "^inner_steps=0 must be at least 1$"),
        (dict(variant="printed"), "unknown variant 'printed'; allowed: default, released"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            pfedme(toy.task(), optimizer=PLAIN, **arguments)
