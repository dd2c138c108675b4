"""Encoders of the BERT family: learned positions, a norm after each part, GELU, full attention.

Devlin, Chang, Lee, Toutanova. BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding. NAACL 2019. https://arxiv.org/abs/1810.04805
Liu et al. RoBERTa: A Robustly Optimized BERT Pretraining Approach. 2019.
https://arxiv.org/abs/1907.11692 The same network; its positions begin behind the id of the padding.

  params                                                                   shape
  embedding / token, position, type                                        [V, D], [context, D], [types, D]
  embedding / norm / scale, bias                                           [D]
  layers / attention / query, key, value, output / kernel, bias            [L, D, D], [L, D]
  layers / mlp / up, down / kernel, bias                                   [L, D, F], [L, F, D]; [L, F], [L, D]
  layers / attention_norm, mlp_norm / scale, bias                          [L, D]

Files have the layout of `BertModel` or `RobertaModel`; a pooler and the heads of pre-training are left out. The
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
from fedjax_core.language.models.blocks import Layer, LayerConfig, read_classic_layer
from fedjax_core.language.models.transformer import (
    AXES,
    Encoder,
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
from fedjax_core.task import check_tokens

ACTIVATIONS = ("gelu", "gelu_new", "relu")
IGNORED = r"embeddings\.position_ids|pooler\..*|cls\..*|lm_head\..*"
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}  # of norms, in files made from the original release's


class Config(NamedTuple):
    """Fields of config.json.

    Attributes:
      family: its model_type.
      vocabulary: V; layers: L; types: of tokens.
      layer: of one layer.
      positions: rows of the table of positions; first_position: the row of a text's first token.
    """

    family: str
    vocabulary: int
    layers: int
    types: int
    layer: LayerConfig
    positions: int
    first_position: int

    @property
    def context(self) -> int:
        """The most tokens of a text."""
        return self.positions - self.first_position


def read_config(config: Mapping[str, Any]) -> Config:
    """Reads config.json's fields; raises ValueError for one that is missing or not supported."""
    family = read_choice(config, "model_type", "bert", "roberta")
    read_choice(config, "position_embedding_type", "absolute")
    for name in ("is_decoder", "add_cross_attention"):
        read_choice(config, name, False)
    read_choice(config, "quantization_config", None)
    positions, first = read_positive(config, "max_position_embeddings", default=512), 0
    if family == "roberta":
        first = 1 + read_positive(config, "pad_token_id", default=1)
        if first >= positions:
            raise ValueError(f"config.json: pad_token_id={first - 1} leaves no room in max_position_embeddings={positions}")
    return Config(
        family=family,
        vocabulary=read_positive(config, "vocab_size"),
        layers=read_positive(config, "num_hidden_layers"),
        types=read_positive(config, "type_vocab_size", default=2),
        layer=read_classic_layer(config, "post", ACTIVATIONS, 1e-12),
        positions=positions,
        first_position=first,
    )


class Embedding(nnx.Module):
    """The normalised sum of the embeddings of a token, its position and its type."""

    def __init__(self, config: Config, dtype: Any, rngs: nnx.Rngs):
        layer = config.layer
        table = lambda rows: nnx.Param(layer.std * jax.random.normal(rngs.params(), (rows, layer.width), dtype))
        self.token, self.position, self.type = table(config.vocabulary), table(config.positions), table(config.types)
        self.norm = layer.make_norm(dtype)

    def __call__(self, tokens: Array, places: Array, types: Array) -> Array:
        """Maps [B, T] three times to [B, T, D]."""
        return self.norm(self.token.get_value()[tokens] + self.position.get_value()[places] + self.type.get_value()[types])


def build(config: Mapping[str, Any], dtype: str = "float32", remat: bool = False) -> Encoder:
    """Builds an encoder; equal arguments give equal tree structures.

    Args:
      config: fields of config.json.
      dtype: of the parameters that `init` makes.
      remat: whether a backward pass computes each layer anew, to save memory.
    """
    c = read_config(config)
    fresh, embedding = as_pure_functions(lambda rngs: Embedding(c, jnp.dtype(dtype), rngs))
    layers = stack_layers(lambda rngs: Layer(c.layer, jnp.dtype(dtype), rngs), c.layers, remat)
    name = f"{c.family} of width {c.layer.width}"

    def init(key):
        embedding_key, layers_key = jax.random.split(key)
        return {"embedding": fresh(embedding_key), "layers": layers.init(layers_key)}

    def hidden(params: PyTree, tokens: Array, mask: Array, types: Array | None = None, read=None):
        check_context(name, tokens.shape[1], c.context)
        check_tokens(tokens, c.vocabulary, name, mask)
        types = jnp.zeros_like(tokens) if types is None else types
        check_tokens(types, c.types, f"the types of {name}", mask)
        places = token_positions(mask)
        places = places + c.first_position if c.first_position else places
        x = embedding(params["embedding"])(tokens, places, types)
        everyone = jnp.broadcast_to(mask[:, None], (*mask.shape, mask.shape[1]))
        outputs = layers.run(params["layers"], x, None, everyone, 0, read=read)
        return outputs[0] if read is None else outputs

    return Encoder(init, hidden, c.layer.width, c.context, name, AXES, c.vocabulary)


def from_tensors(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], dtype: str = "float32", later: bool = False
) -> PyTree:
    """Reads the `params` of a configuration from published files.

    Args:
      config: fields of config.json.
      tensors: by the names that `BertModel` or `RobertaModel` gives them, or behind "bert." or
        "roberta.", as in models that contain it.
      dtype: "float32" or "bfloat16".
      later: see `read_params`.

    Raises:
      ValueError: as `read_config`; a tensor is missing, unknown, or not of the right shape or kind.
    """
    c = read_config(config)
    named = {}
    for key, tensor in tensors.items():
        for old, new in OLD_NAMES.items():
            key = key.removesuffix(old) + new if key.endswith(old) else key
        named[key.removeprefix(f"{c.family}.")] = tensor
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
    like = jax.eval_shape(build(config).init, jax.random.key(0))
    return read_params(like, where, named, IGNORED, dtype, f"{c.family} of width {c.layer.width}", later)
