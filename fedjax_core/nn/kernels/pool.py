"""Pooling whose gradient avoids `select_and_scatter`, which is slow on CPUs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fedjax_core.nn.kernels import are_kernels_enabled
from fedjax_core.nn.kernels.bilinear import join_batch
from fedjax_core.nn.kernels.conv import Around, Padding, extract_windows, resolve_padding

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
    return MAX_POOL.bind(x, window=window, stride=stride, around=around)


MAX_POOL = Primitive("fedjax_max_pool")


@MAX_POOL.def_impl
def _max_pool(x: Array, *, window: int, stride: int, around: Around) -> Array:
    return functools.reduce(jnp.maximum, extract_windows(x, (window, window), stride, around, -jnp.inf))


def _max_pool_jvp(
    primals: tuple[Array], tangents: tuple[Array], *, window: int, stride: int, around: Around
) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    y = MAX_POOL.bind(x, window=window, stride=stride, around=around)
    dx = ad.instantiate_zeros(dx)
    if stride == window and not any(map(any, around)):  # side by side: several times as fast as sums of windows
        largest = (_split_tiles(x, y, window) == y[:, :, None, :, None]).astype(dx.dtype)
        return y, jnp.sum(largest * _split_tiles(dx, y, window), (2, 4)) / jnp.sum(largest, (2, 4))
    extract = lambda image, fill: extract_windows(image, (window, window), stride, around, fill)
    largest = [(part == y).astype(dx.dtype) for part in extract(x, -jnp.inf)]
    among = [part * is_largest for part, is_largest in zip(extract(dx, 0.0), largest, strict=True)]
    return y, functools.reduce(jnp.add, among) / functools.reduce(jnp.add, largest)


def _max_pool_batched(args: tuple[Array], dims: tuple[int], **params) -> tuple[Array, int]:
    return join_batch(functools.partial(MAX_POOL.bind, **params), args[0], dims[0]), 0


MAX_POOL.def_abstract_eval(lambda x, **params: jax.typeof(jax.eval_shape(functools.partial(_max_pool, **params), x)))
ad.primitive_jvps[MAX_POOL] = _max_pool_jvp
batching.primitive_batchers[MAX_POOL] = _max_pool_batched
mlir.register_lowering(MAX_POOL, mlir.lower_fun(_max_pool, multiple_results=False))


def _split_tiles(x: Array, y: Array, window: int) -> Array:
    """Returns x [B, H, W, C] as windows side by side, [B, H', window, W', window, C]; y is [B, H', W', C]."""
    images, high, wide, channels = y.shape
    return x[:, : high * window, : wide * window].reshape(images, high, window, wide, window, channels)
