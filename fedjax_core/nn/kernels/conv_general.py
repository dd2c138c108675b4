"""Convolutions with groups, dilation, several strides or any number of axes, as products of windows.

XLA:CPU computes them, and under a `vmap` over kernels any backend does, many times slower inside a loop. Of each group's
channels the windows are multiplied with a matrix, of a single one with a number.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_core.nn.kernels import bilinear

Array = jax.Array
Numbers = tuple[int, ...]


def make_layout(ndim: int) -> lax.ConvDimensionNumbers:
    """Returns the layout of images [B, ..., C] and kernels [..., C, O] with `ndim` axes."""
    last, spatial = ndim - 1, tuple(range(1, ndim - 1))
    return lax.ConvDimensionNumbers((0, last, *spatial), (last, last - 1, *range(last - 1)), (0, last, *spatial))


class Geometry(NamedTuple):
    """Sizes of the images [..., C] and kernels [..., C / groups, O] of a convolution, and what moves a kernel over an image."""

    image: Numbers
    kernel: Numbers
    strides: Numbers
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: Numbers
    rhs_dilation: Numbers
    groups: int


def _convolve_natively(x: Array, kernel: Array, g: Geometry) -> Array:
    return lax.conv_general_dilated(
        x, kernel, g.strides, g.padding, g.lhs_dilation, g.rhs_dilation, make_layout(x.ndim), feature_group_count=g.groups
    )


def _convolve_windows(x: Array, kernel: Array, g: Geometry) -> Array:
    """Returns `_convolve_natively` up to rounding."""
    inner = [(low, high, step - 1) for (low, high), step in zip(g.padding, g.lhs_dilation, strict=True)]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *inner, (0, 0, 0)])
    taps, (inputs, outputs), spans = kernel.shape[:-2], kernel.shape[-2:], []
    for size, tap, step, stride in zip(x.shape[1:-1], taps, g.rhs_dilation, g.strides, strict=True):
        spans.append((size - (tap - 1) * step - 1) // stride * stride + 1)

    def take(tap: Numbers) -> Array:
        begin = [at * step for at, step in zip(tap, g.rhs_dilation, strict=True)]
        end = [first + span for first, span in zip(begin, spans, strict=True)]
        return lax.slice(x, (0, *begin, 0), (len(x), *end, x.shape[-1]), (1, *g.strides, 1))

    places = list(itertools.product(*map(range, taps)))
    if inputs == 1:
        spread = lambda window: jnp.repeat(window, outputs // g.groups, -1)
        wide = jnp.promote_types(x.dtype, jnp.float32)  # sums of narrow numbers are not narrow
        numbers = kernel.astype(wide).reshape(len(places), *(1,) * (x.ndim - 1), outputs)
        products = (spread(take(place)) * number for place, number in zip(places, numbers, strict=True))
        return functools.reduce(jnp.add, products).astype(x.dtype)
    windows = jnp.stack([take(place) for place in places], -2)  # [B, ..., taps, C]
    if g.groups == 1:
        return windows.reshape(*windows.shape[:-2], -1) @ kernel.reshape(-1, outputs)
    grouped = windows.reshape(*windows.shape[:-1], g.groups, inputs)
    y = jnp.einsum("...tgc,tcgo->...go", grouped, kernel.reshape(len(places), inputs, g.groups, outputs // g.groups))
    return y.reshape(*y.shape[:-2], outputs)


def _compute(part: str, first: Array, second: Array, *, geometry: Geometry, backend: str, vmapped: bool = False) -> Array:
    convolve = _convolve_windows if vmapped or backend == "cpu" else _convolve_natively
    if part == "forward":
        return convolve(first, second, geometry)
    shape = jax.ShapeDtypeStruct(_find_shape(part, first, second, geometry=geometry), first.dtype)
    if part == "for_x":
        return jax.linear_transpose(lambda x: convolve(x, second, geometry), shape)(first)[0]
    return jax.linear_transpose(lambda kernel: convolve(first, kernel, geometry), shape)(second)[0]


def _find_shape(part: str, first: Any, second: Any, *, geometry: Geometry, **_: Any) -> Numbers:
    if part == "forward":
        return jax.eval_shape(lambda x, kernel: _convolve_natively(x, kernel, geometry), first, second).shape
    return (first.shape[0], *geometry.image) if part == "for_x" else geometry.kernel


FORWARD = bilinear.make_primitives("conv_general", _compute, _find_shape)[0]
