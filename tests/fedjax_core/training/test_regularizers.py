"""Terms of features against loops, in the loss of several methods."""

import functools
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg
from absl.testing import parameterized

from configs import fedavg as config
from fedjax_core import experiment
from fedjax_core.training import local_training, optimizers
from fedjax_core.training.regularizers import correlations, decorrelation, with_regularizers
from methods.fedavg import fedavg
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedprox import compiled, one_round

# FedMD trains on an index of public examples, which cannot be traced alone.
TRACED = tuple(name for name in toy.METHODS if name != "fedmd")
# By method, the number of training passes where it is more than one; FedPFT's first is on features that are computed once.
PASSES = dict.fromkeys(
    ["fedrep", "fedpac", "pfedpt", "ditto", "apfl", "fml", "fml_mixed", "fedsdr", "perada", "pfedme", "fedoa", "fedoa_lora"], 2
)
NEVER_SHARP = ("apfl", "fml", "fml_mixed", "fedsam", "fedasam", "mofedsam", "fedspeed")
FEATURES = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
ALL = np.ones(8, bool)


def trace_training(name, wrap, optimizer):
    """Traces the training of client 0 by a method whose model is wrapped."""
    algorithm = toy.METHODS[name](toy.CASES[name].task().wrap_model(wrap), optimizer=optimizer)
    key = jax.random.key(0)
    server = jax.eval_shape(algorithm.server_init, key)
    client = jax.eval_shape(lambda server: algorithm.client_init(key, server, 0), server)
    sent = jax.eval_shape(lambda server: algorithm.broadcast(server, 0), server)
    jax.eval_shape(algorithm.client_update, sent, client, toy.client_data(0), key)


def term(params, outputs, x, y, given):
    """FedDecorr's released term, feature by feature."""
    z = outputs["features"]
    number, d = z.shape
    if number == 1:
        return 0.0
    z = (z - jnp.mean(z, 0, keepdims=True)) / jnp.sqrt(jnp.var(z, 0, ddof=1, keepdims=True) + 1e-8)
    total = 0.0
    for i in range(d):
        for j in range(d):
            total += 0.0 if i == j else (jnp.sum(z[:, i] * z[:, j]) / (number - 1)) ** 2
    return given * (number - 1) ** 2 / number * total / (d * (d - 1))


class RegularizersTest(chex.TestCase):
    def test_joins_the_loss_of_local_training(self):
        net, (x, y) = MODEL.init(jax.random.key(0)), naive.rows(toy.data())[0]
        task = toy.task().wrap_model(lambda model: with_regularizers(model, [functools.partial(decorrelation, coefficient=0.3)]))
        ours = one_round(compiled(fedavg, task=task), net)
        settings = dict(epochs=2, batch=toy.BATCH, lr=0.1, whole=naive.with_term(MODEL, term), given=0.3)
        w = naive.train(None, *net, x, y, jax.random.key(5), **settings)
        chex.assert_trees_all_close(ours.uplink.params, naive.minus(w.params, net.params), atol=2e-6)
        total, number = ours.metrics["loss"]
        np.testing.assert_allclose(total / number, w.loss, rtol=1e-5)  # the loss alone
        plain = one_round(compiled(fedavg), net)
        self.assertGreater(
            float(jnp.max(jnp.abs(plain.uplink.params["body"]["kernel"] - ours.uplink.params["body"]["kernel"]))), 1e-4
        )
        none = toy.task().wrap_model(lambda model: with_regularizers(model, [functools.partial(decorrelation, coefficient=0.0)]))
        chex.assert_trees_all_close(one_round(compiled(fedavg, task=none), net).uplink, plain.uplink, atol=1e-7)

    @parameterized.parameters(*TRACED)
    def test_every_training_pass_of_a_method_has_the_terms(self, name):
        passes = []

        def count(features, mask):
            passes.append(features.shape)
            return 0.0 * jnp.sum(features)

        trace_training(name, lambda model: with_regularizers(model, [count]), local_training.sgd(0.1))
        self.assertGreaterEqual(len(passes), PASSES.get(name, 1))

    @parameterized.parameters(*TRACED)
    def test_every_training_pass_of_a_method_is_sharpness_aware_or_it_says_why_not(self, name):
        sharp = lambda round_num: optax.chain(local_training.sharpness_aware(0.1), optax.sgd(0.1))
        keep = lambda model: model
        if name in NEVER_SHARP:
            with self.assertRaisesRegex(ValueError, "^optimizer.sharpness must be None with "):
                trace_training(name, keep, sharp)
            return
        climbs = mock.Mock(side_effect=lambda self, params, grads: params)
        with mock.patch.object(optimizers.Ascent, "find_top", lambda self, params, grads: climbs(self, params, grads)):
            trace_training(name, keep, sharp)
        own = ("pfedpt", "pfedme")  # whose prompts and local model have steps of their own
        self.assertGreaterEqual(climbs.call_count, 1 if name in own else PASSES.get(name, 1))

    def test_both_scales_are_the_formulas(self):
        r = np.corrcoef(FEATURES.T)
        off = (np.sum(r**2) - 5) / 20
        np.testing.assert_allclose(decorrelation(FEATURES, ALL, 1.0), 49 / 8 * off, rtol=1e-5)
        np.testing.assert_allclose(decorrelation(FEATURES, ALL, 1.0, "paper"), 1 / 5 + (1 - 1 / 5) * off, rtol=1e-5)
        padded = np.concatenate([FEATURES, np.full((3, 5), np.nan, np.float32)])
        value, gradient = jax.value_and_grad(decorrelation)(padded, np.arange(11) < 8, 1.0)
        np.testing.assert_allclose(value, 49 / 8 * off, rtol=1e-5)
        np.testing.assert_array_equal(gradient[8:], 0)

    def test_limits(self):
        moved = FEATURES * np.array([1, 2, 0.5, 3, 4], np.float32) + 7
        np.testing.assert_allclose(decorrelation(moved, ALL), decorrelation(FEATURES, ALL), rtol=1e-3)
        twice = np.concatenate([FEATURES, FEATURES[:, :1]], 1)
        np.testing.assert_allclose(correlations(twice, ALL)[0, 5], 1, rtol=1e-5)
        dead = FEATURES * np.array([1, 0, 1, 1, 1], np.float32)
        self.assertTrue(np.isfinite(jax.grad(decorrelation)(dead, ALL)).all())
        for mask in (np.arange(8) < 1, np.zeros(8, bool)):
            value, gradient = jax.value_and_grad(decorrelation)(FEATURES, mask)
            self.assertEqual(float(value), 0)
            np.testing.assert_array_equal(gradient, 0)

    def test_a_config_names_them(self):
        settings = config.get_config("smoke")
        settings.regularizers = ("decorrelation(coefficient=0.2)",)
        (found,) = experiment.resolve(settings).regularizers
        self.assertEqual((found.function, found.options), (decorrelation, {"coefficient": 0.2}))
        settings.regularizers = ("decorelation",)
        with self.assertRaisesRegex(ValueError, "unknown regularizer 'decorelation'; allowed: decorrelation"):
            experiment.resolve(settings)
        with self.assertRaisesRegex(
            TypeError, r"^regularizer 'each' must return a term .* a float32\[\], it returned float32\[3\]"
        ):

            def each(features, mask):
                return jnp.where(mask, jnp.sum(features, 1), 0)

            add_to = toy.task().wrap_model(
                lambda model: model._replace(
                    apply=lambda *_, **__: ({"logits": jnp.ones((3, 4)), "features": jnp.ones((3, 2))}, {})
                )
            )
            with_regularizers(add_to.model, [each]).apply(None, None, train=True)
        texts = toy.task().wrap_model(
            lambda model: model._replace(
                apply=lambda *_, **__: ({"logits": jnp.ones((2, 3, 4)), "features": jnp.ones((2, 3, 4))}, {})
            )
        )
        with self.assertRaisesRegex(ValueError, r"^regularizers need features \[B, D\]"):
            with_regularizers(texts.model, [decorrelation]).apply(None, None, train=True)

    def test_of_uncorrelated_features_there_is_nothing_and_never_less(self):
        """Columns of a Hadamard matrix but the first are orthogonal to it and to each other."""
        apart, everything = scipy.linalg.hadamard(16).astype(np.float32)[:, 1:8] * 3 + 2, np.ones(16, bool)
        np.testing.assert_allclose(decorrelation(apart, everything, 1.0), 0, atol=1e-6)
        np.testing.assert_allclose(decorrelation(apart, everything, 1.0, "paper"), 1 / 7, rtol=1e-5)
        for seed in range(5):
            drawn = np.random.default_rng(seed).normal(size=(16, 7)).astype(np.float32)
            self.assertGreaterEqual(float(decorrelation(drawn, everything, 1.0)), 0)
            many = np.random.default_rng(seed).normal(size=(2048, 4)).astype(np.float32)
            self.assertLess(float(decorrelation(many, np.ones(2048, bool), 1.0, "paper")), 1 / 4 + 0.01)
