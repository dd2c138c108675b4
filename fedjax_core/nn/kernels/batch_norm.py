"""Batch normalization whose gradient needs the batch alone.

By XLA's own derivative, a copy of the batch without its mean lies in memory from the forward to the
backward pass, for every layer. Here sum(dy (x - mean)) is sum(dy x) - mean sum(dy), of a gradient
dy, which rounds as y = x slope + shift does.
"""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_core.nn.kernels import are_kernels_enabled

Array = jax.Array
EPSILON = 1e-5
Statistics = tuple[Array, Array, Array]


def normalize_batch(x: Array, scale: Array, bias: Array, is_real: Array | None = None) -> tuple[Array, Statistics]:
    """Normalizes a batch by its own mean and biased variance.

    Args:
      x: [B, ..., features]; examples that do not count as if they were zero.
      scale: [features].
      bias: [features].
      is_real: [B, 1, ..., 1] bool, the examples that count; None: all.

    Returns:
      y, as x; (mean, variance, number of entries that they are over), [features] and a number, float32
      and without a gradient.
    """
    y, statistics = (_normalize if are_kernels_enabled() else _compute)(x, scale, bias, is_real)
    return y, lax.stop_gradient(statistics)


def scale_and_shift(x: Array, scale: Array, bias: Array, mean: Array, var: Array) -> Array:
    """Returns scale (x - mean) / sqrt(var + epsilon) + bias, as x, by one product and one sum, in float32 or wider.

    In bfloat16 both terms would be rounded, which nearly cancel where a mean is large.
    """
    slope = scale * lax.rsqrt(var + EPSILON)
    return (x * _as_channels(slope, x) + _as_channels(bias - mean * slope, x)).astype(x.dtype)


def _compute(x: Array, scale: Array, bias: Array, is_real: Array | None) -> tuple[Array, Statistics]:
    axes, x = tuple(range(x.ndim - 1)), _keep_real(x, is_real)
    n = jnp.float32(len(x)) if is_real is None else jnp.sum(is_real, dtype=jnp.float32)
    n, wide = n * (x.size // x.shape[0] // x.shape[-1]), x.astype(jnp.float32)
    mean = jnp.sum(wide, axes) / jnp.maximum(n, 1)
    var = jnp.sum(jnp.square(_keep_real(wide - _as_channels(mean, x), is_real)), axes) / jnp.maximum(n, 1)
    return scale_and_shift(x, scale, bias, mean, var), (mean, var, n)


_normalize = jax.custom_vjp(_compute)


def _normalize_forward(x: Array, scale: Array, bias: Array, is_real: Array | None) -> tuple[tuple[Array, Statistics], tuple]:
    y, statistics = _compute(x, scale, bias, is_real)
    return (y, statistics), (x, scale, bias, is_real, statistics)


def _normalize_backward(saved: tuple, gradients: tuple[Array, Statistics]) -> tuple[Array, Array, Array, None]:
    x, scale, bias, is_real, (mean, var, n) = saved
    axes, wide, dy = tuple(range(x.ndim - 1)), x.astype(jnp.float32), gradients[0].astype(jnp.float32)
    inverse, total = lax.rsqrt(var + EPSILON), jnp.sum(dy, axes)
    to_scale = inverse * (jnp.sum(_keep_real(dy * wide, is_real), axes) - mean * total)
    # dx = slope (dy - mean(dy) - unit mean(dy unit)) with unit = (x - mean) inverse, as a sum of dy, x and a constant
    slope = scale * inverse
    of_x = -slope * inverse * to_scale / jnp.maximum(n, 1)
    constant = -slope * total / jnp.maximum(n, 1) - of_x * mean
    dx = _as_channels(slope, x) * dy + _as_channels(of_x, x) * wide + _as_channels(constant, x)
    return _keep_real(dx, is_real).astype(x.dtype), to_scale.astype(scale.dtype), total.astype(bias.dtype), None


_normalize.defvjp(_normalize_forward, _normalize_backward)


def _keep_real(entries: Array, is_real: Array | None) -> Array:
    """Returns `entries`, 0 for examples that do not count."""
    return entries if is_real is None else jnp.where(is_real, entries, 0)


def _as_channels(values: Array, x: Array) -> Array:
    return jnp.reshape(values, (1,) * (x.ndim - 1) + (-1,))
