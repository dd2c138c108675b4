"""A small convolutional network, such as those of LEAF and McMahan et al."""

import itertools
from collections.abc import Sequence
from typing import Annotated, ClassVar

import jax
import numpy as np
from flax import nnx

from fedjax_core.nn.kernels.pool import max_pool
from fedjax_core.nn.layers import INITS, Conv, dropout, make_initializers
from fedjax_core.option_types import BelowOne, Width, one_of

Array = jax.Array


class CNN(nnx.Module):
    """Convolutions with ReLU, 2x2 max-pooling, dense layers with ReLU, a linear head."""

    model_axes: ClassVar = {"kernel": -1}  # by output channels

    def __init__(
        self,
        classes: int,
        input_shape: tuple[int, int, int],
        *,
        widths: Sequence[Width] = (32, 64),
        dense: Width | Sequence[Width] = 128,
        kernel: Width = 3,
        padding: Annotated[str, one_of("VALID", "SAME")] = "VALID",
        pool: Annotated[str, one_of("last", "each", "between")] = "last",
        dropout: BelowOne = 0.0,
        head_dropout: BelowOne | None = None,
        conv_form: str = "auto",
        init: Annotated[str, one_of(*INITS)] = "normal",
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs,
    ):
        """Initializes the network.

        Args:
          widths: channels of the convolutions.
          dense: width of the dense layer, the number D of features; or widths of several.
          kernel: size of the convolutions' kernels.
          padding: "VALID" or "SAME".
          pool: whether to pool after the "last" convolution, after "each", or "between" them: after
            each but the last.
          dropout: rate before the (first) dense layer, and before the head unless `head_dropout` is set.
          head_dropout: rate before the head; None: `dropout`.
          conv_form: see `conv.conv`.
          init: "normal"; or "torch", as torch.nn.Conv2d and Linear begin.

        Raises:
          ValueError: an image too small for the kernels, or no dense layer.
        """
        height, width, channels = input_shape
        self.rate, self.depth = dropout, len(widths)
        self.head_rate = dropout if head_dropout is None else head_dropout
        last = self.depth - 1
        self.pooled = {"last": (last,), "each": range(self.depth), "between": range(last)}[pool]
        for i, features in enumerate(widths):
            begin = make_initializers(init, kernel * kernel * channels)
            layer = Conv(channels, features, kernel, padding=padding, bias=True, form=conv_form, rngs=rngs, **begin)
            setattr(self, f"conv{i + 1}", layer)
            channels = features
            if padding == "VALID":
                height, width = height - kernel + 1, width - kernel + 1
            if i in self.pooled:
                height, width = height // 2, width // 2
        if height < 1 or width < 1:
            raise ValueError(f"images {input_shape} are too small for {self.depth} convolutions {kernel}x{kernel} {padding}")
        sizes = (height * width * channels, *([dense] if isinstance(dense, int | np.integer) else dense), classes)
        if len(sizes) < 3:
            raise ValueError(f"dense={dense!r} has no dense layer; it must be a width, or at least one")
        self.dense_layers = ("dense",) if len(sizes) == 3 else tuple(f"dense{i + 1}" for i in range(len(sizes) - 2))
        for name, (inputs, outputs) in zip((*self.dense_layers, "head"), itertools.pairwise(sizes), strict=True):
            setattr(self, name, nnx.Linear(inputs, outputs, dtype=dtype, rngs=rngs, **make_initializers(init, inputs)))

    @property
    def flattened(self) -> dict[str, int]:
        """The first dense layer's inputs, with their channels."""
        return {f"{self.dense_layers[0]}/kernel": getattr(self, f"conv{self.depth}").kernel.shape[-1]}

    def body(self, x: Array, *, key: Array | None, train: bool, batch: bool, mask: Array | None) -> tuple[Array, dict[str, Array]]:
        """Returns features [B, D] and the layers by name, of x [B, H, W, C]."""
        del batch, mask
        seen = {}
        for i in range(self.depth):
            x = jax.nn.relu(getattr(self, f"conv{i + 1}")(x))
            seen[f"conv{i + 1}"] = x
            if i in self.pooled:
                x = max_pool(x, 2)
        x = x.reshape(x.shape[0], -1)
        keys = (None, None) if key is None else jax.random.split(key)
        x = dropout(x, self.rate, keys[0], train)
        for name in self.dense_layers:
            x = seen[name] = jax.nn.relu(getattr(self, name)(x))
        return dropout(x, self.head_rate, keys[1], train), seen
