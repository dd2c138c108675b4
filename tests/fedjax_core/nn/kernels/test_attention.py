"""Attention and GELU against the formulas, with their derivatives of both modes."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.nn.kernels.attention import attend, gelu, split_heads


def by_formula(query, key, value, mask):
    """A loop over rows and heads."""
    shared = query.shape[2] // key.shape[2]
    rows = []
    for b in range(len(query)):
        columns = []
        for h in range(query.shape[2]):
            q, k, v = query[b, :, h], key[b, :, h // shared], value[b, :, h // shared]
            e = jnp.where(mask[b], jnp.exp(q @ k.T / jnp.sqrt(q.shape[-1])), 0)
            columns.append(e / e.sum(-1, keepdims=True) @ v)
        rows.append(jnp.concatenate(columns, -1))
    return jnp.stack(rows)


def drawn(heads, groups, t=5, s=7):
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    mask = jnp.asarray(rng.random((2, t, s)) < 0.7).at[..., 0].set(True)
    return draw(2, t, heads, 4), draw(2, s, groups, 4), draw(2, s, groups, 4), mask


class TestAttend:
    @pytest.mark.parametrize(("heads", "groups"), [(3, 3), (6, 2), (4, 1)])
    def test_is_the_formula_with_its_gradient(self, heads, groups):
        *parts, mask = drawn(heads, groups)
        weight = jnp.cos(jnp.arange(2 * 5 * heads * 4.0)).reshape(2, 5, -1)
        of = lambda f: jax.jit(jax.value_and_grad(lambda *parts: jnp.sum(weight * f(*parts, mask)), (0, 1, 2)))(*parts)
        chex.assert_trees_all_close(of(attend), of(by_formula), atol=1e-5)

    def test_without_a_mask_everybody_is_seen(self):
        *parts, mask = drawn(3, 3)
        chex.assert_trees_all_close(jax.jit(attend)(*parts), jax.jit(by_formula)(*parts, jnp.ones_like(mask)), atol=1e-6)

    def test_takes_forward_mode_and_second_derivatives(self):
        *parts, mask = drawn(2, 2)
        of = lambda f: lambda q: jnp.sum(jnp.sin(f(q, *parts[1:], mask)))
        chex.assert_trees_all_close(*(jax.jit(jax.hessian(of(f)))(parts[0]) for f in (attend, by_formula)), atol=1e-5)

    def test_a_row_that_sees_nobody_has_numbers(self):
        *parts, mask = drawn(2, 2)
        gradient = jax.jit(jax.grad(lambda q: attend(q, *parts[1:], jnp.zeros_like(mask)).sum()))
        chex.assert_tree_all_finite(gradient(parts[0]))

    def test_heads_divides_the_last_axis(self):
        assert split_heads(jnp.zeros((2, 3, 12)), 4).shape == (2, 3, 4, 3)


def test_gelu_is_that_of_jax_with_both_derivatives():
    x = jnp.linspace(-8, 8, 401)
    exact = lambda x: jax.nn.gelu(x, approximate=False)
    for derive in (lambda f: f, lambda f: jax.vmap(jax.grad(f)), lambda f: jax.vmap(jax.hessian(f))):
        chex.assert_trees_all_close(jax.jit(derive(gelu))(x), jax.jit(derive(exact))(x), atol=1e-6)
