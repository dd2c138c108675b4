"""Convolutions between few channels, such as a network's first, for 2x2 results at once.

A 3x3 kernel of o channels equals a 4x4 kernel of 4 o channels with stride 2. It has 16/9 of the
products, but XLA:CPU computes those of at least 24 channels three to ten times as fast as those of
at most 16. With three, five or seven inputs it is fast above 32 channels only; so zeros fill up to
eight outputs (LeNet's first layer on 32x32 pixels: 16 ms without them, 2 with, 4 by `lax`). With
stride 2, as in a ResNet's 7x7 stem, a 9x9 kernel with stride 4 has 81/49 of the products and is two
to five times as fast.
"""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_core.nn.kernels.conv_tiny_images import Around, Size, results

Array = jax.Array

CHANNELS = 16  # maximum of inputs and outputs
STRIDED = 7  # maximum of inputs with stride 2
OF_ODD = 32  # maximum of outputs for an odd number of inputs above 1
ODD, FEW, FILLED = (3, 5, 7), range(4, 9), 16  # inputs and outputs whose outputs are filled up to 16
LEAST = 6  # minimum height and width of the result
LARGE = 5  # minimum height and width of a kernel whose gradient is faster this way


def pays(size: Size, kernel: Size, stride: int, around: Around) -> bool:
    """Returns whether `forward` is faster, as measured on a core with AVX-512."""
    kh, kw, c, o = kernel
    large = min(results(size, (kh, kw), stride, around)) >= LEAST and min(kh, kw) > 1
    most = CHANNELS if stride == 1 else STRIDED
    return stride <= 2 and large and c <= most and o <= (OF_ODD if c % 2 and c > 1 else CHANNELS)


def forward(x: Array, kernel: Array, stride: int, around: Around) -> Array:
    """Convolves (cross-correlation): [B, H, W, C], [kh, kw, C, O] -> [B, H', W', O].

    `around`: rows and columns of zeros around an image.
    """
    kh, kw, c, outputs = kernel.shape
    high, wide = results(x.shape[1:3], (kh, kw), stride, around)
    o = FILLED if c in ODD and outputs in FEW else outputs
    kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, 0), (0, o - outputs)))
    moved = [jnp.pad(kernel, ((i, stride - i), (j, stride - j), (0, 0), (0, 0))) for i in (0, stride) for j in (0, stride)]
    four = jnp.stack(moved, -2).reshape(kh + stride, kw + stride, c, 4 * o)
    (top, _), (left, _) = around
    bottom = (high + high % 2 - 1) * stride + kh - x.shape[1] - top  # a negative end crops what no window covers
    right = (wide + wide % 2 - 1) * stride + kw - x.shape[2] - left
    even = (top, bottom), (left, right)
    y = lax.conv_general_dilated(x, four, (2 * stride, 2 * stride), even, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    rows, columns = y.shape[1:3]
    y = y.reshape(-1, rows, columns, 2, 2, o).transpose(0, 1, 3, 2, 4, 5)
    return y.reshape(-1, 2 * rows, 2 * columns, o)[:, :high, :wide, :outputs]


def kernel_gradient_pays(size: Size, kernel: Size, stride: int, around: Around) -> bool:
    """Returns whether `kernel_gradient` is faster: for 5x5 kernels up to three times, not for 3x3 ones."""
    return stride == 1 and pays(size, kernel, stride, around) and min(kernel[:2]) >= LARGE and kernel[3] < CHANNELS


def kernel_gradient(x: Array, dy: Array, size: Size, around: Around) -> Array:
    """Returns the gradient of `forward`, with stride 1, for a kernel of a size: [B, H, W, C], [B, H', W', O] -> [kh, kw, C, O].

    In blocks of 2x2 entries, a window of (kh + 1) x (kw + 1) is few blocks; each is one matrix product
    of [B blocks, 4 C] and [B blocks, 4 O].
    """
    (kh, kw), c, o = size, x.shape[-1], dy.shape[-1]
    down, across = (-(-size // 2) for size in dy.shape[1:3])
    rows, columns = kh // 2 + 1, kw // 2 + 1  # of blocks in a window
    (top, _), (left, _) = around
    ends = (down + rows - 1) * 2 - top - x.shape[1], (across + columns - 1) * 2 - left - x.shape[2]
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), (top, ends[0], 0), (left, ends[1], 0), (0, 0, 0)))
    dy = jnp.pad(dy, ((0, 0), (0, dy.shape[1] % 2), (0, dy.shape[2] % 2), (0, 0)))
    x, dy = _blocks(x), _blocks(dy).reshape(-1, 4 * o)
    product = lambda i, j: x[:, i : i + down, j : j + across].reshape(-1, 4 * c).T @ dy
    sums = jnp.stack([jnp.stack([product(i, j) for j in range(columns)]) for i in range(rows)])
    sums = sums.reshape(rows, columns, 2, 2, c, 2, 2, o).swapaxes(1, 2).reshape(2 * rows, 2 * columns, c, 2, 2, o)
    return sum((sums[i : i + kh, j : j + kw, :, i, j] for i in range(2) for j in range(2)), jnp.zeros((), x.dtype))


def _blocks(x: Array) -> Array:
    """Puts 2x2 entries side by side: [B, H, W, C] -> [B, H / 2, W / 2, 4 C]."""
    images, high, wide, channels = x.shape
    x = x.reshape(images, high // 2, 2, wide // 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(images, high // 2, wide // 2, 4 * channels)
