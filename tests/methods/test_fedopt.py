"""Server optimisers against the lines of the paper, and their limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Cohort
from fedjax_core.training import local_training
from methods.fedopt import fedopt
from tests import naive, toy
from tests.methods.test_fedavg import MODEL

B2, TAU = 0.99, 1e-3
RATES = {"adagrad": (0.1, 0.0), "adam": (0.01, 0.9), "yogi": (0.01, 0.9), "momentum": (1.0, 0.9), "nesterov": (1.0, 0.9)}


class Server:
    """Algorithm 2's server for one array."""

    def __init__(self, x, name, lr, b1, b2=B2, tau=TAU):
        self.x, self.m, self.v = x, np.zeros_like(x), np.full_like(x, tau**2)
        self.name, self.lr, self.b1, self.b2, self.tau = name, lr, b1, b2, tau

    def take(self, delta):
        if self.name in ("momentum", "nesterov"):
            self.m = self.b1 * self.m + delta
            self.x = self.x + self.lr * (self.m if self.name == "momentum" else self.b1 * self.m + delta)
            return
        self.m = self.b1 * self.m + (1 - self.b1) * delta
        if self.name == "adagrad":
            self.v = self.v + delta**2
        elif self.name == "yogi":
            self.v = self.v - (1 - self.b2) * delta**2 * np.sign(self.v - delta**2)
        else:
            self.v = self.b2 * self.v + (1 - self.b2) * delta**2
        self.x = self.x + self.lr * self.m / (np.sqrt(self.v) + self.tau)


def oracle(seed, rounds, name):
    """(params, statistics) after the given number of rounds; statistics are averaged."""
    clients = naive.rows(toy.data())
    params, stats = MODEL.init(naive.stream(seed, naive.INIT))
    leaves, tree = jax.tree.flatten(params)
    servers = [Server(np.asarray(leaf), name, *RATES[name]) for leaf in leaves]
    for r in range(rounds):
        deltas = []
        for k in naive.cohort(seed, r, len(clients), 5):
            key = naive.client_key(seed, r, k)
            w_k = naive.train(MODEL, params, stats, *clients[k], key, epochs=2, batch=toy.BATCH, lr=0.1, momentum=0.5)
            deltas.append(naive.minus((w_k.params, w_k.stats), (params, stats)))
        moved, drift = naive.mean(deltas, [1] * len(deltas))
        for server, delta in zip(servers, jax.tree.leaves(moved), strict=True):
            server.take(np.asarray(delta))
        params, stats = jax.tree.unflatten(tree, [server.x for server in servers]), naive.plus(stats, drift)
    return params, stats


def build(server, **settings):
    return fedopt(toy.task(), optimizer=local_training.sgd(0.1), server=server, batch=toy.BATCH, **settings)


def deltas(number, scale=0.1):
    rng = np.random.default_rng(3)
    net = jax.eval_shape(MODEL.init, jax.random.key(0))
    return [jax.tree.map(lambda s: (scale * rng.normal(size=s.shape)).astype(np.float32), net) for _ in range(number)]


SOMEBODY = Cohort(jnp.arange(2), jnp.ones(2, jnp.int32))


def after(algorithm, given):
    """The global model before the first and after each of the deltas."""
    server = algorithm.server_init(jax.random.key(0))
    nets, update = [server.net], jax.jit(algorithm.server_update)
    for delta in given:
        server, _ = update(server, delta, SOMEBODY, None)
        nets.append(server.net)
    return nets


class FedOptTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, last = toy.reference("fedopt")
        chex.assert_trees_all_close(tuple(last.server.net), oracle(0, 2, "adam"), atol=1e-5)

    @parameterized.parameters(*RATES)
    def test_server_follows_the_lines(self, name):
        given = deltas(4)
        nets = after(build(name), given)
        servers = [Server(np.asarray(leaf), name, *RATES[name]) for leaf in jax.tree.leaves(nets[0].params)]
        for delta, net, before in zip(given, nets[1:], nets, strict=False):
            for server, part in zip(servers, jax.tree.leaves(delta.params), strict=True):
                server.take(part)
            chex.assert_trees_all_close(jax.tree.leaves(net.params), [server.x for server in servers], atol=1e-5)
            chex.assert_trees_all_close(net.stats, naive.plus(before.stats, delta.stats), atol=1e-6)

    def test_every_coefficient_counts(self):
        given = deltas(3)
        base = after(build("adam"), given)[-1].params["head"]["bias"]
        for change in ({"server_lr": 0.02}, {"b1": 0.5}, {"b2": 0.5}, {"tau": 0.1}, {"server": "yogi", "b2": 0.5}):
            moved = after(build(**({"server": "adam"} | change)), given)[-1].params["head"]["bias"]
            self.assertGreater(np.abs(moved - base).max(), 1e-4, change)

    def test_without_momentum_it_is_fedavg(self):
        start, *nets = after(build("momentum", b1=0.0), deltas(3))
        chex.assert_trees_all_close(nets[-1], naive.plus(start, naive.mean(deltas(3), [1, 1, 1]), 3.0), atol=1e-6)

    def test_without_memory_adam_scales_fedavg(self):
        """b1 = 0 and b2 = 1: v stays tau^2, and a rate of 2 tau is FedAvg's."""
        start, last = after(build("adam", b1=0.0, b2=1.0, tau=0.3, server_lr=0.6), deltas(1))
        chex.assert_trees_all_close(last, naive.plus(start, deltas(1)[0]), atol=1e-6)

    def test_yogis_second_moment_stays_positive(self):
        algorithm = build("yogi", b2=0.0)
        server = algorithm.server_init(jax.random.key(0))
        for delta in deltas(5, scale=10.0):
            server, _ = algorithm.server_update(server, delta, SOMEBODY, None)
            v = jax.tree.leaves(server.review.inner_state.v)
            self.assertGreater(min(float(jnp.min(leaf)) for leaf in v), 0)

    @parameterized.parameters("adam", "momentum", "nesterov")
    def test_an_empty_round_moves_nothing(self, server):
        """Not even by the memory of earlier rounds."""
        algorithm = build(server)
        before, _ = algorithm.server_update(algorithm.server_init(jax.random.key(0)), deltas(1)[0], SOMEBODY, None)
        nothing, nobody = jax.tree.map(np.zeros_like, deltas(1)[0]), SOMEBODY._replace(examples=jnp.zeros(2, jnp.int32))
        chex.assert_trees_all_equal(algorithm.server_update(before, nothing, nobody, None)[0], before)

    @parameterized.parameters(
        (dict(server="sgd"), "server='sgd' is not one of 'adagrad', 'adam', 'yogi', 'momentum'"),
        (dict(server_lr=0.0), "server_lr=0.0 must be positive"),
        (dict(b1=1.0), r"b1=1.0 must be in \[0, 1\)"),
        (dict(b2=1.1), r"b2=1.1 must be in \[0, 1\]"),
        (dict(tau=0.0), "tau=0.0 must be positive"),
        (dict(weights="sizes"), "weights='sizes' is not one of"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            build(**({"server": "adam"} | wrong))
