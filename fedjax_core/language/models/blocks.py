"""The layer that all transformers here share: norms, attention and MLP, by a `LayerConfig`."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.language.models.transformer import Linear, read_choice, read_positive
from fedjax_core.nn.kernels.attention import attend, gelu, split_heads

_gelu_tanh = lambda x: jax.nn.gelu(x, approximate=True)
ACTIVATIONS = {
    "gelu": gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}
ALL_BIASES = ("query", "key", "value", "output", "up", "down")


class LayerConfig(NamedTuple):
    """Sizes and options of a layer.

    Attributes:
      width: D; inner: F; heads: H; groups: G, of keys and values; head_width: E.
      epsilon: of the norms; std: of the initial weights.
      activation: a key of `ACTIVATIONS`.
      gated: whether the MLP is (activation(x gate) * x up) down; else activation(x up) down.
      norm: "layer", "rms", or "rms_plus_one", which scales by 1 + the parameter.
      order: where norms stand: "pre", before a part; "post", after its residual; "around", before
        and behind a part.
      biases: the linear maps that have one.
      qk_norm: whether each head's query and key are normalized.
      scale: of the scores; None: 1 / sqrt(E).
      cap: c of scores c tanh(score / c); None: uncapped.
    """

    width: int
    inner: int
    heads: int
    groups: int
    head_width: int
    epsilon: float
    std: float
    activation: str = "silu"
    gated: bool = True
    norm: str = "rms"
    order: str = "pre"
    biases: tuple[str, ...] = ()
    qk_norm: bool = False
    scale: float | None = None
    cap: float | None = None

    def make_norm(self, dtype: Any, width: int | None = None) -> "RMSNorm | LayerNorm":
        """Makes a norm over D numbers, or `width`."""
        width = width or self.width
        if self.norm == "layer":
            return LayerNorm(width, self.epsilon, dtype)
        return RMSNorm(width, self.epsilon, dtype, self.norm == "rms_plus_one")

    def make_linear(self, name: str, inputs: int, outputs: int, dtype: Any, rngs: nnx.Rngs) -> Linear:
        """Makes one of the linear maps."""
        return Linear(inputs, outputs, bias=name in self.biases, std=self.std, dtype=dtype, rngs=rngs)


def read_classic_layer(config: Mapping[str, Any], order: str, activations: Sequence[str], epsilon: float) -> LayerConfig:
    """Reads a layer with layer norms, biases everywhere and no gate, as BERT and CLIP name its fields.

    Args:
      config: fields of config.json.
      order: of its norms.
      activations: those allowed; the first is the default.
      epsilon: of the norms, where none is given.
    """
    width, heads = read_positive(config, "hidden_size"), read_positive(config, "num_attention_heads")
    if width % heads:
        raise ValueError(f"config.json: num_attention_heads={heads} must divide hidden_size={width}")
    return LayerConfig(
        width=width,
        inner=read_positive(config, "intermediate_size"),
        heads=heads,
        groups=heads,
        head_width=width // heads,
        epsilon=read_positive(config, "layer_norm_eps", float, epsilon),
        std=read_positive(config, "initializer_range", float, 0.02),
        activation=read_choice(config, "hidden_act", *activations),
        gated=False,
        norm="layer",
        order=order,
        biases=ALL_BIASES,
    )


class RMSNorm(nnx.Module):
    """x / rms(x) * scale, over the last axis, in float32."""

    def __init__(self, width: int, epsilon: float, dtype: Any, plus_one: bool):
        self.scale = nnx.Param(jnp.zeros(width, dtype) if plus_one else jnp.ones(width, dtype))
        self.epsilon, self.plus_one = epsilon, plus_one

    def __call__(self, x: Array) -> Array:
        """Maps [B, T, ..., D] to [B, T, ..., D]."""
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + self.epsilon)
        scale = self.scale.get_value()[(None,) * (x.ndim - 1)]
        return (wide * (1 + scale.astype(jnp.float32))).astype(x.dtype) if self.plus_one else scale * wide.astype(x.dtype)


class LayerNorm(nnx.Module):
    """(x - mean) / deviation * scale + bias, over the last axis, in float32."""

    def __init__(self, width: int, epsilon: float, dtype: Any):
        self.scale, self.bias = nnx.Param(jnp.ones(width, dtype)), nnx.Param(jnp.zeros(width, dtype))
        self.epsilon = epsilon

    def __call__(self, x: Array) -> Array:
        """Maps [B, T, D] to [B, T, D]."""
        wide = x.astype(jnp.float32)
        wide = wide - jnp.mean(wide, -1, keepdims=True)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + self.epsilon)
        return wide.astype(x.dtype) * self.scale.get_value()[None, None] + self.bias.get_value()[None, None]


class Attention(nnx.Module):
    """Grouped-query attention, maybe with rotary positions."""

    def __init__(self, config: LayerConfig, dtype: Any, rngs: nnx.Rngs):
        c, make = config, lambda name, inputs, outputs: config.make_linear(name, inputs, outputs, dtype, rngs)
        queries, keys = c.heads * c.head_width, c.groups * c.head_width
        self.query, self.key = make("query", c.width, queries), make("key", c.width, keys)
        self.value, self.output = make("value", c.width, keys), make("output", queries, c.width)
        self.query_norm, self.key_norm = (c.make_norm(dtype, c.head_width) if c.qk_norm else None for _ in range(2))
        self.heads, self.groups, self.scale, self.cap = c.heads, c.groups, c.scale, c.cap

    def __call__(
        self, x: Array, angles: Array | None, mask: Array | None, place: Array | int, cache: PyTree
    ) -> tuple[Array, PyTree]:
        """Maps [B, T, D] to [B, T, D].

        Keys and values are put into the cache (if any) at `place`, and all of the cache is looked
        at.
        """

        def place_heads(linear, norm, number):
            heads = split_heads(linear(x), number)
            heads = heads if norm is None else norm(heads)
            return heads if angles is None else rotate(heads, angles)

        query, key = place_heads(self.query, self.query_norm, self.heads), place_heads(self.key, self.key_norm, self.groups)
        value = split_heads(self.value(x), self.groups)
        if cache:
            put = lambda kept, new: jax.lax.dynamic_update_slice_in_dim(kept, new.astype(kept.dtype), place, 1)
            cache = {"key": put(cache["key"], key), "value": put(cache["value"], value)}
            key, value = cache["key"], cache["value"]
        return self.output(attend(query, key, value, mask, scale=self.scale, cap=self.cap)), cache


def rotate(x: Array, angles: Array) -> Array:
    """Turns the pairs (x_j, x_{j + E/2}) of x [B, T, H, E] by angles [B, T, E / 2]."""
    cos, sin = (f(angles)[:, :, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class MLP(nnx.Module):
    """(activation(x gate) * x up) down, or without the gate activation(x up) down."""

    def __init__(self, config: LayerConfig, dtype: Any, rngs: nnx.Rngs):
        c, make = config, lambda name, inputs, outputs: config.make_linear(name, inputs, outputs, dtype, rngs)
        self.gate = make("gate", c.width, c.inner) if c.gated else None
        self.up, self.down = make("up", c.width, c.inner), make("down", c.inner, c.width)
        self.activation = c.activation

    def __call__(self, x: Array) -> Array:
        """Maps [B, T, D] to [B, T, D]."""
        f = ACTIVATIONS[self.activation]
        return self.down(f(self.up(x)) if self.gate is None else f(self.gate(x)) * self.up(x))


class Layer(nnx.Module):
    """Attention and MLP, each beside a residual, with norms before, behind or around them."""

    def __init__(self, config: LayerConfig, dtype: Any, rngs: nnx.Rngs):
        self.attention, self.mlp = Attention(config, dtype, rngs), MLP(config, dtype, rngs)
        self.attention_norm, self.mlp_norm = config.make_norm(dtype), config.make_norm(dtype)
        around = config.order == "around"
        self.attention_out_norm, self.mlp_out_norm = (config.make_norm(dtype) if around else None for _ in range(2))
        self.order = config.order

    def __call__(
        self, x: Array, angles: Array | None, mask: Array | None, place: Array | int, cache: PyTree
    ) -> tuple[Array, PyTree]:
        """Maps [B, T, D] to [B, T, D], and returns the cache; arguments as `Attention`'s."""
        if self.order == "post":
            attended, cache = self.attention(x, angles, mask, place, cache)
            x = self.attention_norm(x + attended)
            return self.mlp_norm(x + self.mlp(x)), cache
        attended, cache = self.attention(self.attention_norm(x), angles, mask, place, cache)
        x = x + (attended if self.attention_out_norm is None else self.attention_out_norm(attended))
        inner = self.mlp(self.mlp_norm(x))
        return x + (inner if self.mlp_out_norm is None else self.mlp_out_norm(inner)), cache
