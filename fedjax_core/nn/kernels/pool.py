"""Pooling whose gradient is fast on every backend: no `select_and_scatter`, which XLA runs slowly on CPU."""

import functools

import jax
import jax.numpy as jnp

from fedjax_core.nn.kernels.conv import Padding, pads, spread, windows

Array = jax.Array
Around = tuple[tuple[int, int], tuple[int, int]]


def max_pool(x: Array, window: int, stride: int | None = None, padding: Padding = "VALID") -> Array:
    """Largest entry of each window.

    The gradient is `lax.reduce_window`'s except where several entries of a window are the largest: they share it equally,
    where `lax` and PyTorch give all of it to the first. After a ReLU nothing is left of the difference, ties being zeros.

    Args:
      x: [B, H, W, C].
      window: its height and width.
      stride: its step; None: `window`.
      padding: see `conv.pads`; the padding never is the largest.

    Returns:
      [B, H', W', C].
    """
    stride = stride or window
    return _max_pool(x, window, stride, pads(x.shape[1:3], (window, window), stride, padding))


def avg_pool(x: Array, window: int, stride: int | None = None, padding: Padding = "VALID") -> Array:
    """Mean of each window; padding counts as zeros, as in PyTorch.

    Args:
      x: [B, H, W, C].
      window: its height and width.
      stride: its step; None: `window`.
      padding: see `conv.pads`.

    Returns:
      [B, H', W', C].
    """
    stride = stride or window
    around = pads(x.shape[1:3], (window, window), stride, padding)
    return sum(windows(x, (window, window), stride, around), jnp.zeros((), x.dtype)) / window**2


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _max_pool(x: Array, window: int, stride: int, around: Around) -> Array:
    return _largest(x, window, stride, around)


def _largest(x: Array, window: int, stride: int, around: Around) -> Array:
    return functools.reduce(jnp.maximum, windows(x, (window, window), stride, around, -jnp.inf))


def _max_pool_forward(x: Array, window: int, stride: int, around: Around) -> tuple[Array, tuple[Array, Array]]:
    y = _largest(x, window, stride, around)
    return y, (x, y)


def _max_pool_backward(window: int, stride: int, around: Around, saved: tuple[Array, Array], dy: Array) -> tuple[Array]:
    x, y = saved
    largest = [(part == y).astype(dy.dtype) for part in windows(x, (window, window), stride, around, -jnp.inf)]
    share = dy / functools.reduce(jnp.add, largest)
    return (spread([share * part for part in largest], x.shape, (window, window), stride, around),)


_max_pool.defvjp(_max_pool_forward, _max_pool_backward)
