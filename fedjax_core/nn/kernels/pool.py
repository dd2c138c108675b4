"""Pooling whose gradient avoids `select_and_scatter`, which is slow on CPUs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_core.nn.kernels import are_kernels_enabled
from fedjax_core.nn.kernels.conv import Around, Padding, extract_windows, resolve_padding, scatter_windows

Array = jax.Array


def max_pool(x: Array, window: int, stride: int | None = None, padding: Padding = "VALID") -> Array:
    """Returns the largest entry of each window, [B, H, W, C] -> [B, H', W', C]; never the padding.

    The gradient is that of `lax.reduce_window`, except where several entries of a window are the
    largest: they share it equally, while `lax` and PyTorch give it to the first. After a ReLU,
    whose ties are zeros, there is no difference. The stride is by default the window's size; for
    `padding` see `conv.resolve_padding`.
    """
    stride = stride or window
    around = resolve_padding(x.shape[1:3], (window, window), stride, padding)
    if not are_kernels_enabled():
        size, strides, outside = (1, window, window, 1), (1, stride, stride, 1), ((0, 0), *around, (0, 0))
        return lax.reduce_window(x, np.asarray(-jnp.inf, x.dtype), lax.max, size, strides, outside)
    return _max_pool(x, window, stride, around)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _max_pool(x: Array, window: int, stride: int, around: Around) -> Array:
    return _largest(x, window, stride, around)


def _largest(x: Array, window: int, stride: int, around: Around) -> Array:
    return functools.reduce(jnp.maximum, extract_windows(x, (window, window), stride, around, -jnp.inf))


def _max_pool_forward(x: Array, window: int, stride: int, around: Around) -> tuple[Array, tuple[Array, Array]]:
    y = _largest(x, window, stride, around)
    return y, (x, y)


def _max_pool_backward(window: int, stride: int, around: Around, saved: tuple[Array, Array], dy: Array) -> tuple[Array]:
    x, y = saved
    if stride == window and not any(map(any, around)):
        return (_scatter_tiles(x, y, dy, window),)
    largest = [(part == y).astype(dy.dtype) for part in extract_windows(x, (window, window), stride, around, -jnp.inf)]
    share = dy / functools.reduce(jnp.add, largest)
    return (scatter_windows([share * part for part in largest], x.shape, (window, window), stride, around),)


def _scatter_tiles(x: Array, y: Array, dy: Array, window: int) -> Array:
    """Returns the gradient of windows side by side, without padding: several times as fast as sums of windows."""
    images, high, wide, channels = y.shape
    inside = x[:, : high * window, : wide * window].reshape(images, high, window, wide, window, channels)
    spread = lambda entries: entries[:, :, None, :, None]
    largest = (inside == spread(y)).astype(dy.dtype)
    dx = spread(dy / jnp.sum(largest, (2, 4))) * largest
    dx = dx.reshape(images, high * window, wide * window, channels)
    rest = [(0, whole - part) for whole, part in zip(x.shape[1:3], dx.shape[1:3], strict=True)]
    return jnp.pad(dx, ((0, 0), *rest, (0, 0)))


_max_pool.defvjp(_max_pool_forward, _max_pool_backward)
