"""Pooling whose gradient is fast on every backend."""

import jax
import jax.numpy as jnp

Array = jax.Array


def max_pool(x: Array, window: int) -> Array:
    """Largest entry of each window of window x window, side by side; rows and columns that fill no window are dropped.

    Args:
      x: [B, H, W, C].
      window: its height, width and stride.

    Returns:
      [B, H // window, W // window, C]. Where several entries are the largest, they share the gradient equally.
    """
    return jnp.max(_windows(x, window), axis=(2, 4))


def avg_pool(x: Array, window: int) -> Array:
    """Mean of each window, as `max_pool`."""
    return jnp.mean(_windows(x, window), axis=(2, 4))


def _windows(x: Array, window: int) -> Array:
    """[B, H, W, C] -> [B, H // window, window, W // window, window, C]."""
    b, h, w, c = x.shape
    h, w = h // window, w // window
    return x[:, : h * window, : w * window].reshape(b, h, window, w, window, c)
