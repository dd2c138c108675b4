"""CLIP: an encoder of texts and one of images, whose outputs are compared by their cosines.

Radford et al. Learning Transferable Visual Models From Natural Language Supervision. ICML 2021.
https://arxiv.org/abs/2103.00020

  params                                           shape
  text / embedding / token, position               [V, D], [context, D]
  text / layers, norm, projection / kernel         as BERT's, [D, P]
  image / patch / kernel                           [p, p, 3, D'], by column and row
  image / class, position                          [D'], [1 + patches, D']
  image / first_norm, layers, norm, projection     as the text's
  scale                                            [] logarithm of the factor of the cosines

Texts see what is before them alone and are read at their last real token, which must be the end of
the text. Files have the layout of `CLIPModel`. No dropout.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.language.models.blocks import Layer, LayerConfig, read_classic_layer
from fedjax_core.language.models.transformer import (
    Linear,
    Tensor,
    as_pure_functions,
    check_context,
    last_token_index,
    linear,
    read_choice,
    read_params,
    read_positive,
    stack_layers,
    token_positions,
)
from fedjax_core.task import check_tokens
from fedjax_core.training.losses import normalize

ACTIVATIONS = ("quick_gelu", "gelu")
IGNORED = r"(text|vision)_model\.embeddings\.position_ids"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of images, by channel
_TEXT = {
    "vocab_size": 49_408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
}
_IMAGE = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
}


class Config(NamedTuple):
    """Fields of config.json.

    Attributes:
      text_layers, text_layer: number of layers, and one of them.
      vocabulary: V; context: tokens of a text at most.
      image_layers, image_layer: the same of the image's encoder.
      size: height and width of an image; patch: p of a patch.
      projection: P.
      scale: the initial one.
    """

    text_layers: int
    text_layer: LayerConfig
    vocabulary: int
    context: int
    image_layers: int
    image_layer: LayerConfig
    size: int
    patch: int
    projection: int
    scale: float


class Clip(NamedTuple):
    """CLIP as pure functions over a nested dict.

    Attributes:
      init: key -> params, as they are before any training.
      encode_text: (params, tokens [B, T], mask [B, T]) -> [B, P], of length 1.
      encode_image: (params, images [B, H, W, 3]) -> [B, P], of length 1; images are normalized by
        `MEAN` and `STD`.
      embed_tokens: (params, tokens [B, T]) -> [B, T, D], without positions.
      encode_embeddings: (params, such embeddings, mask [B, T]) -> as `encode_text`: what stands in
        a token's place may be learned.
      width: D; projection: P; size: H = W; context: T at most; name: for error messages.
    """

    init: Callable[[Array], PyTree]
    encode_text: Callable[[PyTree, Array, Array], Array]
    encode_image: Callable[[PyTree, Array], Array]
    embed_tokens: Callable[[PyTree, Array], Array]
    encode_embeddings: Callable[[PyTree, Array, Array], Array]
    width: int
    projection: int
    size: int
    context: int
    name: str


def read_config(config: Mapping[str, Any]) -> Config:
    """Reads config.json's fields; raises ValueError for one that is missing or not supported."""
    read_choice(config, "model_type", "clip")
    read_choice(config, "quantization_config", None)
    known = lambda name: {key: value for key, value in (config.get(name) or {}).items() if value is not None}
    text, image = _TEXT | known("text_config"), _IMAGE | known("vision_config")
    size, patch = read_positive(image, "image_size"), read_positive(image, "patch_size")
    read_choice(image, "num_channels", 3)
    if size % patch:
        raise ValueError(f"config.json: patch_size={patch} must divide image_size={size}")
    return Config(
        text_layers=read_positive(text, "num_hidden_layers"),
        text_layer=read_classic_layer(text, "pre", ACTIVATIONS, 1e-5),
        vocabulary=read_positive(text, "vocab_size"),
        context=read_positive(text, "max_position_embeddings"),
        image_layers=read_positive(image, "num_hidden_layers"),
        image_layer=read_classic_layer(image, "pre", ACTIVATIONS, 1e-5),
        size=size,
        patch=patch,
        projection=read_positive(config, "projection_dim", default=512),
        scale=read_positive(config, "logit_scale_init_value", float, 2.6592),
    )


class TextEnds(nnx.Module):
    """The embedding of tokens and positions, the final norm and the projection."""

    def __init__(self, config: Config, dtype: Any, rngs: nnx.Rngs):
        layer = config.text_layer
        table = lambda rows: nnx.Param(layer.std * jax.random.normal(rngs.params(), (rows, layer.width), dtype))
        self.embedding = nnx.Dict(token=table(config.vocabulary), position=table(config.context))
        self.norm = layer.make_norm(dtype)
        self.projection = Linear(layer.width, config.projection, std=layer.width**-0.5, dtype=dtype, rngs=rngs)


class ImageEnds(nnx.Module):
    """Patches, the class token and positions, both norms and the projection."""

    def __init__(self, config: Config, dtype: Any, rngs: nnx.Rngs):
        c, layer = config, config.image_layer
        draw = lambda *shape: nnx.Param(layer.std * jax.random.normal(rngs.params(), (*shape, layer.width), dtype))
        self.patch = nnx.Dict(kernel=draw(c.patch, c.patch, 3))
        self.position = draw(1 + (c.size // c.patch) ** 2)
        setattr(self, "class", draw())
        self.first_norm, self.norm = layer.make_norm(dtype), layer.make_norm(dtype)
        self.projection = Linear(layer.width, c.projection, std=layer.width**-0.5, dtype=dtype, rngs=rngs)
        self.patch_size = c.patch

    def embed(self, images: Array) -> Array:
        """Maps [B, H, W, 3] to [B, 1 + patches, D']."""
        b, h, w, _ = images.shape
        p, kernel, first = self.patch_size, self.patch["kernel"].get_value(), getattr(self, "class").get_value()
        parts = images.astype(kernel.dtype).reshape(b, h // p, p, w // p, p, 3)
        x = jnp.einsum("bhrwsc,srcd->bhwd", parts, kernel).reshape(b, -1, len(first))
        x = jnp.concatenate([jnp.broadcast_to(first, (b, 1, len(first))), x], 1)
        return self.first_norm(x + self.position.get_value()[None])


def build(config: Mapping[str, Any], dtype: str = "float32", remat: bool = False) -> Clip:
    """Builds both encoders; equal arguments give equal tree structures.

    Args:
      config: fields of config.json.
      dtype: of the parameters that `init` makes.
      remat: whether a backward pass computes each layer anew, to save memory.
    """
    c = read_config(config)
    kind = jnp.dtype(dtype)
    init_text, text_ends = as_pure_functions(lambda rngs: TextEnds(c, kind, rngs))
    init_image, image_ends = as_pure_functions(lambda rngs: ImageEnds(c, kind, rngs))
    text_layers = stack_layers(lambda rngs: Layer(c.text_layer, kind, rngs), c.text_layers, remat)
    image_layers = stack_layers(lambda rngs: Layer(c.image_layer, kind, rngs), c.image_layers, remat)
    name = f"clip of widths {c.text_layer.width} and {c.image_layer.width}"
    without_layers = lambda part: {name: leaf for name, leaf in part.items() if name != "layers"}

    def init(key):
        keys = jax.random.split(key, 4)
        text = init_text(keys[0]) | {"layers": text_layers.init(keys[1])}
        image = init_image(keys[2]) | {"layers": image_layers.init(keys[3])}
        return {"text": text, "image": image, "scale": jnp.asarray(c.scale, kind)}

    def embed_tokens(params, tokens):
        check_tokens(tokens, c.vocabulary, name)
        return params["text"]["embedding"]["token"][tokens]

    def encode_embeddings(params, x, mask):
        t = x.shape[1]
        check_context(name, t, c.context)
        ends = text_ends(without_layers(params["text"]))
        x = x + ends.embedding["position"].get_value()[token_positions(mask)]
        causal = mask[:, None] & jnp.tril(jnp.ones((t, t), bool))[None]
        x, _ = text_layers.run(params["text"]["layers"], x, None, causal, 0)
        x = jnp.take_along_axis(x, last_token_index(mask)[:, None, None], 1)
        return normalize(ends.projection(ends.norm(x))[:, 0])

    def encode_text(params, tokens, mask):
        return encode_embeddings(params, embed_tokens(params, tokens), mask)

    def encode_image(params, images):
        if images.shape[1:] != (c.size, c.size, 3):
            raise ValueError(f"{name} reads images of {c.size} x {c.size} x 3, not {' x '.join(map(str, images.shape[1:]))}")
        ends = image_ends(without_layers(params["image"]))
        x, _ = image_layers.run(params["image"]["layers"], ends.embed(images), None, None, 0)
        return normalize(ends.projection(ends.norm(x[:, :1]))[:, 0])

    return Clip(
        init, encode_text, encode_image, embed_tokens, encode_embeddings, c.text_layer.width, c.projection, c.size, c.context, name
    )


def from_tensors(config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], dtype: str = "float32") -> PyTree:
    """Reads the `params` of a configuration from published files.

    Args:
      config: fields of config.json.
      tensors: by the names that `CLIPModel` gives them.
      dtype: "float32" or "bfloat16".

    Raises:
      ValueError: as `read_config`; a tensor is missing, unknown, or not of the right shape or kind.
    """
    norm = lambda name: {"bias": Tensor(f"{name}.bias"), "scale": Tensor(f"{name}.weight")}

    def layers(tower: str) -> dict[str, Any]:
        part = f"{tower}.encoder.layers.{{}}."
        attention = {to: linear(f"{part}self_attn.{to[0]}_proj", True) for to in ("key", "query", "value")}
        return {
            "attention": attention | {"output": linear(f"{part}self_attn.out_proj", True)},
            "attention_norm": norm(f"{part}layer_norm1"),
            "mlp": {"down": linear(f"{part}mlp.fc2", True), "up": linear(f"{part}mlp.fc1", True)},
            "mlp_norm": norm(f"{part}layer_norm2"),
        }

    table = lambda tower, name: Tensor(f"{tower}_model.embeddings.{name}_embedding.weight")
    where = {
        "text": {
            "embedding": {name: table("text", name) for name in ("token", "position")},
            "layers": layers("text_model"),
            "norm": norm("text_model.final_layer_norm"),
            "projection": linear("text_projection"),
        },
        "image": {
            "class": Tensor("vision_model.embeddings.class_embedding"),
            "first_norm": norm("vision_model.pre_layrnorm"),
            "layers": layers("vision_model"),
            "norm": norm("vision_model.post_layernorm"),
            "patch": {"kernel": Tensor("vision_model.embeddings.patch_embedding.weight", True)},
            "position": table("vision", "position"),
            "projection": linear("visual_projection"),
        },
        "scale": Tensor("logit_scale"),
    }
    like = jax.eval_shape(build(config).init, jax.random.key(0))
    return read_params(like, where, tensors, IGNORED, dtype, "clip")
