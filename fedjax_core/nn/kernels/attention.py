"""Attention and GELU whose gradients are fast on CPUs.

On XLA:CPU products whose batch axes are not in front are slow, and so is the backward pass of
`jax.nn.softmax`: attention takes 2.5 times as long. GELU here keeps one array, the slope.
"""

import jax
import jax.numpy as jnp

from fedjax_core.nn.kernels import are_kernels_enabled

Array = jax.Array

MASKED_SCORE = -1e30  # finite, so that a query without any key has no NaN


def split_heads(x: Array, number: int) -> Array:
    """Splits [B, T, number * E] into [B, T, number, E]."""
    return x.reshape(*x.shape[:-1], number, -1)


def attend(
    query: Array, key: Array, value: Array, mask: Array | None = None, *, scale: float | None = None, cap: float | None = None
) -> Array:
    """Returns the attention of queries to keys; the softmax is taken in float32.

    Args:
      query: [B, T, H, E].
      key: [B, S, G, E]; G divides H, and H / G consecutive query heads share a key head.
      value: [B, S, G, E].
      mask: [B, T, S], True where a query attends to a key; None: everywhere.
      scale: of the scores; None: 1 / sqrt(E).
      cap: c, where scores become c tanh(score / c); None: nowhere.

    Returns:
      [B, T, H * E].
    """
    b, t, h, e = query.shape
    if not are_kernels_enabled() and cap is None:
        mask = None if mask is None else mask[:, None]
        return jax.nn.dot_product_attention(query, key, value, mask=mask, scale=scale).reshape(b, t, h * e)
    s, g = key.shape[1:3]
    query = query.reshape(b, t, g, h // g, e).transpose(0, 2, 3, 1, 4).reshape(b, g, -1, e)
    key, value = key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)
    scores = jnp.einsum("bgqe,bgse->bgqs", query, key, preferred_element_type=jnp.float32)
    scores = scores * (e**-0.5 if scale is None else scale)
    scores = scores if cap is None else cap * jnp.tanh(scores / cap)
    if mask is not None:
        scores = jnp.where(mask[:, None, None], scores.reshape(b, g, -1, t, s), MASKED_SCORE).reshape(scores.shape)
    mixed = jnp.einsum("bgqs,bgse->bgqe", _softmax(scores).astype(value.dtype), value)
    return mixed.reshape(b, g, -1, t, e).transpose(0, 3, 1, 2, 4).reshape(b, t, h * e)


@jax.custom_jvp
def _softmax(x: Array) -> Array:
    """Returns the softmax over the last axis, whose derivative reuses the result."""
    return jax.nn.softmax(x, -1)


@_softmax.defjvp
def _softmax_jvp(x: tuple[Array], dx: tuple[Array]) -> tuple[Array, Array]:
    y = jax.lax.optimization_barrier(_softmax(*x))
    return y, y * (dx[0] - jnp.sum(y * dx[0], -1, keepdims=True))


def gelu(x: Array) -> Array:
    """Returns x Phi(x), as `jax.nn.gelu(x, approximate=False)`; Phi is the standard normal CDF."""
    return _gelu(x) if are_kernels_enabled() else jax.nn.gelu(x, approximate=False)


@jax.custom_jvp
def _gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


@_gelu.defjvp
def _gelu_jvp(x: tuple[Array], dx: tuple[Array]) -> tuple[Array, Array]:
    phi = 0.5 * jax.lax.erfc(-x[0] * 0.5**0.5)
    density = jnp.exp(-0.5 * x[0] * x[0]) * (2 * jnp.pi) ** -0.5
    return x[0] * phi, jax.lax.optimization_barrier(phi + x[0] * density) * dx[0]
