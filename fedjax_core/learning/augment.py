"""Augmentation on the device: small changes of one image, drawn inside the jitted step, one key per example.

An `Augment` is a pure function (key, image [H, W, C] with values in [0, 1]) -> image of the same shape and dtype. Configs compose
them by name, applied from left to right:

    config.augment = "crop(padding=4) | flip"                                                                    CIFAR's usual
    config.augment = "resized_crop(scale=(0.2, 1.0)) | greyscale | colour_jitter | flip"                          MoCo v1's

An augmentation from outside is a function in a module or file of its own, which a config names by its place,
`package.module:name(option=...)` or `path/to/file.py:name(option=...)`, or an entry point of the group
`fedjax_core.augmentations`. It takes options, whose annotations say which values they may have, and returns an `Augment` in JAX:
it is traced, and mapped over a batch.

They enter training through the network: `augmented(model, text)` is the same model, whose inputs are augmented whenever it is
called in training mode, before it normalises them. So every method has them, whatever its loss; evaluation, and features that are
computed in evaluation mode, never see them. Every example has a key of its own, from the step's key and its row: its draw does not
depend on how many rows stand beside it. A loss that applies the network twice with one key sees one view, with two keys two.

The definitions are torchvision's for float tensors, with the result always of the image's own size.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_core import by_name
from fedjax_core.algorithm import Array
from fedjax_core.task import Model
from fedjax_core.values import AtLeastZero, Fraction, NonNegative, Positive

Augment = Callable[[Array, Array], Array]  # key, image [H, W, C] in [0, 1] -> [H, W, C]
Range = tuple[Positive, Positive]  # lowest and highest
Planes = tuple[Array, ...]  # the channels of an image, each [H, W]: one, or red, green and blue
GREY = (0.2989, 0.587, 0.114)  # of red, green, blue
_STREAM = 0x617567  # keeps these draws apart from the network's own (dropout), which come from the same key


def crop(padding: AtLeastZero = 4) -> Augment:
    """Pads with zeros (black) on all sides and cuts out a window of the original size, all positions alike.

    As torchvision's RandomCrop, and on CIFAR since Lee, Xie, Gallagher, Zhang, Tu. Deeply-Supervised Nets. AISTATS 2015.

    Args:
      padding: pixels on each side; less than the image's smaller side, or some windows would hold nothing of it.

    Raises:
      ValueError: padding < 0. When traced: the image is not larger than the padding.
    """
    if padding < 0:
        raise ValueError(f"augmentation crop: padding={padding} must be at least 0")

    def op(key: Array, x: Array) -> Array:
        if padding >= min(x.shape[:2]):
            size = f"{x.shape[0]}x{x.shape[1]}"
            raise ValueError(
                f"augmentation crop: padding={padding} of images {size} must be less than {min(x.shape[:2])}, their smaller side"
            )
        top, left = jax.random.randint(key, (2,), 0, 2 * padding + 1)
        around = jnp.pad(x, ((padding, padding), (padding, padding), (0, 0)))
        return jax.lax.dynamic_slice(around, (top, left, jnp.zeros_like(top)), x.shape)

    return op


def flip(probability: Fraction = 0.5) -> Augment:
    """Mirrors left and right, with the given probability.

    Args:
      probability: of being mirrored, in [0, 1].

    Raises:
      ValueError: the probability is not in [0, 1].
    """
    _probability("flip", probability)
    return lambda key, x: jnp.where(jax.random.uniform(key) < probability, x[:, ::-1], x)


def resized_crop(scale: Range = (0.08, 1.0), ratio: Range = (3 / 4, 4 / 3)) -> Augment:
    """Cuts out a window of random area and shape, and resizes it bilinearly to the size of the image.

    Ten windows are drawn and the first that fits is taken; if none does, the largest one in the middle whose ratio is allowed. As
    torchvision's RandomResizedCrop (Szegedy et al. Going Deeper with Convolutions. CVPR 2015).

    Args:
      scale: of the window's area, as a part of the image's; uniform.
      ratio: of the window's width to its height; log-uniform.

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
    """What `resized_crop` cuts out of an image [height, width]: (top, left, height, width), whole numbers as float32."""
    sizes, places = jax.random.split(key)
    u = jax.random.uniform(sizes, (10, 2))
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[:, 0])
    low, high = jnp.log(jnp.asarray(ratio, jnp.float32))
    shape = jnp.exp(low + (high - low) * u[:, 1])
    h, w = jnp.round(jnp.sqrt(area / shape)), jnp.round(jnp.sqrt(area * shape))
    fits = (h > 0) & (h <= height) & (w > 0) & (w <= width)
    first, found = jnp.argmax(fits), jnp.any(fits)
    tall, wide = float(height), float(width)  # the fallback's
    if width / height < ratio[0]:
        tall = float(round(width / ratio[0]))
    elif width / height > ratio[1]:
        wide = float(round(height * ratio[1]))
    h, w = jnp.where(found, h[first], tall), jnp.where(found, w[first], wide)
    v = jax.random.uniform(places, (2,))
    top = jnp.where(found, jnp.floor(v[0] * (height - h + 1)), (height - tall) // 2)
    left = jnp.where(found, jnp.floor(v[1] * (width - w + 1)), (width - wide) // 2)
    return top, left, h, w


def resize(x: Array, top: Array, left: Array, height: Array, width: Array) -> Array:
    """A window of the image [H, W, C], stretched to [H, W, C] bilinearly, as two products with small matrices.

    Pixels are areas (their centres lie at halves), and what lies outside of the window is never read. A window is no larger than
    the image, so there is nothing to smooth.
    """
    rows, columns = _stretch(x.shape[0], top, height), _stretch(x.shape[1], left, width)
    return jnp.einsum("ik,jl,klc->ijc", rows, columns, x, precision="highest").astype(x.dtype)


def _stretch(n: int, start: Array, length: Array) -> Array:
    """[n, n] weights: pixel i of the result, as a mean of neighbouring pixels k in [start, start + length)."""
    at = (jnp.arange(n, dtype=jnp.float32) + 0.5) * (length / n) - 0.5
    at = start + jnp.clip(at, 0, length - 1)
    return jnp.maximum(0, 1 - jnp.abs(at[:, None] - jnp.arange(n, dtype=jnp.float32)[None]))


def colour_jitter(
    brightness: NonNegative = 0.4, contrast: NonNegative = 0.4, saturation: NonNegative = 0.4, hue: NonNegative = 0.4
) -> Augment:
    """Changes brightness, contrast, saturation and hue by random amounts, in an order that is drawn too.

    The first three are factors, uniform in [max(0, 1 - a), 1 + a]; the hue turns by a part of the colour circle, uniform in
    [-hue, hue]. What has the amount 0 is left out. A grey image (one channel) has neither saturation nor hue.

    As torchvision's ColorJitter, with MoCo v1's amounts by default (He, Fan, Wu, Xie, Girshick. Momentum Contrast for Unsupervised
    Visual Representation Learning. CVPR 2020).

    Args:
      brightness: a >= 0: the pixels times the factor.
      contrast: a >= 0: the distance to the image's mean grey times the factor.
      saturation: a >= 0: the distance to the pixel's own grey times the factor.
      hue: in [0, 0.5], in turns of the colour circle.

    Draws: `split(key)` gives the key of the order (argsort of uniforms) and that of the amounts (uniforms, as above).

    Raises:
      ValueError: an amount below 0, or a hue above 0.5. When traced: the image has neither 1 nor 3 channels.
    """
    amounts = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
    for name, amount in amounts.items():
        if not 0 <= amount <= (0.5 if name == "hue" else float("inf")):
            limit = "in [0, 0.5]" if name == "hue" else "at least 0"
            raise ValueError(f"augmentation colour_jitter: {name}={amount} must be {limit}")

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
        planes = jax.lax.fori_loop(
            0, len(active), lambda i, planes: jax.lax.switch(order[i], adjust, planes, drawn[order[i]]), _planes(x)
        )
        return jnp.stack(planes, -1).astype(x.dtype)

    return op


def adjust_brightness(planes: Planes, factor: Array) -> Planes:
    """All times the factor, cut to [0, 1]."""
    return _away(planes, jnp.zeros_like(factor), factor)


def adjust_contrast(planes: Planes, factor: Array) -> Planes:
    """Moves all away from the mean of the image's grey by the factor, cut to [0, 1]."""
    return _away(planes, jnp.mean(_grey(planes)), factor)


def adjust_saturation(planes: Planes, factor: Array) -> Planes:
    """Moves each pixel away from its own grey by the factor, cut to [0, 1]."""
    return _away(planes, _grey(planes), factor)


def adjust_hue(planes: Planes, turn: Array) -> Planes:
    """Turns the hue by a part of the colour circle (1 is all the way round); value and saturation stay."""
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


def _away(planes: Planes, grey: Array, factor: Array) -> Planes:
    return tuple(jnp.clip(factor * plane + (1 - factor) * grey, 0, 1) for plane in planes)


def _grey(planes: Planes) -> Array:
    return planes[0] if len(planes) == 1 else GREY[0] * planes[0] + GREY[1] * planes[1] + GREY[2] * planes[2]


def _planes(x: Array) -> Planes:
    """Channels one by one: several times faster on a CPU than sums over an axis of three."""
    return tuple(x[..., c].astype(jnp.float32) for c in range(x.shape[2]))


ADJUST = {"brightness": adjust_brightness, "contrast": adjust_contrast, "saturation": adjust_saturation, "hue": adjust_hue}


def greyscale(probability: Fraction = 0.2) -> Augment:
    """Takes the colours away (0.2989 red + 0.587 green + 0.114 blue in all three channels), with the given probability.

    Args:
      probability: of becoming grey, in [0, 1].

    Raises:
      ValueError: the probability is not in [0, 1]. When traced: the image has neither 1 nor 3 channels.
    """
    _probability("greyscale", probability)

    def op(key: Array, x: Array) -> Array:
        _channels("greyscale", x)
        grey = _grey(_planes(x)).astype(x.dtype)[..., None]
        return jnp.where(jax.random.uniform(key) < probability, grey, x)

    return op


def normalise(mean: float | tuple[float, ...], std: Positive | tuple[Positive, ...]) -> Augment:
    """(x - mean) / std, each one number or one per channel. Draws nothing.

    For pipelines of your own: the networks here normalise what they are given, in evaluation too, so a config cannot ask for it.

    Args:
      mean: in units of the pixels, which are in [0, 1].
      std: likewise; > 0.

    Raises:
      ValueError: a std that is not positive.
    """
    mean, std = (tuple(v) if isinstance(v, (tuple, list)) else (v,) for v in (mean, std))
    if not all(s > 0 for s in std):
        raise ValueError(f"augmentation normalise: std={std} must be positive")

    def op(key: Array, x: Array) -> Array:
        del key
        return (x - jnp.asarray(mean, x.dtype)[None, None]) / jnp.asarray(std, x.dtype)[None, None]

    return op


OPS: dict[str, Callable[..., Augment]] = {
    "crop": crop,
    "flip": flip,
    "resized_crop": resized_crop,
    "colour_jitter": colour_jitter,
    "greyscale": greyscale,
    "normalise": normalise,
}


def compose(*ops: Augment) -> Augment:
    """One after another, each with its own part of the key."""

    def composed(key: Array, x: Array) -> Array:
        for op, own in zip(ops, jax.random.split(key, max(1, len(ops))), strict=len(ops) > 0):
            x = op(own, x)
        return x

    return composed


def parse(text: str) -> Augment:
    """A composition by name.

    Args:
      text: "name(option=literal, ...) | name | ...", names and options those of the functions in `OPS`.

    Raises:
      ValueError, TypeError: an unknown name, option or value; the message names it.

    Example:
      >>> view = parse("crop(padding=2) | flip(probability=1.0)")
      >>> view(jax.random.key(0), jnp.zeros((8, 8, 3))).shape
      (8, 8, 3)
    """
    return compose(*(by_name.find("augmentation", part, OPS, field="augment")() for part in text.split("|")))


def batched(augment: Augment) -> Augment:
    """The same for a batch: (key, images [B, H, W, C]) -> [B, H, W, C], each row with `fold_in(key, row)`.

    Images of uint8 are divided by 255 and become float32; floats must be in [0, 1] already. Other arrays than images, in the batch
    or alone, are a ValueError (when traced).
    """

    def of_batch(key: Array, images: Array) -> Array:
        if images.ndim != 4:
            raise ValueError(f"augmentation is for images [H, W, C], these examples are {list(images.shape[1:])}; set augment=None")
        if images.dtype == jnp.uint8:
            images = images.astype(jnp.float32) / 255
        keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.arange(len(images)))
        views = jax.vmap(augment)(keys, images)
        if views.shape != images.shape or views.dtype != images.dtype:
            found = f"{views.dtype}{list(views.shape[1:])}"
            raise ValueError(
                f"augmentation made {found} of an image {images.dtype}{list(images.shape[1:])}: must keep shape and type"
            )
        return views

    return of_batch


def augmented(model: Model, text: str) -> Model:
    """The model whose inputs are augmented in training: `apply` and `features` with train=True. Parameters are the same.

    Args:
      model: normalises its inputs itself.
      text: see `parse`.

    Raises:
      ValueError, TypeError: as `parse`; or "normalise" is among the names. When traced: training without a key, or on other inputs
        than images.
    """
    if "normalise" in (by_name.parse(part)[0] for part in text.split("|")):
        raise ValueError(f"augment={text!r}: the network normalises its inputs, in training and in evaluation; leave it out")
    augment = batched(parse(text))

    def view(x: Array, key: Array | None, train: bool) -> Array:
        if not train:
            return x
        if key is None:
            raise ValueError("augmentation in training needs a key; pass apply(net, x, key, train=True)")
        return augment(jax.random.fold_in(key, _STREAM), x)

    def apply(net, x, key=None, train=False, mask=None, **more):
        return model.apply(net, view(x, key, train), key, train=train, mask=mask, **more)

    def features(net, x, key=None, train=False, mask=None):
        return model.features(net, view(x, key, train), key, train=train, mask=mask)

    return model._replace(apply=apply, features=features)


def _probability(name: str, probability: float) -> None:
    if not 0 <= probability <= 1:
        raise ValueError(f"augmentation {name}: probability={probability} is not in [0, 1]")


def _channels(name: str, x: Array) -> None:
    if x.shape[2] not in (1, 3):
        raise ValueError(f"augmentation {name} is for images of 1 or 3 channels, these have {x.shape[2]}")
