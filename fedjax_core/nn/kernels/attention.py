"""Attention, arranged so that its gradient is fast on CPUs as well.

On XLA:CPU a gradient through `jnp.einsum` over [B, T, H, E] and `jax.nn.softmax` takes two and a half times as long: products whose
batch axes are not in front are slow, and so is what `jax.nn.softmax` leaves to the backward pass.
"""

import jax
import jax.numpy as jnp

Array = jax.Array

MINUS = -1e30  # a score that softmax turns to zero; finite, so that a row without real tokens has no NaN


def heads(x: Array, number: int) -> Array:
    """[B, T, number * E] -> [B, T, number, E]."""
    return x.reshape(*x.shape[:-1], number, -1)


def attend(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
    """Attention; the softmax is taken in float32.

    Args:
      query: [B, T, H, E].
      key: [B, S, G, E]; G divides H, and H / G queries in a row share one.
      value: [B, S, G, E].
      mask: [B, T, S], who may look at whom; None: everybody at everybody.

    Returns:
      [B, T, H * E].
    """
    b, t, h, e = query.shape
    s, g = key.shape[1:3]
    query = query.reshape(b, t, g, h // g, e).transpose(0, 2, 3, 1, 4).reshape(b, g, -1, e)
    key, value = key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)
    scores = jnp.einsum("bgqe,bgse->bgqs", query, key, preferred_element_type=jnp.float32) * e**-0.5
    if mask is not None:
        scores = jnp.where(mask[:, None, None], scores.reshape(b, g, -1, t, s), MINUS).reshape(scores.shape)
    mixed = jnp.einsum("bgqs,bgse->bgqe", _softmax(scores).astype(value.dtype), value)
    return mixed.reshape(b, g, -1, t, e).transpose(0, 3, 1, 2, 4).reshape(b, t, h * e)


@jax.custom_jvp
def _softmax(x: Array) -> Array:
    """Over the last axis; its derivative reads the result in place of computing it anew."""
    return jax.nn.softmax(x, -1)


@_softmax.defjvp
def _softmax_jvp(x: tuple[Array], dx: tuple[Array]) -> tuple[Array, Array]:
    y = jax.lax.optimization_barrier(_softmax(*x))
    return y, y * (dx[0] - jnp.sum(y * dx[0], -1, keepdims=True))


@jax.custom_jvp
def gelu(x: Array) -> Array:
    """x Phi(x), Phi the distribution function of the standard normal distribution; as `jax.nn.gelu(x, approximate=False)`."""
    return jax.nn.gelu(x, approximate=False)


@gelu.defjvp
def _gelu_jvp(x: tuple[Array], dx: tuple[Array]) -> tuple[Array, Array]:
    phi = 0.5 * jax.lax.erfc(-x[0] * 0.5**0.5)
    density = jnp.exp(-0.5 * x[0] * x[0]) * (2 * jnp.pi) ** -0.5
    return x[0] * phi, jax.lax.optimization_barrier(phi + x[0] * density) * dx[0]
