"""Wrappers of image models: resizing, and a frame of learnable pixels (prompts of networks without tokens).

Both are Model -> Model, and come before the network normalizes its inputs.
"""

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array, Net
from fedjax_core.task import Model, map_inputs

_STREAM = 0x6672616D  # key of the frame's initial pixels


def with_resizing(model: Model, size: tuple[int, int]) -> Model:
    """Returns the model with bilinear resizing of images of any size to `size` (height, width)."""

    return map_inputs(model, lambda x, key, train: jax.image.resize(_unit(x), (len(x), *size, x.shape[-1]), "linear"))


def with_frame(model: Model, shape: tuple[int, ...], width: int) -> Model:
    """Returns the model with a frame of learnable pixels around its images.

    The frame is the entry "prompts" of the params, {"rows": [2, f, W + 2 f, C], "columns": [2, H,
    f, C]}: above and below, left and right. Its pixels start uniform in [0, 1) and are normalized
    like the image.

    Args:
      model: of images [H + 2 f, W + 2 f, C].
      shape: [H, W, C] of one image.
      width: f.
    """
    height, across, channels = shape

    def init(key: Array) -> Net:
        rows, columns = jax.random.split(jax.random.fold_in(key, _STREAM))
        prompts = {
            "rows": jax.random.uniform(rows, (2, width, across + 2 * width, channels)),
            "columns": jax.random.uniform(columns, (2, height, width, channels)),
        }
        net = model.init(key)
        return net._replace(params=net.params | {"prompts": prompts})

    def inner(net: Net) -> Net:
        return net._replace(params={name: entry for name, entry in net.params.items() if name != "prompts"})

    def view(net: Net, x: Array) -> Array:
        prompts = net.params["prompts"]
        rows, columns = (jnp.broadcast_to(p[:, None], (2, len(x), *p.shape[1:])) for p in (prompts["rows"], prompts["columns"]))
        return jnp.concatenate([rows[0], jnp.concatenate([columns[0], _unit(x), columns[1]], 2), rows[1]], 1)

    def apply(net, x, key=None, train=False, mask=None, **more):
        return model.apply(inner(net), view(net, x), key, train=train, mask=mask, **more)

    def features(net, x, key=None, train=False, mask=None):
        return model.features(inner(net), view(net, x), key, train=train, mask=mask)

    head = lambda net, z: model.head(inner(net), z)
    return Model(init, apply, features, head, model.name, model_axes=model.model_axes)


def _unit(x: Array) -> Array:
    """Converts pixels to float32, bytes to [0, 1]."""
    return x.astype(jnp.float32) / (255.0 if x.dtype == jnp.uint8 else 1.0)
