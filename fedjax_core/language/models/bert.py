"""Encoders of the BERT family: learned positions, a norm after each part, GELU, full attention.

Devlin, Chang, Lee, Toutanova. BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding. NAACL 2019. https://arxiv.org/abs/1810.04805

  params                                                                   shape
  embedding / token, position, type                                        [V, D], [context, D], [types, D]
  embedding / norm / scale, bias                                           [D]
  layers / attention / query, key, value, output / kernel, bias            [L, D, D], [L, D]
  layers / mlp / up, down / kernel, bias                                   [L, D, F], [L, F, D]; [L, F], [L, D]
  layers / attention_norm, mlp_norm / scale, bias                          [L, D]

Files have the layout of `BertModel`; a pooler and the heads of pre-training are left out. The
computation runs in the dtype of the parameters; norms and softmax in float32.

Departures: no dropout, as the base is frozen wherever we train. Positions count the real tokens, so
that padding may be on either side; the original counts places, which is the same with the padding
on the right.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.language.models.transformer import (
    AXES,
    Encoder,
    Linear,
    Tensor,
    as_pure_functions,
    check_context,
    linear,
    read_choice,
    read_params,
    read_positive,
    stack_layers,
    token_positions,
)
from fedjax_core.nn.kernels.attention import attend, gelu, split_heads
from fedjax_core.task import check_tokens

ACTIVATIONS = {
    "gelu": gelu,
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}
IGNORED = r"embeddings\.position_ids|pooler\..*|cls\..*"
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}  # of norms, in files made from the original release's


class Config(NamedTuple):
    """Fields of config.json.

    Attributes:
      vocabulary: V; width: D; inner: F; layers: L; heads: of the attention; types: of tokens.
      activation: a key of `ACTIVATIONS`.
      epsilon: of the norms.
      context: number of positions.
      std: of the initial weights.
    """

    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    types: int
    activation: str
    epsilon: float
    context: int
    std: float


def read_config(config: Mapping[str, Any]) -> Config:
    """Reads config.json's fields; raises ValueError for one that is missing or not supported."""
    read_choice(config, "model_type", "bert")
    read_choice(config, "position_embedding_type", "absolute")
    for name in ("is_decoder", "add_cross_attention"):
        read_choice(config, name, False)
    read_choice(config, "quantization_config", None)
    width, number = read_positive(config, "hidden_size"), read_positive(config, "num_attention_heads")
    if width % number:
        raise ValueError(f"config.json: num_attention_heads={number} must divide hidden_size={width}")
    return Config(
        vocabulary=read_positive(config, "vocab_size"),
        width=width,
        inner=read_positive(config, "intermediate_size"),
        layers=read_positive(config, "num_hidden_layers"),
        heads=number,
        types=read_positive(config, "type_vocab_size", default=2),
        activation=read_choice(config, "hidden_act", *ACTIVATIONS),
        epsilon=read_positive(config, "layer_norm_eps", float, 1e-12),
        context=read_positive(config, "max_position_embeddings", default=512),
        std=read_positive(config, "initializer_range", float, 0.02),
    )


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
    """Full attention to real tokens."""

    def __init__(self, config: Config, dtype: Any, rngs: nnx.Rngs):
        make = lambda: Linear(config.width, config.width, bias=True, std=config.std, dtype=dtype, rngs=rngs)
        self.query, self.key, self.value, self.output = make(), make(), make(), make()
        self.heads = config.heads

    def __call__(self, x: Array, mask: Array) -> Array:
        """Maps [B, T, D] to [B, T, D]."""
        query, key, value = (split_heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        return self.output(attend(query, key, value, mask))


class MLP(nnx.Module):
    """Two linear maps with an activation between."""

    def __init__(self, config: Config, dtype: Any, rngs: nnx.Rngs):
        self.up = Linear(config.width, config.inner, bias=True, std=config.std, dtype=dtype, rngs=rngs)
        self.down = Linear(config.inner, config.width, bias=True, std=config.std, dtype=dtype, rngs=rngs)
        self.activation = config.activation

    def __call__(self, x: Array) -> Array:
        """Maps [B, T, D] to [B, T, D]."""
        return self.down(ACTIVATIONS[self.activation](self.up(x)))


class Layer(nnx.Module):
    """Attention and MLP, each beside a residual and before a norm."""

    def __init__(self, config: Config, dtype: Any, rngs: nnx.Rngs):
        self.attention, self.mlp = Attention(config, dtype, rngs), MLP(config, dtype, rngs)
        self.attention_norm = LayerNorm(config.width, config.epsilon, dtype)
        self.mlp_norm = LayerNorm(config.width, config.epsilon, dtype)

    def __call__(self, x: Array, mask: Array, cache: PyTree) -> tuple[Array, PyTree]:
        """Maps [B, T, D] to [B, T, D]."""
        x = self.attention_norm(x + self.attention(x, mask))
        return self.mlp_norm(x + self.mlp(x)), cache


class Embedding(nnx.Module):
    """The normalised sum of the embeddings of a token, its position and its type."""

    def __init__(self, config: Config, dtype: Any, rngs: nnx.Rngs):
        table = lambda rows: nnx.Param(config.std * jax.random.normal(rngs.params(), (rows, config.width), dtype))
        self.token, self.position, self.type = table(config.vocabulary), table(config.context), table(config.types)
        self.norm = LayerNorm(config.width, config.epsilon, dtype)

    def __call__(self, tokens: Array, places: Array, types: Array) -> Array:
        """Maps [B, T] three times to [B, T, D]."""
        return self.norm(self.token.get_value()[tokens] + self.position.get_value()[places] + self.type.get_value()[types])


def build(config: Mapping[str, Any] | Config, dtype: str = "float32", remat: bool = False) -> Encoder:
    """Builds an encoder; equal arguments give equal tree structures.

    Args:
      config: fields of config.json.
      dtype: of the parameters that `init` makes.
      remat: whether a backward pass computes each layer anew, to save memory.
    """
    c = config if isinstance(config, Config) else read_config(config)
    fresh, embedding = as_pure_functions(lambda rngs: Embedding(c, jnp.dtype(dtype), rngs))
    layers = stack_layers(lambda rngs: Layer(c, jnp.dtype(dtype), rngs), c.layers, remat)
    name = f"bert of width {c.width}"

    def init(key):
        embedding_key, layers_key = jax.random.split(key)
        return {"embedding": fresh(embedding_key), "layers": layers.init(layers_key)}

    def hidden(params: PyTree, tokens: Array, mask: Array, types: Array | None = None, read=None):
        check_context(name, tokens.shape[1], c.context)
        check_tokens(tokens, c.vocabulary, name, mask)
        types = jnp.zeros_like(tokens) if types is None else types
        check_tokens(types, c.types, f"the types of {name}", mask)
        x = embedding(params["embedding"])(tokens, token_positions(mask), types)
        everyone = jnp.broadcast_to(mask[:, None], (*mask.shape, mask.shape[1]))
        outputs = layers.run(params["layers"], x, everyone, read=read)
        return outputs[0] if read is None else outputs

    return Encoder(init, hidden, c.width, c.context, name, AXES, c.vocabulary)


def from_tensors(
    config: Mapping[str, Any] | Config, tensors: Mapping[str, np.ndarray], dtype: str = "float32", later: bool = False
) -> PyTree:
    """Reads the `params` of a configuration from published files.

    Args:
      config: fields of config.json.
      tensors: by the names that `BertModel` gives them, or behind "bert.", as in models that
        contain it.
      dtype: "float32" or "bfloat16".
      later: see `read_params`.

    Raises:
      ValueError: as `read_config`; a tensor is missing, unknown, or not of the right shape or kind.
    """
    c = config if isinstance(config, Config) else read_config(config)
    named = {}
    for key, tensor in tensors.items():
        for old, new in OLD_NAMES.items():
            key = key.removesuffix(old) + new if key.endswith(old) else key
        named[key.removeprefix("bert.")] = tensor
    norm = lambda name: {"bias": Tensor(f"{name}.LayerNorm.bias"), "scale": Tensor(f"{name}.LayerNorm.weight")}
    part = "encoder.layer.{}."
    attention = {to: linear(f"{part}attention.self.{to}", True) for to in ("query", "key", "value")}
    tables = {"token": "word", "position": "position", "type": "token_type"}
    where = {
        "embedding": {to: Tensor(f"embeddings.{name}_embeddings.weight") for to, name in tables.items()}
        | {"norm": norm("embeddings")},
        "layers": {
            "attention": attention | {"output": linear(f"{part}attention.output.dense", True)},
            "attention_norm": norm(f"{part}attention.output"),
            "mlp": {"down": linear(f"{part}output.dense", True), "up": linear(f"{part}intermediate.dense", True)},
            "mlp_norm": norm(f"{part}output"),
        },
    }
    like = jax.eval_shape(build(c).init, jax.random.key(0))
    return read_params(like, where, named, IGNORED, dtype, f"bert of width {c.width}", later)
