"""Batch normalization against its formula, derived by jax in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.nn.kernels.batch_norm import EPSILON, normalize_batch

SHAPE = (6, 3, 2, 4)
REAL = np.array([1, 0, 1, 1, 1, 0], bool).reshape(6, 1, 1, 1)


def draw(mean=0.0):
    normal = np.random.default_rng(0).normal
    return normal(mean, 1, SHAPE), normal(1, 1, 4), normal(size=4), normal(size=SHAPE) * REAL


def by_formula(x, scale, bias, is_real=None):
    """Normalizes by the statistics of the real examples alone."""
    rows = (x if is_real is None else x[np.ravel(is_real)]).reshape(-1, x.shape[-1])
    mean = jnp.mean(rows, 0)
    var = jnp.mean(jnp.square(rows - mean[None]), 0)
    mean, var, scale, bias = (v[None, None, None] for v in (mean, var, scale, bias))
    return (x - mean) / jnp.sqrt(var + EPSILON) * scale + bias


def loss_of(normalize, is_real, dy):
    return lambda *given: jnp.sum(jnp.sin(normalize(*given, is_real)) * dy)


def ours(*given):
    return normalize_batch(*given)[0]


@pytest.mark.parametrize("is_real", [None, REAL])
@pytest.mark.parametrize(("mean", "tolerance"), [(0.0, 1e-6), (1000.0, 2e-3)])  # a large mean rounds x itself
def test_gradients(is_real, mean, tolerance):
    *given, dy = draw(mean)
    found = jax.jit(jax.grad(loss_of(ours, is_real, np.float32(dy)), (0, 1, 2)))(*map(np.float32, given))
    with jax.enable_x64(True):
        wanted = jax.grad(loss_of(by_formula, is_real, jnp.asarray(dy)), (0, 1, 2))(*map(jnp.asarray, given))
    if is_real is not None:
        np.testing.assert_array_equal(found[0][~np.ravel(is_real)], 0)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * float(np.abs(b).max()) + 1e-7)


def test_a_large_mean_leaves_bfloat16_its_digits():
    x, scale, bias, _ = map(jnp.float32, draw(30.0))
    x = x.astype(jnp.bfloat16)
    wanted = by_formula(x.astype(jnp.float32), scale, bias)
    found = ours(x, scale, bias)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), wanted, rtol=2**-8, atol=1e-4)


def test_second_derivatives():
    """Along a direction, and gradients of gradients."""
    with jax.enable_x64(True):
        *given, dy = map(jnp.asarray, draw())

        def second(normalize):
            gradient = jax.grad(loss_of(normalize, REAL, dy), (0, 1, 2))
            along = jax.jvp(gradient, given, [g[::-1] for g in given])[1]
            return along, jax.grad(lambda *g: sum(jnp.sum(jnp.sin(part)) for part in gradient(*g)), (0, 1, 2))(*given)

        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), second(ours), second(by_formula))


def test_statistics_have_no_gradient():
    *given, _ = map(jnp.asarray, draw())
    for gradient in jax.grad(lambda *g: sum(map(jnp.sum, normalize_batch(*g)[1])), (0, 1, 2))(*given):
        np.testing.assert_array_equal(gradient, 0)


def test_no_copy_without_the_mean_is_kept():
    """The backward pass reads one array of the batch's shape."""
    *given, _ = map(jnp.float32, draw())
    backward = jax.vjp(ours, *given)[1]
    assert sum(np.shape(leaf) == SHAPE for leaf in jax.tree.leaves(backward)) == 1
