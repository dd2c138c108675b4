"""What config.json says of a decoder, by the families that transformers has.

  model_type     differs from LLaMA in
  llama
  mistral        a window over the last tokens, in all layers
  qwen2          biases of query, key and value; a window in later layers, where one is set
  qwen3          norms of query and key; windows as qwen2
  gemma2         norms around each part, which scale by 1 + the weight; GELU; scaled embeddings; scores
                 and logits with soft caps; a window in every other layer
  gemma3_text    the same with norms of query and key in place of caps; a window in five layers of
                 six, whose rotary positions have a base of their own
  gpt2           learned positions, layer norms, biases, an MLP without a gate

Qwen 2.5 and Qwen 2 are one family. Of Gemma 3, the models that read text alone are supported.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_core.language.models.blocks import ALL_BIASES, LayerConfig
from fedjax_core.language.models.transformer import read_choice, read_positive

ROPE_TYPES = ("default", "linear", "llama3")
LAYER_TYPES = ("full_attention", "sliding_attention")
_QWEN = {"use_sliding_window": False, "max_window_layers": 28, "sliding_window": 4096}
_GEMMA = {
    "tie_word_embeddings": True,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "hidden_activation": "gelu_pytorch_tanh",
}
DEFAULTS: dict[str, dict[str, Any]] = {  # of fields that published files leave out
    "llama": {},
    "mistral": {"sliding_window": 4096, "max_position_embeddings": 131_072},
    "qwen2": _QWEN | {"max_position_embeddings": 32_768},
    "qwen3": _QWEN | {"head_dim": 128, "max_position_embeddings": 32_768},
    "gemma2": _GEMMA | {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "max_position_embeddings": 8192},
    "gemma3_text": _GEMMA | {"max_position_embeddings": 131_072, "rope_theta": 1e6},
    "gpt2": {"activation_function": "gelu_new", "tie_word_embeddings": True},
}


class Config(NamedTuple):
    """Fields of config.json.

    Attributes:
      family: its model_type.
      vocabulary: V.
      layers: L.
      layer: of one layer.
      frequencies: [E / 2] angle per position of each pair of numbers; (): learned positions.
      tied: whether the embedding is the head too.
      context: positions that it was trained for.
      stop: ids of the tokens that end a text.
      local: [L] which layers see the last `window` tokens alone; (): none.
      window: tokens, or None.
      local_frequencies: of those layers.
      embedding_scale: of the embedded tokens; None: 1.
      cap: c of logits c tanh(logit / c); None: uncapped.
    """

    family: str
    vocabulary: int
    layers: int
    layer: LayerConfig
    frequencies: tuple[float, ...]
    tied: bool
    context: int
    stop: tuple[int, ...]
    local: tuple[bool, ...] = ()
    window: int | None = None
    local_frequencies: tuple[float, ...] = ()
    embedding_scale: float | None = None
    cap: float | None = None


def read_config(config: Mapping[str, Any]) -> Config:
    """Reads config.json's fields; raises ValueError for one that is missing or not supported."""
    family = read_choice(config, "model_type", *DEFAULTS)
    config = {**DEFAULTS[family], **config}
    read_choice(config, "quantization_config", None)
    return _read_gpt2(config) if family == "gpt2" else _read_rotary(config, family)


def _read_gpt2(config: Mapping[str, Any]) -> Config:
    """Reads GPT-2's fields."""
    width, heads = read_positive(config, "n_embd"), read_positive(config, "n_head")
    if width % heads:
        raise ValueError(f"config.json: n_head={heads} must divide n_embd={width}")
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        read_choice(config, name, False)
    read_choice(config, "scale_attn_weights", True)
    layer = LayerConfig(
        width=width,
        inner=read_positive(config, "n_inner", default=4 * width),
        heads=heads,
        groups=heads,
        head_width=width // heads,
        epsilon=read_positive(config, "layer_norm_epsilon", float, 1e-5),
        std=read_positive(config, "initializer_range", float, 0.02),
        activation=read_choice(config, "activation_function", "gelu_new", "gelu", "gelu_pytorch_tanh", "relu"),
        gated=False,
        norm="layer",
        biases=ALL_BIASES,
    )
    return Config(
        family="gpt2",
        vocabulary=read_positive(config, "vocab_size"),
        layers=read_positive(config, "n_layer"),
        layer=layer,
        frequencies=(),
        tied=read_choice(config, "tie_word_embeddings", True, False),
        context=read_positive(config, "n_positions", default=1024),
        stop=_read_stop(config),
    )


def _read_rotary(config: Mapping[str, Any], family: str) -> Config:
    """Reads the fields of LLaMA and its relatives."""
    gemma = family.startswith("gemma")
    if gemma:
        activation = read_choice(config, "hidden_activation", "gelu_pytorch_tanh")
        read_choice(config, "use_bidirectional_attention", None, False)
    else:
        activation = read_choice(config, "hidden_act", "silu")
    for name in ("attention_bias", "mlp_bias"):
        read_choice(config, name, False)
    read_choice(config, "attention_dropout", 0.0, None)
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
    layers = read_positive(config, "num_hidden_layers")
    cap = lambda name: None if config.get(name) is None else read_positive(config, name, float)
    layer = LayerConfig(
        width=width,
        inner=read_positive(config, "intermediate_size"),
        heads=number,
        groups=groups,
        head_width=head_width,
        epsilon=read_positive(config, "rms_norm_eps", float, 1e-6),
        std=read_positive(config, "initializer_range", float, 0.02),
        activation=activation,
        norm="rms_plus_one" if gemma else "rms",
        order="around" if gemma else "pre",
        biases=("query", "key", "value") if family == "qwen2" else (),
        qk_norm=family in ("qwen3", "gemma3_text"),
        scale=read_positive(config, "query_pre_attn_scalar", float) ** -0.5 if gemma else None,
        cap=cap("attn_logit_softcapping") if gemma else None,
    )
    rope, local_rope = _read_rope(config, family)
    local = _read_local(config, family, layers)
    return Config(
        family=family,
        vocabulary=read_positive(config, "vocab_size"),
        layers=layers,
        layer=layer,
        frequencies=_frequencies(rope, head_width, context),
        tied=read_choice(config, "tie_word_embeddings", False, True),
        context=context,
        stop=_read_stop(config),
        local=local if any(local) else (),
        window=read_positive(config, "sliding_window") if any(local) else None,
        local_frequencies=_frequencies(local_rope, head_width, context) if any(local) else (),
        embedding_scale=width**0.5 if gemma else None,
        cap=cap("final_logit_softcapping") if gemma else None,
    )


def _read_stop(config: Mapping[str, Any]) -> tuple[int, ...]:
    ends = config.get("eos_token_id")
    return () if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (ends,)


def _read_local(config: Mapping[str, Any], family: str, layers: int) -> tuple[bool, ...]:
    """Returns which layers have the window, from layer_types or the family's older fields."""
    if family == "llama" or config.get("sliding_window") is None:
        return ()
    if (types := config.get("layer_types")) is not None:
        if not isinstance(types, list | tuple) or len(types) != layers:
            raise ValueError(f"config.json: layer_types={types!r} must be a list of num_hidden_layers={layers}")
        return tuple(read_choice({"layer_types": kind}, "layer_types", *LAYER_TYPES) == LAYER_TYPES[1] for kind in types)
    if family == "mistral":
        return (True,) * layers
    if family.startswith("qwen"):
        full = 0 if config.get("max_window_layers") == 0 else read_positive(config, "max_window_layers")
        first = full if read_choice(config, "use_sliding_window", False, True) else layers
        return tuple(i >= first for i in range(layers))
    pattern = 2 if family == "gemma2" else read_positive(config, "sliding_window_pattern", default=6)
    return tuple((i + 1) % pattern > 0 for i in range(layers))


def _read_rope(config: Mapping[str, Any], family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the rotary parameters of layers without and with the window.

    Both of config.json's forms are read: rope_theta beside rope_scaling, and rope_parameters.
    """
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    both = [dict(parameters.get(kind) or {}) if set(parameters) & set(LAYER_TYPES) else parameters for kind in LAYER_TYPES]
    shared = {name: config[name] for name in ("rope_theta", "partial_rotary_factor") if name in config}
    if family != "gemma3_text":
        return shared | both[0], shared | both[1]
    local = both[1] if both[1] is not parameters else {}
    return shared | both[0], {"rope_theta": config.get("rope_local_base_freq", 1e4)} | local


def _frequencies(rope: Mapping[str, Any], head_width: int, context: int) -> tuple[float, ...]:
    """Returns the frequencies theta^(-2j / E), scaled for longer texts."""
    theta = read_positive(rope, "rope_theta", float, 10000.0)
    kind = read_choice({"rope type": rope.get("rope_type") or rope.get("type") or "default"}, "rope type", *ROPE_TYPES)
    read_choice(rope, "partial_rotary_factor", 1.0)
    plain = theta ** (-np.arange(0, head_width, 2) / head_width)
    if kind == "default":
        return tuple(plain.tolist())
    factor = read_positive(rope, "factor", float)
    if kind == "linear":
        return tuple((plain / factor).tolist())
    low, high = read_positive(rope, "low_freq_factor", float), read_positive(rope, "high_freq_factor", float)
    if not low < high:
        raise ValueError(f"config.json: low_freq_factor={low} must be below high_freq_factor={high}")
    turns = read_positive(rope, "original_max_position_embeddings", default=context) * plain / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)  # 0: slow, scaled; 1: fast, kept
    return tuple((plain * ((1 - smooth) / factor + smooth)).tolist())
