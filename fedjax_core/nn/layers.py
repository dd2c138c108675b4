"""Layers that networks are built from."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_core import registry
from fedjax_core.nn.kernels import batch_norm
from fedjax_core.nn.kernels.conv import Padding, conv, describe_conv

Array = jax.Array
INITS = ("normal", "torch")  # how networks begin, see `make_initializers`
MOMENTUM = 0.9


def make_initializers(init: str, fan_in: int) -> dict[str, Any]:
    """Returns the initializers of an `nnx.Linear` or a `Conv`, as keyword arguments.

    "normal": the layer's own. "torch": those of torch.nn.Linear and Conv2d, kernel and bias uniform
    in (-a, a) with a = 1 / sqrt(fan_in).
    """
    if init == "normal":
        return {}
    limit = 1 / math.sqrt(fan_in)

    def draw(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32, **others: Any) -> Array:
        del others  # shardings
        return jax.random.uniform(key, shape, dtype, -limit, limit)

    return {"kernel_init": draw, "bias_init": draw}


def spread_mask(mask: Array, x: Array) -> Array:
    """Returns the mask [B] of examples as [B, 1, ..., 1] bool, to select among those of x [B, ...]."""
    return jnp.reshape(mask, (-1,) + (1,) * (x.ndim - 1)) > 0


class Conv(nnx.Module):
    """Convolution of `kernels/conv.py`, He-normal by fan-out, N(0, 2 / (kh kw features)), with a zero bias."""

    def __init__(
        self,
        channels: int,
        features: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: Padding = "SAME",
        bias: bool = False,
        form: str = "auto",
        kernel_init: jax.nn.initializers.Initializer | None = None,
        bias_init: jax.nn.initializers.Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        """Initializes the layer.

        Args:
          channels: of the input.
          features: channels of the output.
          padding: see `conv.resolve_padding`.
          form: see `conv.conv`.
          kernel_init: of the kernel [kernel, kernel, channels, features].
          bias_init: of the bias [features].
        """
        kernel_init = kernel_init or nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
        self.kernel = nnx.Param(kernel_init(rngs.params(), (kernel, kernel, channels, features), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(features)) if bias else None
        if bias and bias_init is not None:
            self.bias = nnx.Param(bias_init(rngs.params(), (features,), jnp.float32))
        self.stride, self.padding, self.form = stride, padding, describe_conv(form)["form"]

    def __call__(self, x: Array) -> Array:
        """Maps [B, H, W, channels] to [B, H', W', features]."""
        y = conv(x, self.kernel[...].astype(x.dtype), self.stride, self.padding, self.form)
        return y if self.bias is None else y + self.bias[...].astype(x.dtype)[None, None, None]


class BatchNorm(nnx.Module):
    """Batch normalization over the unmasked examples of a batch, with PyTorch's conventions.

    A batch is normalized by its biased variance; the running variance averages the unbiased one (n
    / (n - 1); the biased one if n = 1). running = 0.9 running + 0.1 batch; epsilon 1e-5. Statistics
    are float32. A fully masked batch leaves the running statistics unchanged.
    """

    def __init__(self, features: int, *, rngs: nnx.Rngs | None = None):
        del rngs
        self.scale, self.bias = nnx.Param(jnp.ones(features)), nnx.Param(jnp.zeros(features))
        self.mean, self.var = nnx.BatchStat(jnp.zeros(features)), nnx.BatchStat(jnp.ones(features))

    def __call__(self, x: Array, *, batch: bool, mask: Array | None = None) -> Array:
        """Normalizes x [B, ..., features]; masked examples as if x were zero.

        Args:
          batch: True: by the batch's statistics, updating the running ones; False: by the running
            ones.
          mask: [B]; None: all.
        """
        scale, bias = self.scale[...], self.bias[...]
        if not batch:
            return batch_norm.scale_and_shift(x, scale, bias, self.mean[...], self.var[...])
        is_real = None if mask is None else spread_mask(mask, x)
        y, statistics = batch_norm.normalize_batch(x, scale, bias, is_real)
        self._move(*statistics)
        return y

    def _move(self, mean: Array, var: Array, n: Array) -> None:
        rate = jnp.where(n > 0, 1 - MOMENTUM, 0.0)
        unbiased = var * n / jnp.maximum(n - 1, 1)
        self.mean.set_value(self.mean[...] + rate * (mean - self.mean[...]))  # "+=" compares shardings, which is slow to trace
        self.var.set_value(self.var[...] + rate * (unbiased - self.var[...]))


class GroupNorm(nnx.Module):
    """Group normalization with `groups`, or the largest number below that divides `features`; epsilon 1e-5."""

    def __init__(self, features: int, *, groups: int = 32, rngs: nnx.Rngs):
        while features % groups:
            groups -= 1
        self.norm = nnx.GroupNorm(features, num_groups=groups, epsilon=batch_norm.EPSILON, use_fast_variance=False, rngs=rngs)

    def __call__(self, x: Array, *, batch: bool = False, mask: Array | None = None) -> Array:
        """Normalizes x [B, ..., features]; `batch` and `mask` are BatchNorm's and unused."""
        del batch, mask
        return self.norm(x).astype(x.dtype)


class Identity(nnx.Module):
    """No normalization."""

    def __init__(self, features: int, *, rngs: nnx.Rngs | None = None):
        del features, rngs

    def __call__(self, x: Array, *, batch: bool = False, mask: Array | None = None) -> Array:
        """Returns x."""
        del batch, mask
        return x


NORMS = {"batch": BatchNorm, "group": GroupNorm, "none": Identity}


def make_norm(name: str, features: int, rngs: nnx.Rngs, *, groups: int | None = None) -> BatchNorm | GroupNorm | Identity:
    """Builds a layer of `NORMS`, called as `(x, batch=, mask=)`.

    Args:
      groups: of "group"; None: 32.

    Raises:
      ValueError: unknown `name`, or `groups` of a layer that has none.
    """
    layer = NORMS[registry.check_choice("norm", name, NORMS)]
    if groups is None:
        return layer(features, rngs=rngs)
    if layer is not GroupNorm:
        raise ValueError(f"groups={groups} is an option of norm='group', not of norm={name!r}")
    return GroupNorm(features, groups=groups, rngs=rngs)


def dropout(x: Array, rate: float, key: Array | None, train: bool) -> Array:
    """Zeroes entries with probability `rate` in training, and scales others by 1 / (1 - rate).

    Raises:
      ValueError: there is no key, in training with a positive rate.
    """
    if not train or rate == 0:
        return x
    if key is None:
        raise ValueError(f"dropout {rate} in training needs a key; pass apply(net, x, key, train=True)")
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)
