"""Residual networks: ResNet-8/10 of federated papers, and ResNet-18/34/50.

He, Zhang, Ren, Sun. Deep residual learning for image recognition. CVPR 2016.
https://arxiv.org/abs/1512.03385

Strides and padding are PyTorch's (a bottleneck strides in its 3x3 convolution), to load its
weights. The features are the mean of the last stage, whose channels double from stage to stage.
"""

import functools
from collections.abc import Callable, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_core import registry
from fedjax_core.nn.kernels.pool import max_pool
from fedjax_core.nn.layers import Conv, make_norm
from fedjax_core.option_types import Width

Array = jax.Array
STEMS = ("cifar", "imagenet")
MakeNorm = Callable[[int], nnx.Module]


class Block(nnx.Module):
    """Two 3x3 convolutions with a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, *, norm: MakeNorm, conv_form: str, rngs: nnx.Rngs):
        """Initializes the block; its shortcut is a 1x1 convolution wherever the shape changes.

        Args:
          width: of the 3x3 convolutions; the output has `expansion` times as many channels.
          norm: builds the normalization of so many channels.
          conv_form: see `conv.conv`.
        """
        features = width * self.expansion
        self.depth = 0
        for inputs, outputs, kernel, step in self._plan(channels, width, stride):
            self.depth += 1
            layer = Conv(inputs, outputs, kernel, stride=step, padding=kernel // 2, form=conv_form, rngs=rngs)
            setattr(self, f"conv{self.depth}", layer)
            setattr(self, f"norm{self.depth}", norm(outputs))
        self.changes = stride > 1 or channels != features
        if self.changes:
            self.shortcut = Conv(channels, features, 1, stride=stride, padding=0, form=conv_form, rngs=rngs)
            self.shortcut_norm = norm(features)

    def _plan(self, channels: int, width: int, stride: int) -> list[tuple[int, int, int, int]]:
        return [(channels, width, 3, stride), (width, width, 3, 1)]

    def __call__(self, x: Array, *, batch: bool, mask: Array | None) -> Array:
        """Returns [B, H', W', features] of x [B, H, W, channels], before the last ReLU."""
        y = x
        for i in range(1, self.depth + 1):
            y = getattr(self, f"norm{i}")(getattr(self, f"conv{i}")(y), batch=batch, mask=mask)
            y = jax.nn.relu(y) if i < self.depth else y
        return y + (self.shortcut_norm(self.shortcut(x), batch=batch, mask=mask) if self.changes else x)


class Bottleneck(Block):
    """1x1, 3x3 and 1x1 convolutions with a shortcut; its output has 4 `width` channels."""

    expansion = 4

    def _plan(self, channels: int, width: int, stride: int) -> list[tuple[int, int, int, int]]:
        return [(channels, width, 1, 1), (width, width, 3, stride), (width, width * self.expansion, 1, 1)]


class ResNet(nnx.Module):
    """Stem, stages of blocks, mean over the image, linear head."""

    model_axes: ClassVar = {"kernel": -1}  # by output channels; norms are not sharded

    def __init__(
        self,
        classes: int,
        input_shape: tuple[int, int, int],
        *,
        blocks: Sequence[int],
        block: type[Block] = Block,
        stem: str = "cifar",
        width: Width = 64,
        norm: str = "batch",
        groups: Width | None = None,
        features: Width | None = None,
        conv_form: str = "auto",
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs,
    ):
        """Initializes the network.

        Args:
          input_shape: [H, W, C] of one image; H and W may be anything.
          blocks: number of blocks of each stage.
          block: `Block` or `Bottleneck`.
          stem: "cifar": 3x3 convolution; "imagenet": 7x7 with stride 2, then 3x3 max-pool with
            stride 2.
          width: channels of the stem and the first stage; doubled from stage to stage.
          norm: "batch", "group" or "none".
          groups: number of groups of norm="group", or the largest number below that divides the
            channels; None: 32.
          features: D, to which the last channels are averaged in groups, so that networks agree;
            None: all.
          conv_form: see `conv.conv`.

        Raises:
          ValueError: unknown `stem` or `norm`, `groups` of another norm, or `features` that does not
            divide the channels.
        """
        registry.check_choice("stem", stem, STEMS)
        self.pooled, self.blocks = stem == "imagenet", tuple(blocks)
        make = functools.partial(make_norm, norm, rngs=rngs, groups=groups)
        kernel, stride = (7, 2) if self.pooled else (3, 1)
        self.stem = Conv(input_shape[-1], width, kernel, stride=stride, padding=kernel // 2, form=conv_form, rngs=rngs)
        self.stem_norm = make(width)
        channels = width
        for stage, number in enumerate(self.blocks):
            for i in range(number):
                stride = 2 if stage and not i else 1
                layer = block(channels, width << stage, stride, norm=make, conv_form=conv_form, rngs=rngs)
                setattr(self, f"stage{stage + 1}_block{i + 1}", layer)
                channels = (width << stage) * block.expansion
        self.features = channels if features is None else features
        if self.features < 1 or channels % self.features:
            raise ValueError(f"features={features} does not divide the {channels} channels of the last stage")
        self.head = nnx.Linear(self.features, classes, dtype=dtype, rngs=rngs)

    @property
    def flattened(self) -> dict[str, int] | None:
        """No dense layer's inputs; None where `features` averages channels."""
        last = getattr(self, f"stage{len(self.blocks)}_block{self.blocks[-1]}")
        return {} if getattr(last, f"conv{last.depth}").kernel.shape[-1] == self.features else None

    def body(self, x: Array, *, key: Array | None, train: bool, batch: bool, mask: Array | None) -> tuple[Array, dict[str, Array]]:
        """Returns features [B, D] and the layers by name, of x [B, H, W, C].

        Names are "stem_pre" (before its ReLU), "stem", "stage1_pre" (before the stage's last ReLU),
        "stage1", ... For `batch` and `mask` see `layers.BatchNorm`.
        """
        del key, train
        before = self.stem_norm(self.stem(x), batch=batch, mask=mask)
        x = jax.nn.relu(before)
        x = max_pool(x, 3, 2, 1) if self.pooled else x
        seen = {"stem_pre": before, "stem": x}
        for stage, number in enumerate(self.blocks, 1):
            for i in range(1, number + 1):
                before = getattr(self, f"stage{stage}_block{i}")(x, batch=batch, mask=mask)
                x = jax.nn.relu(before)
            seen[f"stage{stage}_pre"], seen[f"stage{stage}"] = before, x
        x = jnp.mean(x, (1, 2))
        return (x if x.shape[1] == self.features else jnp.mean(x.reshape(len(x), self.features, -1), 2)), seen
