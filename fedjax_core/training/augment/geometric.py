"""Geometric augmentations: crops and flips; see `pipeline.py`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array
from fedjax_core.option_types import AtLeastZero, Fraction, Positive, check_arguments

Augment = Callable[[Array, Array], Array]  # key, image [H, W, C] in [0, 1] -> [H, W, C]
Range = tuple[Positive, Positive]  # lowest and highest


def crop(padding: AtLeastZero = 4) -> Augment:
    """Pads with zeros and crops a window of the original size, uniformly.

    As torchvision's RandomCrop, and on CIFAR since Lee, Xie, Gallagher, Zhang, Tu.
    Deeply-Supervised Nets. AISTATS 2015.

    Args:
      padding: pixels on each side; less than the image's smaller side, or some windows would be
        empty.

    Raises:
      ValueError: padding < 0. When traced: the image is not larger than the padding.
    """
    check_arguments(crop, padding=padding)

    def op(key: Array, x: Array) -> Array:
        if padding >= min(x.shape[:2]):
            size = f"{x.shape[0]}x{x.shape[1]}"
            raise ValueError(
                f"augmentation crop: padding={padding} of images {size} must be less than {min(x.shape[:2])}, their smaller side"
            )
        top, left = jax.random.randint(key, (2,), 0, 2 * padding + 1)
        around = jnp.pad(x, ((padding, padding), (padding, padding), (0, 0)))
        # Indices, not a slice: for a batch of slices that a flip follows, XLA takes 25 times as long on CPUs.
        return around[top + jnp.arange(x.shape[0])][:, left + jnp.arange(x.shape[1])]

    return op


def flip(probability: Fraction = 0.5) -> Augment:
    """Flips left and right with a given probability."""
    check_arguments(flip, probability=probability)
    return lambda key, x: jnp.where(jax.random.uniform(key) < probability, x[:, ::-1], x)


def resized_crop(scale: Range = (0.08, 1.0), ratio: Range = (3 / 4, 4 / 3)) -> Augment:
    """Crops a window of random area and ratio, and resizes it bilinearly to the size of the image.

    Ten windows are drawn, and the first that fits is used; if none does, the largest central one
    with an allowed ratio. As torchvision's RandomResizedCrop (Szegedy et al. Going Deeper with
    Convolutions. CVPR 2015).

    Args:
      scale: range of the window's area as a fraction of the image's; uniform.
      ratio: range of the window's width over its height; log-uniform.

    Raises:
      ValueError: not 0 < lowest <= highest, or a scale above 1.
    """
    for name, (lowest, highest), top in (("scale", scale, 1.0), ("ratio", ratio, float("inf"))):
        if not 0 < lowest <= highest <= top:
            limit = " <= 1" if top == 1 else ""
            raise ValueError(f"augmentation resized_crop: {name}={(lowest, highest)} must be 0 < lowest <= highest{limit}")

    def op(key: Array, x: Array) -> Array:
        return resize(x, *window(key, x.shape[0], x.shape[1], scale, ratio))

    return op


def window(key: Array, height: int, width: int, scale: Range, ratio: Range) -> tuple[Array, Array, Array, Array]:
    """Draws the window of `resized_crop`: (top, left, height, width), ints as float32."""
    sizes, places = jax.random.split(key)
    u = jax.random.uniform(sizes, (10, 2))
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[:, 0])
    low, high = jnp.log(jnp.asarray(ratio, jnp.float32))
    shape = jnp.exp(low + (high - low) * u[:, 1])
    h, w = jnp.round(jnp.sqrt(area / shape)), jnp.round(jnp.sqrt(area * shape))
    fits = (h > 0) & (h <= height) & (w > 0) & (w <= width)
    first, any_fits = jnp.argmax(fits), jnp.any(fits)
    tall, wide = float(height), float(width)  # the fallback's
    if width / height < ratio[0]:
        tall = float(round(width / ratio[0]))
    elif width / height > ratio[1]:
        wide = float(round(height * ratio[1]))
    h, w = jnp.where(any_fits, h[first], tall), jnp.where(any_fits, w[first], wide)
    v = jax.random.uniform(places, (2,))
    top = jnp.where(any_fits, jnp.floor(v[0] * (height - h + 1)), (height - tall) // 2)
    left = jnp.where(any_fits, jnp.floor(v[1] * (width - w + 1)), (width - wide) // 2)
    return top, left, h, w


def resize(x: Array, top: Array, left: Array, height: Array, width: Array) -> Array:
    """Resizes a window of the image [H, W, C] to [H, W, C] bilinearly, as two products with small matrices.

    Pixel centers are at halves, and pixels outside of the window are never read. A window is no
    larger than the image, so no antialiasing is needed.
    """
    rows, columns = _stretch(x.shape[0], top, height), _stretch(x.shape[1], left, width)
    return jnp.einsum("ik,jl,klc->ijc", rows, columns, x, precision="highest").astype(x.dtype)


def _stretch(n: int, start: Array, length: Array) -> Array:
    """Returns [n, n] weights of pixels k in [start, start + length) for pixel i of the result."""
    at = (jnp.arange(n, dtype=jnp.float32) + 0.5) * (length / n) - 0.5
    at = start + jnp.clip(at, 0, length - 1)
    return jnp.maximum(0, 1 - jnp.abs(at[:, None] - jnp.arange(n, dtype=jnp.float32)[None]))
