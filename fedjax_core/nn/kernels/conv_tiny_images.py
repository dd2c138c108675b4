"""Convolutions of images of a few pixels, without the products with padding.

A 3x3 kernel on a padded image of 2x2 needs 16 products of channels instead of 36, on one of 1x1 a
single one instead of 9. Each is a matrix product over the batch.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp

Array = jax.Array
Size = tuple[int, ...]
Around = tuple[tuple[int, int], tuple[int, int]]  # padding: (top, bottom), (left, right)
Place = tuple[int, int]

MOST = 48  # maximum products of a plain convolution, since each is an operation of the program
SHARE = 0.75  # maximum fraction of them that remains


def pays(size: Size, kernel: Size, stride: int, around: Around) -> bool:
    """Returns whether few enough products remain to be faster than other forms on a CPU."""
    high, wide = results(size, kernel, stride, around)
    plain = high * wide * kernel[0] * kernel[1]
    few = min(high, wide, *size) > 0 and plain <= MOST  # empty images are left to the other forms
    return few and len(_meetings(size, kernel, stride, around)) <= SHARE * plain


def forward(x: Array, kernel: Array, stride: int, around: Around) -> Array:
    """Convolves (cross-correlation): [B, H, W, C], [kh, kw, C, O] -> [B, H', W', O]."""
    size, window = x.shape[1:3], kernel.shape[:2]
    products = [(to, x[:, *at] @ kernel[tap]) for at, tap, to in _meetings(size, window, stride, around)]
    nothing = jnp.zeros((len(x), kernel.shape[3]), x.dtype)
    return _image(_sums(products), results(size, window, stride, around), nothing)


def image_gradient(dy: Array, kernel: Array, size: Size, stride: int, around: Around) -> Array:
    """Returns the gradient of `forward` for images: [B, H', W', O], [kh, kw, C, O] -> [B, H, W, C]."""
    products = [(at, dy[:, *to] @ kernel[tap].T) for at, tap, to in _meetings(size, kernel.shape[:2], stride, around)]
    return _image(_sums(products), size, jnp.zeros((len(dy), kernel.shape[2]), dy.dtype))


def kernel_gradient(x: Array, dy: Array, size: Size, stride: int, around: Around) -> Array:
    """Returns the gradient of `forward` for the kernel: [B, H, W, C], [B, H', W', O] -> [kh, kw, C, O]."""
    products = [(tap, x[:, *at].T @ dy[:, *to]) for at, tap, to in _meetings(x.shape[1:3], size, stride, around)]
    sums, nothing = _sums(products), jnp.zeros((x.shape[3], dy.shape[3]), x.dtype)
    return jnp.stack([jnp.stack([sums.get((a, b), nothing) for b in range(size[1])]) for a in range(size[0])])


def results(size: Size, kernel: Size, stride: int, around: Around) -> Size:
    """Returns the height and width of the result."""
    return tuple((n + sum(ends) - k) // stride + 1 for n, k, ends in zip(size, kernel, around, strict=True))


def _meetings(size: Size, kernel: Size, stride: int, around: Around) -> list[tuple[Place, Place, Place]]:
    """Returns the (image pixel, kernel entry, result pixel) of each product, without padding."""
    high, wide = results(size, kernel, stride, around)
    meetings = []
    for to in ((p, q) for p in range(high) for q in range(wide)):
        for tap in ((a, b) for a in range(kernel[0]) for b in range(kernel[1])):
            at = (to[0] * stride + tap[0] - around[0][0], to[1] * stride + tap[1] - around[1][0])
            if 0 <= at[0] < size[0] and 0 <= at[1] < size[1]:
                meetings.append((at, tap, to))
    return meetings


def _sums(products: Iterable[tuple[Place, Array]]) -> dict[Place, Array]:
    """Sums products by place."""
    sums: dict[Place, Array] = {}
    for place, product in products:
        sums[place] = sums[place] + product if place in sums else product
    return sums


def _image(entries: dict[Place, Array], size: Size, nothing: Array) -> Array:
    """Assembles an image [B, H, W, C] of pixels [B, C]; missing ones are `nothing`."""
    rows = [jnp.stack([entries.get((i, j), nothing) for j in range(size[1])], 1) for i in range(size[0])]
    return jnp.stack(rows, 1)
