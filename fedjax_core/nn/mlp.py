"""A multi-layer perceptron."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import jax
from flax import nnx

from fedjax_core.nn.layers import INITS, dropout, make_initializers
from fedjax_core.option_types import BelowOne, Width, one_of

Array = jax.Array


class MLP(nnx.Module):
    """Hidden layers with ReLU and a linear head, on flattened inputs."""

    model_axes: ClassVar = {"kernel": -1}  # by outputs
    flattened: ClassVar = {}

    def __init__(
        self,
        classes: int,
        input_shape: tuple[int, ...],
        *,
        widths: Sequence[Width] = (200, 200),
        dropout: BelowOne = 0.0,
        init: Annotated[str, one_of(*INITS)] = "normal",
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs,
    ):
        """Initializes the network.

        Args:
          widths: of the hidden layers; the last is the features' number D.
          dropout: rate after each hidden layer.
          init: "normal"; or "torch", as torch.nn.Linear begins.
        """
        self.rate, self.depth = dropout, len(widths)
        sizes = (math.prod(input_shape), *widths)
        for i in range(self.depth):
            layer = nnx.Linear(sizes[i], sizes[i + 1], dtype=dtype, rngs=rngs, **make_initializers(init, sizes[i]))
            setattr(self, f"dense{i + 1}", layer)
        self.head = nnx.Linear(sizes[-1], classes, dtype=dtype, rngs=rngs, **make_initializers(init, sizes[-1]))

    def body(self, x: Array, *, key: Array | None, train: bool, batch: bool, mask: Array | None) -> tuple[Array, dict[str, Array]]:
        """Returns features [B, D] and the hidden layers by name, of x [B, ...]."""
        del batch, mask
        x, seen = x.reshape(x.shape[0], -1), {}
        keys = [None] * self.depth if key is None else jax.random.split(key, self.depth)
        for i in range(self.depth):
            x = jax.nn.relu(getattr(self, f"dense{i + 1}")(x))
            seen[f"dense{i + 1}"] = x
            x = dropout(x, self.rate, keys[i], train)
        return x, seen
