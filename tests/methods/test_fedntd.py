"""FedNTD in loops over examples and wrong classes, and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.fedntd import fedntd, not_true_distillation
from tests import naive, toy
from tests.methods.test_fedavg import MODEL, PLAIN
from tests.methods.test_fedlc import averaged
from tests.methods.test_fedprox import compiled, one_round


def not_true(params, outputs, x, y, given):
    """beta tau^2 times the mean divergence of the wrong classes' probabilities."""
    beta, tau, sent = given
    teacher = MODEL.apply(type(MODEL.init(jax.random.key(0)))(*sent), x)[0]["logits"]
    total = 0.0
    for b in range(len(y)):
        wrong = (y[b] + 1 + jnp.arange(toy.CLASSES - 1)) % toy.CLASSES
        p, q = (jnp.exp(o[b][wrong] / tau) / jnp.sum(jnp.exp(o[b][wrong] / tau)) for o in (teacher, outputs["logits"]))
        total += jnp.sum(p * jnp.log(p / q))
    return beta * tau**2 * total / len(y)


class FedNTDTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("fedntd")
        w = averaged(0, 2, naive.with_term(MODEL, not_true), lambda k, w: (0.6, 2.0, w))
        chex.assert_trees_all_close(tuple(after.server.net), w, atol=1e-5)

    def test_beta_zero_is_fedavg(self):
        net = MODEL.init(jax.random.key(0))
        plain, ours = (one_round(update, net) for update in (compiled(fedavg), compiled(fedntd, beta=0.0)))
        chex.assert_trees_all_close(ours.uplink, plain.uplink, atol=1e-7)

    def test_of_the_teachers_own_logits_there_is_no_gradient(self):
        rng = np.random.default_rng(0)
        logits, y, mask = jnp.asarray(rng.normal(size=(5, 4)), jnp.float32), jnp.asarray([0, 1, 2, 3, 0]), jnp.ones(5, bool)
        value, gradient = jax.value_and_grad(not_true_distillation)(logits, logits, y, mask, 1.5)
        np.testing.assert_allclose(value, 0, atol=1e-7)
        np.testing.assert_allclose(gradient, 0, atol=1e-7)

    def test_the_true_logit_and_padding_are_left_out(self):
        rng = np.random.default_rng(1)
        logits, teacher = jnp.asarray(rng.normal(size=(2, 5, 4)), jnp.float32)
        y, mask = jnp.asarray([0, 1, 2, 3, 0]), jnp.asarray([1, 1, 1, 1, 0], bool)
        value, gradient = jax.value_and_grad(not_true_distillation)(logits, teacher, y, mask, 2.0)
        self.assertGreater(float(value), 1e-3)
        moved = logits.at[jnp.arange(5), y].add(3.0).at[4].set(9.0)
        np.testing.assert_allclose(not_true_distillation(moved, teacher, y, mask, 2.0), value, rtol=1e-5)
        np.testing.assert_array_equal(gradient[jnp.arange(5), y], 0)
        np.testing.assert_array_equal(gradient[4], 0)

    def test_of_two_classes_there_is_nothing_to_distil(self):
        logits, teacher = jnp.asarray([[0.3, -1.0]]), jnp.asarray([[2.0, 1.0]])
        self.assertEqual(float(not_true_distillation(logits, teacher, jnp.asarray([1]), jnp.ones(1, bool), 1.0)), 0)

    @parameterized.parameters(
        (dict(beta=-1.0), "^beta=-1.0 must be .*at least 0$"), (dict(tau=0.0), "^tau=0.0 must be .*positive$")
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            fedntd(toy.task(), optimizer=local_training.sgd(0.1), **wrong)

    def test_the_first_step_is_fedavgs(self):
        """The teacher is the model that is trained, where evaluation is as training: without batch statistics."""
        net, full = PLAIN.init(jax.random.key(0)), dict(epochs=1, batch=max(toy.SIZES), task=toy.task(statistics=False))
        plain, ours = (one_round(update, net) for update in (compiled(fedavg, **full), compiled(fedntd, beta=50.0, **full)))
        chex.assert_trees_all_close(ours.uplink, plain.uplink, atol=1e-6)
