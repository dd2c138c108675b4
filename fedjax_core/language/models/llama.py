"""Decoders of the LLaMA family: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Touvron et al. LLaMA: Open and Efficient Foundation Language Models. 2023.
https://arxiv.org/abs/2302.13971
Llama 3's long contexts: Grattafiori et al. The Llama 3 Herd of Models. 2024.
https://arxiv.org/abs/2407.21783
Rotary positions: Su et al. RoFormer. 2021. https://arxiv.org/abs/2104.09864

  params                                                   shape
  embedding                                                [V, D]
  layers / attention / query, key, value, output / kernel  [L, D, H E], [L, D, G E], [L, D, G E], [L, H E, D]
  layers / mlp / gate, up, down / kernel                   [L, D, F], [L, D, F], [L, F, D]
  layers / attention_norm, mlp_norm / scale                [L, D]
  norm / scale                                             [D]
  head / kernel; none where the embedding is the head too  [D, V]

H heads of E numbers, G of keys and values. Files have the layout of `LlamaForCausalLM`. The
computation runs in the dtype of the parameters; norms, softmax and logits in float32. No dropout.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.language.models.beam_search import beam_search
from fedjax_core.language.models.transformer import (
    AXES,
    LanguageModel,
    Linear,
    Tensor,
    as_pure_functions,
    check_context,
    greedy_decode,
    linear,
    read_choice,
    read_params,
    read_positive,
    stack_layers,
    token_positions,
)
from fedjax_core.nn.kernels.attention import attend, split_heads
from fedjax_core.task import check_tokens

ROPE_TYPES = ("default", "linear", "llama3")
IGNORED = r".*rotary_emb\.inv_freq"  # old files have this table, which follows from the configuration


class Config(NamedTuple):
    """Fields of config.json.

    Attributes:
      vocabulary: V; width: D; inner: F; layers: L; heads: H; groups: G; head_width: E.
      epsilon: of the norms.
      frequencies: [E / 2] angle per position of each pair of numbers.
      tied: whether the embedding is the head too.
      context: positions that it was trained for.
      stop: ids of the tokens that end a text.
      std: of the initial weights.
    """

    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    groups: int
    head_width: int
    epsilon: float
    frequencies: tuple[float, ...]
    tied: bool
    context: int
    stop: tuple[int, ...]
    std: float


def read_config(config: Mapping[str, Any]) -> Config:
    """Reads config.json's fields; raises ValueError for one that is missing or not supported."""
    read_choice(config, "model_type", "llama")
    read_choice(config, "hidden_act", "silu")
    for name in ("attention_bias", "mlp_bias"):
        read_choice(config, name, False)
    read_choice(config, "attention_dropout", 0.0, None)
    read_choice(config, "quantization_config", None)
    width, number = read_positive(config, "hidden_size"), read_positive(config, "num_attention_heads")
    groups = read_positive(config, "num_key_value_heads", default=number)
    if number % groups:
        raise ValueError(f"config.json: num_key_value_heads={groups} must divide num_attention_heads={number}")
    if config.get("head_dim") is None and width % number:
        raise ValueError(f"config.json: num_attention_heads={number} must divide hidden_size={width}, or head_dim be given")
    head_width = read_positive(config, "head_dim", default=width // number)
    if head_width % 2:
        raise ValueError(f"config.json: head_dim={head_width} must be even, for rotary positions")
    context = read_positive(config, "max_position_embeddings", default=2048)
    ends = config.get("eos_token_id")
    return Config(
        vocabulary=read_positive(config, "vocab_size"),
        width=width,
        inner=read_positive(config, "intermediate_size"),
        layers=read_positive(config, "num_hidden_layers"),
        heads=number,
        groups=groups,
        head_width=head_width,
        epsilon=read_positive(config, "rms_norm_eps", float, 1e-6),
        frequencies=_frequencies(config, head_width, context),
        tied=read_choice(config, "tie_word_embeddings", False, True),
        context=context,
        stop=() if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (ends,),
        std=read_positive(config, "initializer_range", float, 0.02),
    )


def _frequencies(config: Mapping[str, Any], head_width: int, context: int) -> tuple[float, ...]:
    """Returns the frequencies theta^(-2j / E), scaled for longer texts.

    Both of config.json's forms are read: rope_theta beside rope_scaling, and rope_parameters.
    """
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = read_positive({"rope_theta": scaling.get("rope_theta") or config.get("rope_theta")}, "rope_theta", float, 10000.0)
    kind = read_choice({"rope type": scaling.get("rope_type") or scaling.get("type") or "default"}, "rope type", *ROPE_TYPES)
    read_choice({**config, **scaling}, "partial_rotary_factor", 1.0)
    plain = theta ** (-np.arange(0, head_width, 2) / head_width)
    if kind == "default":
        return tuple(plain.tolist())
    factor = read_positive(scaling, "factor", float)
    if kind == "linear":
        return tuple((plain / factor).tolist())
    low, high = read_positive(scaling, "low_freq_factor", float), read_positive(scaling, "high_freq_factor", float)
    if not low < high:
        raise ValueError(f"config.json: low_freq_factor={low} must be below high_freq_factor={high}")
    turns = read_positive(scaling, "original_max_position_embeddings", default=context) * plain / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)  # 0: slow, scaled; 1: fast, kept
    return tuple((plain * ((1 - smooth) / factor + smooth)).tolist())


class RMSNorm(nnx.Module):
    """x / rms(x) * scale, over the last axis, in float32."""

    def __init__(self, width: int, epsilon: float, dtype: Any):
        self.scale, self.epsilon = nnx.Param(jnp.ones(width, dtype)), epsilon

    def __call__(self, x: Array) -> Array:
        """Maps [B, T, D] to [B, T, D]."""
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + self.epsilon)
        return self.scale.get_value()[None, None] * wide.astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: Config, dtype: Any, rngs: nnx.Rngs):
        c, make = config, lambda inputs, outputs: Linear(inputs, outputs, std=config.std, dtype=dtype, rngs=rngs)
        self.query, self.key = make(c.width, c.heads * c.head_width), make(c.width, c.groups * c.head_width)
        self.value, self.output = make(c.width, c.groups * c.head_width), make(c.heads * c.head_width, c.width)
        self.heads, self.groups = c.heads, c.groups

    def __call__(self, x: Array, angles: Array, mask: Array, place: Array | int, cache: PyTree) -> tuple[Array, PyTree]:
        """Maps [B, T, D] to [B, T, D].

        Keys and values are put into the cache (if any) at `place`, and all of the cache is looked
        at.
        """
        query, key = rotate(split_heads(self.query(x), self.heads), angles), rotate(split_heads(self.key(x), self.groups), angles)
        value = split_heads(self.value(x), self.groups)
        if cache:
            put = lambda kept, new: jax.lax.dynamic_update_slice_in_dim(kept, new.astype(kept.dtype), place, 1)
            cache = {"key": put(cache["key"], key), "value": put(cache["value"], value)}
            key, value = cache["key"], cache["value"]
        return self.output(attend(query, key, value, mask)), cache


def rotate(x: Array, angles: Array) -> Array:
    """Turns the pairs (x_j, x_{j + E/2}) of x [B, T, H, E] by angles [B, T, E / 2]."""
    cos, sin = (f(angles)[:, :, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class MLP(nnx.Module):
    """(silu(x gate) * x up) down."""

    def __init__(self, config: Config, dtype: Any, rngs: nnx.Rngs):
        make = lambda inputs, outputs: Linear(inputs, outputs, std=config.std, dtype=dtype, rngs=rngs)
        self.gate, self.up = make(config.width, config.inner), make(config.width, config.inner)
        self.down = make(config.inner, config.width)

    def __call__(self, x: Array) -> Array:
        """Maps [B, T, D] to [B, T, D]."""
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Layer(nnx.Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: Config, dtype: Any, rngs: nnx.Rngs):
        self.attention_norm = RMSNorm(config.width, config.epsilon, dtype)
        self.attention = Attention(config, dtype, rngs)
        self.mlp_norm = RMSNorm(config.width, config.epsilon, dtype)
        self.mlp = MLP(config, dtype, rngs)

    def __call__(self, x: Array, angles: Array, mask: Array, place: Array | int, cache: PyTree) -> tuple[Array, PyTree]:
        """Maps [B, T, D] to [B, T, D], and returns the cache."""
        attended, cache = self.attention(self.attention_norm(x), angles, mask, place, cache)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), cache


class Ends(nnx.Module):
    """The embedding, the final norm and the head."""

    def __init__(self, config: Config, dtype: Any, rngs: nnx.Rngs):
        self.embedding = nnx.Param(config.std * jax.random.normal(rngs.params(), (config.vocabulary, config.width), dtype))
        self.norm = RMSNorm(config.width, config.epsilon, dtype)
        self.head = None if config.tied else Linear(config.width, config.vocabulary, std=config.std, dtype=dtype, rngs=rngs)

    def logits(self, x: Array) -> Array:
        """Maps [..., D] to [..., V] float32."""
        kernel = self.embedding.get_value().T if self.head is None else self.head.kernel.get_value()
        if not isinstance(kernel, jax.Array):  # an adapter's
            return (x @ kernel).astype(jnp.float32)
        return jnp.matmul(x, kernel, preferred_element_type=jnp.float32)


def build(config: Mapping[str, Any] | Config, dtype: str = "float32", remat: bool = False) -> LanguageModel:
    """Builds a decoder; equal arguments give equal tree structures.

    Args:
      config: fields of config.json.
      dtype: of the parameters that `init` makes.
      remat: whether a backward pass computes each layer anew, to save memory.
    """
    c = config if isinstance(config, Config) else read_config(config)
    fresh, merged = as_pure_functions(lambda rngs: Ends(c, jnp.dtype(dtype), rngs))
    layers = stack_layers(lambda rngs: Layer(c, jnp.dtype(dtype), rngs), c.layers, remat)
    name = f"llama of width {c.width}"

    def init(key):
        ends_key, layers_key = jax.random.split(key)
        return fresh(ends_key) | {"layers": layers.init(layers_key)}

    def ends(params) -> Ends:
        return merged({name: leaf for name, leaf in params.items() if name != "layers"})

    def run(params, tokens, places, mask, place=0, cache=(), read=None):
        outer = ends(params)
        angles = places[..., None].astype(jnp.float32) * jnp.asarray(c.frequencies, jnp.float32)[None, None]
        x, cache = layers.run(params["layers"], outer.embedding.get_value()[tokens], angles, mask, place, cache=cache, read=read)
        return outer.norm(x), cache

    def hidden(params: PyTree, tokens: Array, mask: Array, read=None):
        t = tokens.shape[1]
        check_context(name, t, c.context)
        check_tokens(tokens, c.vocabulary, name, mask)
        causal = jnp.tril(jnp.ones((t, t), bool))
        outputs = run(params, tokens, token_positions(mask), mask[:, None] & causal[None], read=read)
        return outputs[0] if read is None else outputs

    def logits(params: PyTree, hidden: Array) -> Array:
        return ends(params).logits(hidden)

    def generate(
        params: PyTree, tokens: Array, mask: Array, *, limit: int, stop: tuple[int, ...] = c.stop, beams: int = 1
    ) -> tuple[Array, Array]:
        b, t = tokens.shape
        check_context(name, t + limit, c.context)
        check_tokens(tokens, c.vocabulary, name, mask)
        kept = jnp.zeros((c.layers, b, t + limit, c.groups, c.head_width), params["embedding"].dtype)

        def step(cache, tokens, places, place, mask, at):
            x, cache = run(params, tokens, places, mask, place, cache)
            return logits(params, jnp.take_along_axis(x, at[:, None, None], 1)[:, 0]), cache

        search = greedy_decode if beams == 1 else functools.partial(beam_search, beams=beams)
        return search(step, {"key": kept, "value": kept}, tokens, mask, limit=limit, stop=stop)

    return LanguageModel(init, hidden, logits, generate, c.width, c.context, c.stop, name, AXES, c.vocabulary)


def from_tensors(
    config: Mapping[str, Any] | Config, tensors: Mapping[str, np.ndarray], dtype: str = "float32", later: bool = False
) -> PyTree:
    """Reads the `params` of a configuration from published files.

    Args:
      config: fields of config.json.
      tensors: by the names that `LlamaForCausalLM` gives them.
      dtype: "float32" or "bfloat16".
      later: see `read_params`.

    Raises:
      ValueError: as `read_config`; a tensor is missing, unknown, or not of the right shape or kind.
    """
    c = config if isinstance(config, Config) else read_config(config)
    part = "model.layers.{}."
    where: dict[str, Any] = {
        "embedding": Tensor("model.embed_tokens.weight"),
        "layers": {
            "attention": {to: linear(f"{part}self_attn.{to[0]}_proj") for to in ("key", "output", "query", "value")},
            "attention_norm": {"scale": Tensor(f"{part}input_layernorm.weight")},
            "mlp": {to: linear(f"{part}mlp.{to}_proj") for to in ("down", "gate", "up")},
            "mlp_norm": {"scale": Tensor(f"{part}post_attention_layernorm.weight")},
        },
        "norm": {"scale": Tensor("model.norm.weight")},
    }
    if not c.tied:
        where["head"] = linear("lm_head")
    like = jax.eval_shape(build(c).init, jax.random.key(0))
    ignored = IGNORED + (r"|lm_head\.weight" if c.tied else "")
    return read_params(like, where, tensors, ignored, dtype, f"llama of width {c.width}", later)
