"""DBE in loops with its loss written out, and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import parameterized

from configs import dbe as dbe_config
from fedjax_core import experiment
from fedjax_core.algorithm import Net
from methods.dbe import Server, dbe
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import SGD, STEPS, made, one, simulate

D = 6


def shifted(params, carried, x, y, given):
    """Cross-entropy of shifted features, and the pull of the running mean to the consensus; statistics are (the network's, r)."""
    kappa, mu, consensus, on = given
    stats, r = carried
    w = Net({"body": params["body"], "head": params["head"]}, stats)
    outputs, stats = MODEL.apply(w, x, train=True)
    r = (1 - mu) * jax.lax.stop_gradient(r) + mu * jnp.mean(outputs["features"], 0)
    z = outputs["features"] + on * params["shift"][None]
    logits = z @ params["head"]["kernel"] + params["head"]["bias"][None]
    ce = naive.cross_entropy(logits, y)
    return ce + on * kappa * jnp.mean(0.5 * (r - consensus) ** 2), ((stats, r), logits, ce)


def oracle(rounds, kappa, mu):
    """The server's network, the consensus, and all clients' shifts."""
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(0, naive.INIT)))
    consensus, shifts = np.zeros(D, np.float32), [np.zeros(D, np.float32)] * len(clients)
    for r in range(rounds):
        ends, means, share = [], [], []
        for i in naive.cohort(0, r, len(clients), 5):
            start, given = w[0] | {"shift": shifts[i]}, (kappa, mu, consensus, float(r > 0))
            carried = w[1], np.zeros(D, np.float32)
            key = naive.client_key(0, r, i)
            end = naive.train(MODEL, start, carried, *clients[i], key, epochs=2, whole=shifted, given=given, **STEPS)
            shifts[i] = end.params["shift"]
            ends.append(({name: end.params[name] for name in w[0]}, end.stats[0]))
            means.append(end.stats[1])
            share.append(len(clients[i][1]))
        if r:
            w = naive.mean(ends, share)
        else:
            consensus = naive.mean(means, share)
    return w, consensus, shifts


def still(round_num):
    """SGD that leaves the shift."""
    stay = optax.stateless(lambda updates, params: updates | {"shift": jnp.zeros_like(updates["shift"])})
    return optax.chain(SGD(round_num), stay)


class DBETest(chex.TestCase):
    def test_equals_the_loops(self):
        sim, _, two = toy.reference("dbe")
        three = jax.device_get(sim.run_rounds(sim.compiled.put(two), 1)[0])
        for rounds, state in ((2, two), (3, three)):
            w, consensus, shifts = oracle(rounds, 2.0, 0.6)
            chex.assert_trees_all_close(tuple(state.server.net), w, atol=5e-6)
            np.testing.assert_allclose(state.server.consensus, consensus, atol=5e-6)
            for i in range(toy.CLIENTS):
                np.testing.assert_allclose(one(state.clients[0], i), shifts[i], atol=5e-6)

    def test_the_first_round_leaves_all_but_the_consensus(self):
        sim, before, _ = toy.reference("dbe")
        after = jax.device_get(sim.run_rounds(sim.compiled.put(before), 1)[0])
        chex.assert_trees_all_equal(after.server.net, before.server.net)
        self.assertFalse(np.any(after.clients[0]))
        self.assertGreater(np.abs(after.server.consensus).max(), 1e-2)
        self.assertTrue(after.server.is_ready)

    def test_one_step_without_regularization_is_fedavgs_for_the_model(self):
        sent = Server(MODEL.init(jax.random.key(1)), jnp.ones(D), jnp.ones((), bool))
        out = toy.update_client(made(dbe, kappa=0.0, batch=64)(toy.task()), sent, jnp.zeros(D), 1)
        x, y = naive.rows(toy.data())[1]
        end = naive.train(MODEL, *sent.net, x, y, jax.random.key(5), epochs=1, batch=64, lr=0.1)
        chex.assert_trees_all_close(out.uplink[0].params, naive.minus(end.params, sent.net.params), atol=2e-6)
        self.assertGreater(np.abs(out.state).max(), 1e-3)

    def test_with_momentum_one_the_mean_is_the_last_batchs(self):
        sent = Server(MODEL.init(jax.random.key(1)), jnp.zeros(D), jnp.zeros((), bool))
        out = toy.update_client(made(dbe, momentum=1.0, batch=64)(toy.task()), sent, jnp.zeros(D), 1)
        z, _ = MODEL.features(sent.net, naive.rows(toy.data())[1][0], train=True)
        np.testing.assert_allclose(out.uplink[1], np.mean(z, 0), atol=1e-6)

    def test_what_scales_or_bounds_deltas_is_refused_since_mean_features_are_none(self):
        """A vote or a server's rate would else scale the consensus, which one round makes for all others."""
        for field, value, what in (
            ("compression.uplink", "sign(majority=True)", "compression"),
            ("aggregation.rule", "norm_bound(bound=1.0)", "rule"),
            ("schedule", "fedbuff(buffer=2, server_lr=0.5)", "schedule"),
        ):
            with self.assertRaisesRegex(ValueError, rf"{what} .*; part \[1\] of the uplink of dbe is neither"):
                config = dbe_config.get_config("smoke")
                config.update_from_flattened_dict({field: value})
                experiment.build(config)

    def test_a_strong_pull_moves_mean_features_to_the_consensus(self):
        sent = Server(MODEL.init(jax.random.key(1)), jnp.full(D, 0.3), jnp.ones((), bool))
        apart = []
        for kappa in (0.0, 10.0):
            algorithm = made(dbe, kappa=kappa, epochs=20, batch=64)(toy.task())
            net = toy.update_client(algorithm, sent, jnp.zeros(D)).local[0].net
            z, _ = MODEL.features(net, naive.rows(toy.data())[0][0], train=True)
            apart.append(np.abs(np.mean(z, 0) - 0.3).max())
        self.assertLess(apart[1], 0.3 * apart[0])

    def test_a_client_predicts_with_shifted_features(self):
        sim, _, state = toy.reference("dbe")
        x, algorithm = toy.data().test.x, sim.spec.algorithm(0, sim.spec.host_arrays, 2)
        b_i = naive.arrays(one(state.clients[0], 3)) + 1
        z = np.asarray(MODEL.features(state.server.net, x)[0]) + b_i
        head = state.server.net.params["head"]
        logits = algorithm.predict["personal"](state.server, b_i, x)["logits"]
        np.testing.assert_allclose(logits, z @ head["kernel"] + head["bias"], atol=1e-5)

    def test_what_travels(self):
        shapes = toy.reference("dbe")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5 + D
        self.assertEqual((shapes.down, shapes.up), (4 * numbers + 1, 4 * numbers))

    @parameterized.parameters(
        (dict(kappa=-1.0), "^kappa=-1.0 must be at least 0$"), (dict(momentum=2.0), r"^momentum=2.0 must be in \[0, 1\]$")
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(dbe, **arguments))

    def test_with_shifts_of_zero_and_no_pull_it_is_fedavg(self):
        """From where the consensus is known: the round that finds it trains nothing."""
        sim = simulate(made(dbe, kappa=0.0, epochs=2, optimizer=still))
        state = jax.device_get(sim.init(0))
        state = state._replace(server=state.server._replace(is_ready=np.ones((), bool)))
        after = jax.device_get(sim.run_rounds(sim.compiled.put(state), 2)[0])
        chex.assert_trees_all_close(after.server.net, toy.reference("fedavg")[2].server.net, atol=2e-6)
        self.assertFalse(np.any(after.clients[0]))
