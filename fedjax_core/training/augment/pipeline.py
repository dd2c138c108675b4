"""Augmentation on the device: random changes of images inside the jitted step, with a key per example.

An `Augment` is a pure function (key, image [H, W, C] in [0, 1]) -> image of the same shape and
dtype. Configs compose them by name, applied from left to right:

    config.augment = "crop(padding=4) | flip"                                                                    CIFAR's usual
    config.augment = "resized_crop(scale=(0.2, 1.0)) | greyscale | colour_jitter | flip"                          MoCo v1's

Your own augmentation is a function that a config names by its path,
`package.module:name(option=...)` or `path/to/file.py:name(option=...)`, or an entry point of the
group `fedjax_core.augmentations`. It takes options, whose annotations declare the allowed values,
and returns an `Augment` in JAX, which is traced and mapped over a batch.

Augmentation is part of the network: `with_augmentation(model, by)` augments the inputs of a model in
training mode, before normalization. So it works with every method and loss; evaluation, and
features computed in evaluation mode, never see it. The key of an example depends on the step's key
and its index in the batch, not on the batch's size. A loss that applies the network twice with one
key sees one view, with two keys two views.

Definitions are torchvision's for float tensors; the result always has the image's size.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_core import registry
from fedjax_core.algorithm import Array
from fedjax_core.task import Model, map_inputs
from fedjax_core.training.augment.color import colour_jitter, greyscale, normalise
from fedjax_core.training.augment.geometric import Augment, crop, flip, resized_crop

_STREAM = 0x617567  # separates these draws from the network's own (dropout), which use the same key
OPS: dict[str, Callable[..., Augment]] = {
    "crop": crop,
    "flip": flip,
    "resized_crop": resized_crop,
    "colour_jitter": colour_jitter,
    "greyscale": greyscale,
    "normalise": normalise,
}


def compose(*ops: Augment) -> Augment:
    """Composes augmentations, each with a key of its own."""

    def composed(key: Array, x: Array) -> Array:
        for op, own in zip(ops, jax.random.split(key, max(1, len(ops))), strict=len(ops) > 0):
            x = op(own, x)
        return x

    return composed


def parse(text: str) -> Augment:
    """Parses a composition of augmentations.

    Args:
      text: "name(option=literal, ...) | name | ...", names and options those of the functions in
        `OPS`.

    Raises:
      ValueError, TypeError: a name, option or value is unknown.

    Example:
      >>> view = parse("crop(padding=2) | flip(probability=1.0)")
      >>> view(jax.random.key(0), jnp.zeros((8, 8, 3))).shape
      (8, 8, 3)
    """
    return compose(*(registry.resolve_spec("augmentation", part, OPS, field="augment")() for part in text.split("|")))


def augment_batch(augment: Augment) -> Augment:
    """Maps an augmentation over a batch: (key, images [B, H, W, C]) -> [B, H, W, C].

    The i-th image has the key `fold_in(key, i)`. uint8 images are divided by 255 and become
    float32; floats must be in [0, 1].

    Raises:
      ValueError: (when traced) the inputs are no images, or the augmentation changes shape or
        dtype.
    """

    def augment_batch(key: Array, images: Array) -> Array:
        if images.ndim != 4:
            what = f"augmentation is for images [H, W, C], these examples are {list(images.shape[1:])}"
            raise ValueError(f"{what}; set augment=None, or FedPFT's contrast.augment=''")
        if images.dtype == jnp.uint8:
            images = images.astype(jnp.float32) / 255
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(len(images)))
        views = jax.vmap(augment)(keys, images)
        if views.shape != images.shape or views.dtype != images.dtype:
            image, view = (f"{x.dtype}{list(x.shape[1:])}" for x in (images, views))
            raise ValueError(f"augmentation made {view} of an image {image}: it must keep shape and dtype")
        return views

    return augment_batch


def parse_for_training(text: str) -> Augment:
    """Parses `config.augment`, for a network that normalizes its inputs itself.

    Raises:
      ValueError, TypeError: as `parse`; or "normalise" is among the names.
    """
    if "normalise" in (registry.parse_spec(part, "augment")[0] for part in text.split("|")):
        raise ValueError(f"augment={text!r}: the network normalizes its inputs itself; leave normalise out")
    return parse(text)


def with_augmentation(model: Model, by: str | Augment) -> Model:
    """Returns the model, which normalizes its own inputs, with augmentation in training mode.

    Args:
      by: augmentation of one image, or a string, see `parse_for_training`.

    Raises:
      ValueError, TypeError: as `parse_for_training`; (when traced) training without a key, or on
        inputs that are no images.
    """
    augment = augment_batch(parse_for_training(by) if isinstance(by, str) else by)

    def view(x: Array, key: Array | None, train: bool) -> Array:
        if not train:
            return x
        if key is None:
            raise ValueError("augmentation in training needs a key; pass apply(net, x, key, train=True)")
        return augment(jax.random.fold_in(key, _STREAM), x)

    return map_inputs(model, view)._replace(unaugmented=(model, view))
