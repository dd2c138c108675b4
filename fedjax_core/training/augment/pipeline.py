"""Augmentation on the device: small changes of one image, drawn inside the jitted step, one key per example.

An `Augment` is a pure function (key, image [H, W, C] with values in [0, 1]) -> image of the same shape and dtype. Configs compose
them by name, applied from left to right:

    config.augment = "crop(padding=4) | flip"                                                                    CIFAR's usual
    config.augment = "resized_crop(scale=(0.2, 1.0)) | greyscale | colour_jitter | flip"                          MoCo v1's

An augmentation from outside is a function in a module or file of its own, which a config names by its place,
`package.module:name(option=...)` or `path/to/file.py:name(option=...)`, or an entry point of the group
`fedjax_core.augmentations`. It takes options, whose annotations say which values they may have, and returns an `Augment` in JAX:
it is traced, and mapped over a batch.

They enter training through the network: `augmented(model, by)` is the same model, whose inputs are augmented whenever it is
called in training mode, before it normalises them. So every method has them, whatever its loss; evaluation, and features that are
computed in evaluation mode, never see them. Every example has a key of its own, from the step's key and its row: its draw does not
depend on how many rows stand beside it. A loss that applies the network twice with one key sees one view, with two keys two.

The definitions are torchvision's for float tensors, with the result always of the image's own size.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_core import registry
from fedjax_core.algorithm import Array
from fedjax_core.task import Model
from fedjax_core.training.augment.color import colour_jitter, greyscale, normalise
from fedjax_core.training.augment.geometric import Augment, crop, flip, resized_crop

_STREAM = 0x617567  # keeps these draws apart from the network's own (dropout), which come from the same key


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
    return compose(*(registry.find("augmentation", part, OPS, field="augment")() for part in text.split("|")))


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


def of_training(text: str) -> Augment:
    """`parse`, of what a network that normalises its inputs itself sees in training.

    Raises:
      ValueError, TypeError: as `parse`; or "normalise" is among the names.
    """
    if "normalise" in (registry.parse(part)[0] for part in text.split("|")):
        raise ValueError(f"augment={text!r}: the network normalises its inputs, in training and in evaluation; leave it out")
    return parse(text)


def augmented(model: Model, by: str | Augment) -> Model:
    """The model whose inputs are augmented in training: `apply` and `features` with train=True. Parameters are the same.

    Args:
      model: normalises its inputs itself.
      by: of one image, or a text, see `of_training`.

    Raises:
      ValueError, TypeError: as `of_training`. When traced: training without a key, or on other inputs
        than images.
    """
    augment = batched(of_training(by) if isinstance(by, str) else by)

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

    return model._replace(apply=apply, features=features, behind=(model, view))
