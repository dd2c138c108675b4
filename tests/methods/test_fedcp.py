"""FedCP in loops with its gate and its loss written out, and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Net
from methods.fedcp import Server, fedcp, init_gate, policy, squared_mmd
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import STEPS, ended, made, one, simulate

GATE, D = 0x6370, 6


def shares(gate, z, v, noise=0.0):
    """(r_i, s_i) of one example; noise: [2 D]."""
    a = (z * v / jnp.sqrt(jnp.sum(v**2))) @ gate["linear"]["kernel"] + gate["linear"]["bias"]
    a = (a - jnp.mean(a)) / jnp.sqrt(jnp.mean((a - jnp.mean(a)) ** 2) + 1e-5)
    a = jnp.maximum(a * gate["scale"] + gate["bias"], 0) + noise
    r = jnp.exp(a[:D]) / (jnp.exp(a[:D]) + jnp.exp(a[D:]))
    return r, 1 - r


def mmd(a, b):
    """The biased estimate over all pairs."""

    def kernel(p, q):
        return sum(jnp.exp(-0.5 * jnp.sum((p[:, None] - q[None]) ** 2, -1) / h) for h in (10, 15, 20, 50))

    return jnp.mean(kernel(a, a) + kernel(b, b) - 2 * kernel(a, b))


def divided(params, stats, x, y, given):
    lam, received, head, v = given
    outputs, stats = MODEL.apply(Net({"body": params["body"], "head": head}, stats), x, train=True)
    z = outputs["features"]

    def classify(z):
        r, s = shares(params["gate"], z, v)
        return (r * z) @ params["own"]["kernel"] + params["own"]["bias"] + (s * z) @ head["kernel"] + head["bias"]

    logits = jax.vmap(classify)(z)
    ce = naive.cross_entropy(logits, y)
    far = mmd(z, MODEL.apply(Net(*received), x)[0]["features"])
    return ce + lam * far, (stats, logits, ce)


def oracle(rounds, lam):
    """The server's network, its gate, and all clients' heads; without noise."""
    clients, key = naive.rows(toy.data()), naive.stream(0, naive.INIT)
    w = tuple(MODEL.init(key))
    gate = init_gate(jax.random.fold_in(key, GATE), D)
    heads = [w[0]["head"]] * len(clients)
    for r in range(rounds):
        ends, share = [], []
        for i in naive.cohort(0, r, len(clients), 5):
            start, head = {"body": w[0]["body"], "own": heads[i], "gate": gate}, w[0]["head"]
            given = lam, w, head, jnp.sum(jnp.asarray(heads[i]["kernel"]), 1)
            client_key = naive.client_key(0, r, i)
            end = naive.train(MODEL, start, w[1], *clients[i], client_key, epochs=2, whole=divided, given=given, **STEPS)
            heads[i] = end.params["own"]
            both = jax.tree.map(lambda own, shared: 0.5 * own + 0.5 * shared, heads[i], naive.arrays(head))
            ends.append((({"body": end.params["body"], "head": both}, end.stats), end.params["gate"]))
            share.append(len(clients[i][1]))
        w, gate = naive.mean(ends, share)
    return w, gate, heads


def under_a_frozen_head(params, stats, x, y, head):
    """Cross-entropy of the body under the head, whose logits the personal head's bias is added to."""
    outputs, stats = MODEL.apply(Net({"body": params["body"], "head": head}, stats), x, train=True)
    logits = outputs["logits"] + params["bias"][None]
    ce = naive.cross_entropy(logits, y)
    return ce, (stats, logits, ce)


class FedCPTest(chex.TestCase):
    def test_equals_the_loops(self):
        state = ended(made(fedcp, epochs=2, lam=0.8, gumbel=False))
        w, gate, heads = oracle(2, 0.8)
        chex.assert_trees_all_close(tuple(state.server.net), w, atol=5e-6)
        chex.assert_trees_all_close(state.server.gate, gate, atol=5e-6)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(one(state.clients[0], i), heads[i], atol=5e-6)
        drawn = toy.reference("fedcp")[2].server.gate["linear"]["kernel"]
        self.assertGreater(np.abs(drawn - gate["linear"]["kernel"]).max(), 1e-4)

    def test_a_gate_for_the_personal_head_alone_is_fedper(self):
        net, gate = MODEL.init(jax.random.key(1)), init_gate(jax.random.key(2), D)
        own = gate | {"scale": jnp.zeros(2 * D), "bias": jnp.repeat(jnp.asarray([200.0, 0.0]), D)}
        head = jax.tree.map(lambda p: 0.5 * p, net.params["head"])
        sent = Server(net._replace(params=net.params | {"head": jax.tree.map(jnp.zeros_like, head)}), own)
        out = toy.update_client(made(fedcp, lam=0.0)(toy.task()), sent, head)
        x, y = naive.rows(toy.data())[0]
        end = naive.train(MODEL, net.params | {"head": head}, net.stats, x, y, jax.random.key(5), epochs=1, **STEPS)
        chex.assert_trees_all_close(out.state, end.params["head"], atol=2e-6)
        body = naive.plus(net.params["body"], out.uplink.net.params["body"])
        chex.assert_trees_all_close(body, end.params["body"], atol=2e-6)
        chex.assert_trees_all_close(out.uplink.net.params["head"], jax.tree.map(lambda p: p / 2, end.params["head"]), atol=2e-6)

    def test_noise_is_gumbel_s_and_is_added_to_the_gate_s_outputs(self):
        gate, z = init_gate(jax.random.key(1), D), jax.random.normal(jax.random.key(2), (7, D))
        drawn, v = policy(gate, z, jnp.arange(1.0, 1 + D), jax.random.key(3)), jnp.arange(1.0, 1 + D)
        noise = jax.random.gumbel(jax.random.key(3), (7, 2, D)).reshape(7, 2 * D)
        for row in range(7):
            for found, wanted in zip(drawn, shares(gate, z[row], v, noise[row]), strict=True):
                np.testing.assert_allclose(found[row], wanted, atol=5e-6)
        self.assertGreater(np.abs(drawn[0] - policy(gate, z, v)[0]).max(), 0.1)

    def test_noise_is_drawn_in_training_alone(self):
        algorithm = made(fedcp, lam=0.0)(toy.task())
        server = algorithm.server_init(jax.random.key(0))
        head, x = algorithm.client_init(jax.random.key(1), server, 0), toy.data().test.x[:4]
        scored = [algorithm.predict["personal"](server, head, x)["logits"] for _ in range(2)]
        np.testing.assert_array_equal(*scored)
        plain = made(fedcp, lam=0.0, gumbel=False)(toy.task())
        np.testing.assert_allclose(plain.predict["personal"](server, head, x)["logits"], scored[0], atol=1e-6)
        ends = [toy.update_client(method, server, head).uplink.gate["bias"] for method in (algorithm, plain)]
        self.assertGreater(np.abs(ends[0] - ends[1]).max(), 1e-5)

    def test_discrepancy(self):
        a, b = jax.random.normal(jax.random.key(1), (2, 5, D))
        mask = jnp.arange(5) < 3
        np.testing.assert_allclose(squared_mmd(a, b, mask), mmd(a[:3], b[:3]), atol=1e-5)
        np.testing.assert_allclose(squared_mmd(a, a, mask), 0, atol=1e-6)

    def test_a_client_predicts_with_both_heads(self):
        sim, _, state = toy.reference("fedcp")
        x, head = toy.data().test.x, one(state.clients[0], 3)
        logits = sim.spec.algorithm(0, sim.spec.host_arrays, 2).predict["personal"](state.server, head, x)["logits"]
        params = {"body": state.server.net.params["body"], "own": head, "gate": state.server.gate}
        v, shared = jnp.sum(head["kernel"], 1), state.server.net.params["head"]
        z = MODEL.features(state.server.net, x)[0]
        for row in (0, 9):
            r, s = shares(params["gate"], z[row], v)
            wanted = (r * z[row]) @ head["kernel"] + head["bias"] + (s * z[row]) @ shared["kernel"] + shared["bias"]
            np.testing.assert_allclose(logits[row], wanted, atol=1e-5)

    def test_what_travels(self):
        shapes = toy.reference("fedcp")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5 + 2 * D**2 + 6 * D
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(-0.5, float("nan"))
    def test_lambda_must_not_be_negative(self, lam):
        with self.assertRaisesRegex(ValueError, f"^lam={lam} must be .*at least 0$"):
            simulate(made(fedcp, lam=lam))

    def test_a_gate_for_the_global_head_alone_trains_the_body_under_it(self):
        """The personal head moves by its bias alone, which no gate divides."""
        net, gate = MODEL.init(jax.random.key(1)), init_gate(jax.random.key(2), D)
        shut = gate | {"scale": jnp.zeros(2 * D), "bias": jnp.repeat(jnp.asarray([0.0, 200.0]), D)}
        own = jax.tree.map(lambda p: 0.3 - p, net.params["head"])
        out = toy.update_client(made(fedcp, lam=0.0)(toy.task()), Server(net, shut), own)
        x, y = naive.rows(toy.data())[0]
        start, head = {"body": net.params["body"], "bias": own["bias"]}, net.params["head"]
        end = naive.train(None, start, net.stats, x, y, jax.random.key(5), epochs=1, whole=under_a_frozen_head, given=head, **STEPS)
        body = naive.plus(net.params["body"], out.uplink.net.params["body"])
        chex.assert_trees_all_close(body, end.params["body"], atol=2e-6)
        np.testing.assert_array_equal(out.state["kernel"], own["kernel"])
        np.testing.assert_allclose(out.state["bias"], end.params["bias"], atol=2e-6)
        self.assertFalse(any(np.any(leaf) for leaf in jax.tree.leaves(out.uplink.gate)))

    def test_an_unseen_client_begins_with_the_global_head(self):
        algorithm = made(fedcp)(toy.task())
        server = algorithm.server_init(jax.random.key(0))
        other = algorithm.client_init(jax.random.key(1), server, 8)
        self.assertGreater(np.abs(other["kernel"] - server.net.params["head"]["kernel"]).max(), 0.1)
        chex.assert_trees_all_equal(algorithm.init_unseen(server, other), server.net.params["head"])
