"""Augmentations of color; see `pipeline.py`."""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array
from fedjax_core.option_types import Fraction, Limit, NonNegative, Positive, check_arguments
from fedjax_core.training.augment.geometric import Augment

Planes = tuple[Array, ...]  # the channels of an image, each [H, W]: one, or red, green and blue
HalfCircle = Annotated[float, Limit("in [0, 0.5]", lambda v: 0 <= v <= 0.5)]
GREY = (0.2989, 0.587, 0.114)  # of red, green, blue


def colour_jitter(
    brightness: NonNegative = 0.4, contrast: NonNegative = 0.4, saturation: NonNegative = 0.4, hue: HalfCircle = 0.4
) -> Augment:
    """Changes brightness, contrast, saturation and hue by random amounts, in random order.

    The first three are factors, uniform in [max(0, 1 - a), 1 + a]; the hue is rotated by a fraction
    of the color circle, uniform in [-hue, hue]. Changes of amount 0 are left out, and so are
    saturation and hue for images of one channel.

    As torchvision's ColorJitter, with MoCo v1's amounts by default (He, Fan, Wu, Xie, Girshick.
    Momentum Contrast for Unsupervised Visual Representation Learning. CVPR 2020).

    Args:
      brightness: a; pixels are multiplied by the factor.
      contrast: a; distances to the image's mean grey are multiplied by it.
      saturation: a; distances to the pixel's grey are multiplied by it.
      hue: in [0, 0.5], as a fraction of the color circle.

    Raises:
      ValueError: an amount is out of range; (when traced) the image has neither 1 nor 3 channels.
    """
    amounts = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
    check_arguments(colour_jitter, **amounts)

    def op(key: Array, x: Array) -> Array:
        _channels("colour_jitter", x)
        active = [name for name in ADJUST if amounts[name] and (x.shape[2] == 3 or name in ("brightness", "contrast"))]
        if not active:
            return x
        low = jnp.asarray([-hue if name == "hue" else max(0.0, 1 - amounts[name]) for name in active], jnp.float32)
        high = jnp.asarray([hue if name == "hue" else 1 + amounts[name] for name in active], jnp.float32)
        of_order, of_amounts = jax.random.split(key)
        order = jnp.argsort(jax.random.uniform(of_order, (len(active),)))
        drawn = low + (high - low) * jax.random.uniform(of_amounts, (len(active),))
        adjust = [ADJUST[name] for name in active]
        step = lambda i, planes: jax.lax.switch(order[i], adjust, planes, drawn[order[i]])
        planes = jax.lax.fori_loop(0, len(active), step, _planes(x))
        return jnp.stack(planes, -1).astype(x.dtype)

    return op


def adjust_brightness(planes: Planes, factor: Array) -> Planes:
    """Multiplies pixels by the factor, clipped to [0, 1]."""
    return _blend(planes, jnp.zeros_like(factor), factor)


def adjust_contrast(planes: Planes, factor: Array) -> Planes:
    """Scales distances to the image's mean grey by the factor, clipped to [0, 1]."""
    return _blend(planes, jnp.mean(_grey(planes)), factor)


def adjust_saturation(planes: Planes, factor: Array) -> Planes:
    """Scales distances to each pixel's grey by the factor, clipped to [0, 1]."""
    return _blend(planes, _grey(planes), factor)


def adjust_hue(planes: Planes, turn: Array) -> Planes:
    """Rotates the hue by a fraction of the color circle; value and saturation stay."""
    r, g, b = planes
    value = jnp.maximum(jnp.maximum(r, g), b)
    chroma = value - jnp.minimum(jnp.minimum(r, g), b)
    some = jnp.where(chroma > 0, chroma, 1)
    hue = jnp.where(value == r, (g - b) / some, jnp.where(value == g, 2 + (b - r) / some, 4 + (r - g) / some))

    def channel(n: int) -> Array:
        k = hue + 6 * turn + n
        k = k - 6 * jnp.floor(k / 6)
        return value - chroma * jnp.clip(jnp.minimum(k, 4 - k), 0, 1)

    return channel(5), channel(3), channel(1)


def _blend(planes: Planes, grey: Array, factor: Array) -> Planes:
    return tuple(jnp.clip(factor * plane + (1 - factor) * grey, 0, 1) for plane in planes)


def _grey(planes: Planes) -> Array:
    return planes[0] if len(planes) == 1 else GREY[0] * planes[0] + GREY[1] * planes[1] + GREY[2] * planes[2]


def _planes(x: Array) -> Planes:
    """Splits an image into channels, which is several times faster on a CPU than an axis of three."""
    return tuple(x[..., c].astype(jnp.float32) for c in range(x.shape[2]))


ADJUST = {"brightness": adjust_brightness, "contrast": adjust_contrast, "saturation": adjust_saturation, "hue": adjust_hue}


def greyscale(probability: Fraction = 0.2) -> Augment:
    """Makes an image grey, 0.2989 red + 0.587 green + 0.114 blue, with a given probability."""
    check_arguments(greyscale, probability=probability)

    def op(key: Array, x: Array) -> Array:
        _channels("greyscale", x)
        grey = _grey(_planes(x)).astype(x.dtype)[..., None]
        return jnp.where(jax.random.uniform(key) < probability, grey, x)

    return op


def normalise(mean: float | tuple[float, ...], std: Positive | tuple[Positive, ...]) -> Augment:
    """Normalizes to (x - mean) / std, each one number or one per channel.

    For your own pipelines only: the networks here normalize their inputs themselves, also in
    evaluation. Both are in units of the pixels, which are in [0, 1]; raises ValueError for a std
    that is not positive.
    """
    mean, std = (tuple(v) if isinstance(v, (tuple, list)) else (v,) for v in (mean, std))
    if not all(s > 0 for s in std):
        raise ValueError(f"augmentation normalise: std={std} must be positive")

    def op(key: Array, x: Array) -> Array:
        del key
        return (x - jnp.asarray(mean, x.dtype)[None, None]) / jnp.asarray(std, x.dtype)[None, None]

    return op


def _channels(name: str, x: Array) -> None:
    if x.shape[2] not in (1, 3):
        raise ValueError(f"augmentation {name} is for images of 1 or 3 channels, these have {x.shape[2]}")
