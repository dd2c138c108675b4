"""FedRoD in loops with both losses written out, and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Net
from methods.fedavg import fedavg
from methods.fedrod import fedrod
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedper import STEPS, first_round, made, one, simulate

K = toy.CLASSES


def both(params, stats, x, y, given):
    """Balanced cross-entropy of the generic head, plus the personal head's on logits and features that carry no gradient."""
    gamma, counts = given
    outputs, stats = MODEL.apply(Net({"body": params["body"], "head": params["head"]}, stats), x, train=True)
    generic = outputs["logits"] + gamma * jnp.log(jnp.maximum(counts, 1.2e-38))[None]
    z, o_g = jax.lax.stop_gradient(outputs["features"]), jax.lax.stop_gradient(outputs["logits"])
    own = o_g + z @ params["own"]["kernel"] + params["own"]["bias"][None]
    ce = naive.cross_entropy(own, y)
    return naive.cross_entropy(generic, y) + ce, (stats, own, ce)


def oracle(rounds, gamma=1.0):
    """The server's network, and every client's personal head."""
    clients = naive.rows(toy.data())
    w = tuple(MODEL.init(naive.stream(0, naive.INIT)))
    heads = [jax.tree.map(jnp.zeros_like, w[0]["head"]) for _ in clients]
    for r in range(rounds):
        deltas, share = [], []
        for i in naive.cohort(0, r, len(clients), 5):
            x, y = clients[i]
            counts = jnp.asarray([float(sum(label == c for label in y)) for c in range(K)])
            key, start = naive.client_key(0, r, i), w[0] | {"own": heads[i]}
            end = naive.train(MODEL, start, w[1], x, y, key, epochs=2, whole=both, given=(gamma, counts), **STEPS)
            heads[i] = end.params["own"]
            deltas.append(naive.minus(({name: end.params[name] for name in w[0]}, end.stats), w))
            share.append(len(y))
        w = naive.plus(w, naive.mean(deltas, share))
    return w, heads


class FedRoDTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("fedrod")
        w, heads = oracle(2)
        chex.assert_trees_all_close(tuple(state.server), w, atol=5e-6)
        for i in range(toy.CLIENTS):
            chex.assert_trees_all_close(one(state.clients[0], i), heads[i], atol=5e-6)

    def test_gamma_zero_is_fedavg_for_the_shared_part(self):
        plain, expected = first_round(fedrod, epochs=2, gamma=0.0)[2], first_round(fedavg, epochs=2)[2]
        chex.assert_trees_all_close(plain.uplink, expected.uplink, atol=1e-6)

    def test_the_shared_part_never_notices_the_personal_heads(self):
        sim, before, state = toy.reference("fedrod")
        other = before._replace(clients=jax.tree.map(lambda x: x + 3, before.clients))
        changed, _ = sim.run_rounds(sim.compiled.put(other), 2)
        changed = jax.device_get(changed)
        chex.assert_trees_all_equal(changed.server, state.server)
        self.assertGreater(np.abs(changed.clients[0]["bias"] - state.clients[0]["bias"]).max(), 1e-2)

    def test_a_personal_head_of_zero_predicts_as_the_generic_one(self):
        sim, before, _ = toy.reference("fedrod")
        holds, x = sim.client_view(sim.compiled.put(before), 1).holds, toy.data().test.x
        algorithm = sim.spec.abstract_algorithm(0)
        logits = [algorithm.predict[name](*holds[name], x)["logits"] for name in ("personal", "global")]
        np.testing.assert_allclose(*logits, atol=1e-6)
        self.assertTrue(all(not np.any(leaf) for leaf in jax.tree.leaves(before.clients)))

    def test_a_class_without_examples_gets_no_gradient(self):
        """The last client has none of class 0: neither its logit's bias nor its column of the kernel moves."""
        w = MODEL.init(naive.stream(0, naive.INIT))
        x, y = naive.rows(toy.data())[-1]
        self.assertNotIn(0, y)
        counts = jnp.asarray([float(np.sum(y == c)) for c in range(K)])
        start = w.params | {"own": jax.tree.map(jnp.zeros_like, w.params["head"])}
        end = naive.train(MODEL, start, w.stats, x, y, jax.random.key(0), epochs=2, whole=both, given=(1.0, counts), **STEPS)
        np.testing.assert_array_equal(end.params["head"]["kernel"][:, 0], w.params["head"]["kernel"][:, 0])
        scaled = naive.train(MODEL, start, w.stats, x, y, jax.random.key(0), epochs=2, whole=both, given=(1.0, 7 * counts), **STEPS)
        chex.assert_trees_all_close(scaled.params, end.params, atol=1e-6)
        own = jax.tree.map(jnp.zeros_like, w.params["head"])
        sent = toy.update_client(made(fedrod, epochs=2)(toy.task()), w, own, toy.CLIENTS - 1)
        np.testing.assert_array_equal(sent.uplink.params["head"]["kernel"][:, 0], 0)
        self.assertGreater(np.abs(sent.uplink.params["head"]["kernel"][:, 1:]).max(), 0)

    def test_what_travels(self):
        shapes = toy.reference("fedrod")[0].spec.shapes
        numbers = (5 * 6 + 6) + (6 * 3 + 3) + 5
        self.assertEqual((shapes.down, shapes.up), (4 * numbers, 4 * numbers))

    @parameterized.parameters(-0.5, float("nan"))
    def test_gamma_must_not_be_negative(self, gamma):
        with self.assertRaisesRegex(ValueError, f"^gamma={gamma} must be .*at least 0$"):
            simulate(made(fedrod, gamma=gamma))
