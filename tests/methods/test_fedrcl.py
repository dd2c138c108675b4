"""FedRCL against sums over pairs of rows, and its limits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from fedjax_core.training import local_training
from methods.fedavg import fedavg
from methods.fedrcl import contrastive_terms, fedrcl, relaxed_contrastive_loss
from tests import naive, toy
from tests.methods.test_fedavg import MODEL
from tests.methods.test_fedprox import averaged, compiled, one_round


def losses(features, y, tau, lam):
    """Means of SCL_i and DIV_i over the rows, in loops; `y` may be traced."""
    n = len(features)
    u = [naive.direction(z) for z in features]
    s = [[jnp.sum(u[i] * u[j]) for j in range(n)] for i in range(n)]
    scl = div = 0.0
    for i in range(n):
        same = [y[j] == y[i] for j in range(n)]
        hardest = smallest_of([jnp.where(same[j], s[i][j], 2.0) for j in range(n)])
        others = jnp.sort(jnp.stack([jnp.where(same[j], -jnp.inf, s[i][j]) for j in range(n)]))[::-1]
        scl += -hardest / tau + jnp.log(jnp.exp(hardest / tau) + sum(jnp.exp(others[k] / tau) for k in range(min(2, n))))
        r = smallest_of([jnp.where(same[j], s[i][j], 2.0) for j in range(n) if j != i] or [jnp.float32(2.0)])
        exists = (r >= lam) & (r < 1.5)
        r = jnp.where(exists, r, -1.0)
        div += jnp.log(jnp.exp(1 / tau) + jnp.exp(r / tau)) - 1 / tau
    return scl / n, div / n


def smallest_of(values):
    smallest = values[0]
    for value in values[1:]:
        smallest = jnp.where(value < smallest, value, smallest)
    return smallest


def relaxed_terms(params, outputs, x, y, given):
    tau, lam, contrast, beta = given
    scl, div = losses(outputs["features"], y, tau, lam)
    return contrast * scl + beta * div


def batch(seed=0, n=7, classes=3):
    rng = np.random.default_rng(seed)
    return (0.7 * rng.normal(size=(n, 4)) + 1).astype(np.float32), rng.integers(0, classes, n)


ALL = np.ones(7, bool)
SLOPE = [jax.jit(jax.value_and_grad(lambda *given, part=part: contrastive_terms(*given)[part])) for part in (0, 1)]
NAIVE_SLOPE = [jax.jit(jax.value_and_grad(lambda *given, part=part: losses(*given)[part])) for part in (0, 1)]


class FedRCLTest(chex.TestCase):
    def test_equals_the_loops(self):
        _, _, after = toy.reference("fedrcl")
        whole = naive.with_term(MODEL, relaxed_terms)
        w = averaged(0, 2, whole, lambda params: (0.5, 0.2, 0.8, 1.5), weights="uniform")
        chex.assert_trees_all_close(tuple(after.server.net), w, atol=1e-5)

    @parameterized.parameters(0, 1, 2)
    def test_pairs_equal_the_loops_and_so_do_gradients(self, seed):
        x, y = batch(seed)
        padded = np.concatenate([x, x[:2] * 3 + 1]), np.concatenate([y, y[:2]])
        for settings in ((0.5, 0.2), (0.1, 0.6)):
            for part in (0, 1):
                value, gradient = SLOPE[part](*padded, np.arange(9) < 7, *settings)
                expected, slope = NAIVE_SLOPE[part](x, y, *settings)
                np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(gradient[:7], slope, atol=1e-5)
                np.testing.assert_array_equal(gradient[7:], np.zeros((2, 4)))
                self.assertGreater(np.abs(slope).max(), 1e-4)

    def test_the_published_temperature_is_finite(self):
        x, y = batch()
        for slope in SLOPE:
            value, gradient = slope(np.concatenate([x[:6], x[:1]]), y, ALL, 0.05, 0.7)
            self.assertTrue(np.isfinite(value) and np.isfinite(gradient).all())

    def test_limits(self):
        x, y = batch()
        pull, push = (lambda *given, slope=slope: slope(*given[:2], ALL, 0.5, *given[2:]) for slope in SLOPE)
        value, gradient = pull(x, np.zeros(7, int), 0.2)  # one class: nothing to be told apart
        np.testing.assert_allclose(value, 0, atol=1e-6)
        np.testing.assert_allclose(gradient, np.zeros_like(x), atol=1e-6)
        floor = np.log(1 + np.exp(-2 / 0.5))
        for labels, lam in [(np.arange(7), 0.2), (y, 1.1)]:  # no pair of one class; none too alike
            value, gradient = push(x, labels, lam)
            np.testing.assert_allclose(value, floor, rtol=1e-5)
            np.testing.assert_array_equal(gradient, np.zeros_like(x))
        value, _ = push(np.ones_like(x), np.zeros(7, int), 0.2)  # all alike
        np.testing.assert_allclose(value, np.log(2), rtol=1e-5)
        scaled = x * np.linspace(0.5, 3, 7, dtype=np.float32)[:, None]
        np.testing.assert_allclose(contrastive_terms(scaled, y, ALL, 0.5, 0.2), contrastive_terms(x, y, ALL, 0.5, 0.2), rtol=1e-4)

    def test_levels_are_averaged_over_the_image_and_then_over_levels(self):
        rng = np.random.default_rng(1)
        hidden = {name: rng.normal(size=(5, 2, 3, 4)).astype(np.float32) for name in ("stem_pre", "stem", "stage1_pre", "stage1")}
        y, mask = np.array([0, 1, 0, 2, 1]), np.array([1, 1, 1, 1, 0], bool)

        def apply(net, x, key=None, train=False, mask=None, intermediates=False):
            outputs, stats = MODEL.apply(net, x, key, train, mask)
            return outputs | ({"intermediates": hidden} if intermediates else {}), stats

        net, x = MODEL.init(jax.random.key(0)), toy.data().test.x[:5]
        loss = relaxed_contrastive_loss(MODEL._replace(apply=apply), tau=0.5, lam=0.2, contrast=0.3, beta=0.6)
        value, aux = loss(net, local_training.Batch(x, y, mask), jax.random.key(0))
        ce = naive.cross_entropy(MODEL.apply(net, x, train=True, mask=mask)[0]["logits"][:4], y[:4])
        expected = ce
        for name in ("stem_pre", "stage1_pre"):
            scl, div = losses(hidden[name][:4].mean((1, 2)), y[:4], 0.5, 0.2)
            expected += (0.3 * scl + 0.6 * div) / 2
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        np.testing.assert_allclose(aux.sums["loss"], [4 * ce, 4], rtol=1e-5)

    def test_without_both_terms_it_is_uniform_fedavg(self):
        net = MODEL.init(jax.random.key(0))
        out = one_round(compiled(fedrcl, contrast=0.0, beta=0.0), net)
        chex.assert_trees_all_close(out.uplink, one_round(compiled(fedavg), net).uplink, atol=1e-7)

    def test_every_coefficient_counts(self):
        net, (x, y) = MODEL.init(jax.random.key(0)), (toy.data().test.x[:6], np.array([0, 1, 0, 1, 1, 0]))
        minibatch = local_training.Batch(x, y, ALL[:6])

        @jax.jit
        def gradient(tau, lam, contrast, beta):
            loss = relaxed_contrastive_loss(MODEL, tau=tau, lam=lam, contrast=contrast, beta=beta)
            return jax.grad(lambda net: loss(net, minibatch, jax.random.key(0))[0])(net).params["body"]["kernel"]

        base = gradient(0.5, -0.9, 1.0, 1.0)
        for change in [(0.3, -0.9, 1.0, 1.0), (0.5, 1.1, 1.0, 1.0), (0.5, -0.9, 0.5, 1.0), (0.5, -0.9, 1.0, 3.0)]:
            self.assertGreater(np.abs(gradient(*change) - base).max(), 1e-4, change)

    @parameterized.parameters(
        (dict(tau=0.0), "tau=0.0 must be positive"),
        (dict(lam=-1.5), "lam=-1.5 must be at least -1"),
        (dict(contrast=-1.0), "contrast=-1.0 must be at least 0"),
        (dict(beta=float("nan")), "beta=nan must be a finite number, at least 0"),
    )
    def test_errors(self, wrong, message):
        with self.assertRaisesRegex(ValueError, message):
            fedrcl(toy.task(), optimizer=local_training.sgd(0.1), **wrong)
