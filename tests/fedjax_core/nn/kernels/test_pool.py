"""Pooling against `lax.reduce_window`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_core.nn.kernels import conv, pool

CASES = [(2, 2, (6, 8), "VALID"), (2, 2, (5, 7), "VALID"), (3, 2, (8, 7), 1), (3, 2, (7, 8), "SAME"), (3, 1, (5, 5), 1)]


def window(x, size, stride, padding, start, operation):
    around = ((0, 0), *conv.resolve_padding(x.shape[1:3], (size, size), stride, padding), (0, 0))
    return lax.reduce_window(x, start, operation, (1, size, size, 1), (1, stride, stride, 1), around)


@pytest.mark.parametrize(("size", "stride", "image", "padding"), CASES)
def test_pools_equal_lax(size, stride, image, padding):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, *image, 3)).astype(np.float32)
    of_lax = lambda x: window(x, size, stride, padding, -jnp.inf, lax.max)
    dy = rng.normal(size=jax.eval_shape(of_lax, x).shape).astype(np.float32)
    pooled, expected = (
        jax.jit(lambda x, dy, f=f: (f(x), *jax.vjp(f, x)[1](dy)))(x, dy)
        for f in (lambda x: pool.max_pool(x, size, stride, padding), of_lax)
    )
    for a, b in zip(pooled, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("size", "stride", "image", "padding"), CASES)
def test_derivatives_of_any_order_and_mode(size, stride, image, padding):
    rng = np.random.default_rng(0)
    x, along = rng.normal(size=(2, 1, *image, 2)).astype(np.float32)

    def derivatives(function):
        cubes = lambda x: jnp.sum(function(x) ** 3)
        of_gradient = jax.grad(lambda x: jnp.sum(jnp.square(jax.grad(cubes)(x))))
        return jax.jvp(function, (x,), (along,))[1], of_gradient(x), jax.jvp(jax.grad(cubes), (x,), (along,))[1]

    of_lax = lambda x: window(x, size, stride, padding, -jnp.inf, lax.max)
    ours, theirs = (jax.jit(derivatives, static_argnums=0)(f) for f in (lambda x: pool.max_pool(x, size, stride, padding), of_lax))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_ties_share_the_gradient():
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(pool.max_pool(x, 2))))(jnp.zeros((1, 2, 2, 1)))
    np.testing.assert_array_equal(gradient, np.full((1, 2, 2, 1), 0.25))


def test_ties_of_a_relu_leave_nothing():
    x = jnp.asarray([-1.0, -2.0, 3.0, -4.0, -1.0, -1.0, -1.0, -1.0]).reshape(1, 2, 4, 1)
    ours = jax.jit(jax.grad(lambda x: jnp.sum(pool.max_pool(jax.nn.relu(x), 2))))(x)
    theirs = jax.jit(jax.grad(lambda x: jnp.sum(window(jax.nn.relu(x), 2, 2, "VALID", -jnp.inf, lax.max))))(x)
    np.testing.assert_array_equal(ours, theirs)
