"""Linear layers as plain dicts, for parts that methods add to a network, and a projection before its head."""

import jax
import jax.numpy as jnp

from fedjax_core.algorithm import Array, Net
from fedjax_core.task import Model, feature_size

_STREAM = 1  # key of the projection's initialization


def init_linear(key: Array, inputs: int, outputs: int, bias: bool = True) -> dict[str, Array]:
    """Initializes {"kernel": [inputs, outputs], "bias": [outputs]}, LeCun-normal and zero."""
    kernel = {"kernel": jax.nn.initializers.lecun_normal()(key, (inputs, outputs))}
    return kernel | {"bias": jnp.zeros(outputs)} if bias else kernel


def apply_linear(layer: dict[str, Array], x: Array) -> Array:
    """Applies a linear layer, [B, inputs] -> [B, outputs]."""
    y = x @ layer["kernel"]
    return y + layer["bias"][None] if "bias" in layer else y


def with_projection(model: Model, classes: int, size: int, hidden: bool = True) -> Model:
    """Returns the model with a projection between its body and a new head.

    Args:
      model: has the body.
      size: of the projected features.
      hidden: True: linear D -> D, ReLU, linear D -> size; False: linear D -> size alone.

    Returns:
      A model with the additional entry "projection" in `params`; its features are the projected
      ones.
    """

    def init(key):
        net, d = model.init(key), feature_size(model)
        first, out, head = jax.random.split(jax.random.fold_in(key, _STREAM), 3)
        projection = ({"hidden": init_linear(first, d, d)} if hidden else {}) | {"out": init_linear(out, d, size)}
        return net._replace(params=net.params | {"projection": projection, "head": init_linear(head, size, classes)})

    def features(net, x, key=None, train=False, mask=None):
        body = {name: entry for name, entry in net.params.items() if name not in ("projection", "head")}
        z, stats = model.features(Net(body, net.stats), x, key, train, mask)
        projection = net.params["projection"]
        z = jax.nn.relu(apply_linear(projection["hidden"], z)) if hidden else z
        return apply_linear(projection["out"], z), stats

    def head(net, features):
        return apply_linear(net.params["head"], features)

    def apply(net, x, key=None, train=False, mask=None):
        z, stats = features(net, x, key, train, mask)
        return {"logits": head(net, z), "features": z}, stats

    return Model(init, apply, features, head, f"projected {model.name}", model_axes=model.model_axes, vocabulary=model.vocabulary)
