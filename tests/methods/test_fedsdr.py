"""FedSDR in FedOA's adaptation, in loops, and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.algorithm import Net
from methods.fedsdr import fedsdr, shortcut_penalty, shortcut_penalty_by_parts
from methods.local import local
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedavg import oracle as fedavg_after
from tests.methods.test_fedper import STEPS, first_round, made, one, simulate


def together(e, g):
    """The penalty, example by example and number by number."""
    mean, total = sum(g) / len(g), 0.0
    for e_b, g_b in zip(e, g, strict=True):
        total += abs(sum(e_b[k] * abs(g_b[k] - mean[k]) for k in range(len(mean))))
    return total / len(e)


def removing(params, stats, x, y, given):
    lam, w = given
    outputs, stats = MODEL.apply(Net(params, stats), x, train=True)
    ce = naive.cross_entropy(outputs["logits"], y)
    return ce + lam * together(outputs["features"], MODEL.apply(Net(*w), x)[0]["features"]), (stats, outputs["logits"], ce)


def oracle(rounds, lam):
    clients = naive.rows(toy.data())
    v = [tuple(MODEL.init(naive.stream(0, naive.INIT)))] * len(clients)
    for r in range(rounds):
        w = fedavg_after(0, r, weights="uniform", lr=0.1, momentum=0.5)
        for i in naive.cohort(0, r, len(clients), 5):
            key = naive.client_key(0, r, i)
            v[i] = naive.train(MODEL, *v[i], *clients[i], key, epochs=2, whole=removing, given=(lam, w), **STEPS)[:2]
    return v


class FedSDRTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, state = toy.reference("fedsdr")
        for i, v in enumerate(oracle(2, 0.7)):
            chex.assert_trees_all_close(tuple(one(state.clients[0], i)), v, atol=5e-6)

    def test_records_the_personal_loss_and_the_penalty(self):
        """The values are those of all rows before the one step."""
        server, v, out = first_round(fedsdr, variant="released", round_num=1, epochs=1, batch=64, lam=0.7, micro=9)
        whole, (_, _, ce) = removing(*v, *naive.rows(toy.data())[0], (0.7, server.net))
        for name, value in {"personal_loss": ce, "penalty": (whole - ce) / 0.7}.items():
            self.assertAlmostEqual(float(np.divide(*out.metrics[name])), float(value), places=5)

    def test_the_global_model_is_fedits(self):
        chex.assert_trees_all_equal(toy.reference("fedsdr")[2].server.net, toy.reference("fedit")[2].server.net)

    def test_without_the_penalty_the_personal_models_are_locals(self):
        expected = first_round(local, epochs=2)[2].state
        chex.assert_trees_all_close(first_round(fedsdr, epochs=2, lam=0.0)[2].state, expected, atol=1e-7)

    def test_the_penalty(self):
        e, g = (jax.random.normal(jax.random.key(k), (5, 3)) for k in (0, 1))
        there = jnp.ones(5, bool)
        value = float(shortcut_penalty(e, g, there))
        self.assertAlmostEqual(value, float(together(e, g)), places=5)
        self.assertGreater(value, 0.1)
        self.assertAlmostEqual(float(shortcut_penalty(-e, g, there)), value, places=6)
        self.assertAlmostEqual(float(shortcut_penalty(e, 2 * jnp.mean(g, 0)[None] - g, there)), value, places=5)
        self.assertAlmostEqual(float(shortcut_penalty(e, jnp.ones((5, 3)), there)), 0, places=6)
        self.assertEqual(float(shortcut_penalty(e[:1], g[:1], there[:1])), 0)
        padded = shortcut_penalty(
            jnp.pad(e, ((0, 2), (0, 0))), jnp.pad(g, ((0, 2), (0, 0)), constant_values=jnp.nan), jnp.arange(7) < 5
        )
        self.assertAlmostEqual(float(padded), value, places=6)

    @parameterized.parameters(2, 3, 5, 8)
    def test_parts_of_a_minibatch_have_their_own_means(self, micro):
        e, g = np.random.default_rng(0).normal(size=(2, 7, 3)).astype(np.float32)
        for size in (7, 5, 1):
            parts = [range(start, min(start + micro, size)) for start in range(0, size, micro)]
            expected = sum(together(e[[*part]], g[[*part]]) for part in parts) / len(parts)
            padded = np.where(np.arange(7)[:, None] < size, g, np.nan)
            value = shortcut_penalty_by_parts(jnp.asarray(e), jnp.asarray(padded), jnp.arange(7) < size, micro)
            self.assertAlmostEqual(float(value), float(expected), places=5)

    def test_released_takes_means_over_eight_examples(self):
        """Of nine in a step; alone, an example is its mean and has no penalty."""
        ended = lambda **more: first_round(fedsdr, variant="released", round_num=1, epochs=1, batch=64, **{"lam": 0.7} | more)[2]
        eight, nine, alone = ended(), ended(micro=9), ended(micro=1)
        chex.assert_trees_all_equal(eight.state, ended(micro=8).state)
        chex.assert_trees_all_close(alone.state, ended(lam=0.0).state, atol=1e-6)
        for out in (eight, alone):
            difference = jax.tree.map(lambda a, b: np.abs(a - b).max(), out.state.params, nine.state.params)
            self.assertGreater(max(jax.tree.leaves(difference)), 1e-4)

    def test_released_begins_in_the_second_round(self):
        """From models of the clients' own."""
        server, before, out = first_round(fedsdr, variant="released")
        self.assertGreater(np.abs(before.params["head"]["kernel"] - server.net.params["head"]["kernel"]).max(), 1e-3)
        chex.assert_trees_all_equal(out.state, jax.device_get(before))
        _, before, out = first_round(fedsdr, round_num=1, variant="released")
        self.assertGreater(np.abs(out.state.params["head"]["kernel"] - before.params["head"]["kernel"]).max(), 1e-3)

    @parameterized.parameters(
        (dict(lam=-1.0), "lam=-1.0 must be at least 0"),
        (dict(micro=0), "micro=0 must be at least 1"),
        (dict(variant="printed"), "unknown variant 'printed'; allowed: default"),
    )
    def test_bad_arguments(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            simulate(made(fedsdr, **arguments))
