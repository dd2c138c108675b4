"""Decoders: LLaMA, Mistral, Qwen 2, 2.5 and 3, Gemma 2 and 3, GPT-2 (`decoder_configs.py`).

Touvron et al. LLaMA: Open and Efficient Foundation Language Models. 2023.
https://arxiv.org/abs/2302.13971
Llama 3's long contexts: Grattafiori et al. The Llama 3 Herd of Models. 2024.
https://arxiv.org/abs/2407.21783
Rotary positions: Su et al. RoFormer. 2021. https://arxiv.org/abs/2104.09864
Mistral 7B. 2023. https://arxiv.org/abs/2310.06825
Qwen2, Qwen3. 2024, 2025. https://arxiv.org/abs/2407.10671 https://arxiv.org/abs/2505.09388
Gemma 2, Gemma 3. 2024, 2025. https://arxiv.org/abs/2408.00118 https://arxiv.org/abs/2503.19786
GPT-2: Radford et al. Language Models are Unsupervised Multitask Learners. 2019.

  params                                                   shape
  embedding                                                [V, D]
  position; none with rotary positions                     [context, D]
  layers / attention / query, key, value, output / kernel  [L, D, H E], [L, D, G E], [L, D, G E], [L, H E, D]
  layers / mlp / gate, up, down / kernel                   [L, D, F], [L, D, F], [L, F, D]
  layers / attention_norm, mlp_norm / scale                [L, D]
  norm / scale                                             [D]
  head / kernel; none where the embedding is the head too  [D, V]

H heads of E numbers, G of keys and values. Families add biases, norms of query and key
(attention / query_norm, key_norm [L, E]) and norms behind a part (attention_out_norm, mlp_out_norm).
Files have the layout of transformers' `...ForCausalLM`. The computation runs in the dtype of the
parameters; norms, softmax and logits in float32. No dropout.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.language.models.beam_search import beam_search
from fedjax_core.language.models.blocks import Layer
from fedjax_core.language.models.decoder_configs import Config, read_config
from fedjax_core.language.models.transformer import (
    AXES,
    LanguageModel,
    Linear,
    Tensor,
    as_pure_functions,
    check_context,
    greedy_decode,
    linear,
    read_params,
    stack_layers,
    token_positions,
)
from fedjax_core.task import check_tokens

# Old files have these tables, which follow from the configuration.
IGNORED = r".*rotary_emb\.inv_freq|h\.\d+\.attn\.(masked_)?bias"


class Ends(nnx.Module):
    """The embedding, the final norm and the head."""

    def __init__(self, config: Config, dtype: Any, rngs: nnx.Rngs):
        c, width, std = config, config.layer.width, config.layer.std
        table = lambda rows: nnx.Param(std * jax.random.normal(rngs.params(), (rows, width), dtype))
        self.embedding = table(c.vocabulary)
        self.position = None if c.frequencies else table(c.context)
        self.norm = c.layer.make_norm(dtype)
        self.head = None if c.tied else Linear(width, c.vocabulary, std=std, dtype=dtype, rngs=rngs)
        self.scale, self.cap = c.embedding_scale, c.cap

    def embed(self, tokens: Array, places: Array) -> Array:
        """Maps [B, T] twice to [B, T, D]."""
        x = self.embedding.get_value()[tokens]
        x = x if self.scale is None else x * jnp.asarray(self.scale, x.dtype)
        return x if self.position is None else x + self.position.get_value()[places]

    def logits(self, x: Array) -> Array:
        """Maps [..., D] to [..., V] float32."""
        kernel = self.embedding.get_value().T if self.head is None else self.head.kernel.get_value()
        if isinstance(kernel, jax.Array | np.ndarray):
            logits = jnp.matmul(x, kernel, preferred_element_type=jnp.float32)
        else:  # an adapter's
            logits = (x @ kernel).astype(jnp.float32)
        return logits if self.cap is None else self.cap * jnp.tanh(logits / self.cap)


def keep_last(mask: Array, window: int) -> Array:
    """Returns a mask [B, T, S] with the last `window` of the keys that each query sees."""
    seen = jnp.cumsum(mask, -1, dtype=jnp.int32)
    return mask & (seen > seen[..., -1:] - window)


def build(config: Mapping[str, Any], dtype: str = "float32", remat: bool = False) -> LanguageModel:
    """Builds a decoder; equal arguments give equal tree structures.

    Args:
      config: fields of config.json.
      dtype: of the parameters that `init` makes.
      remat: whether a backward pass computes each layer anew, to save memory.
    """
    c = read_config(config)
    fresh, merged = as_pure_functions(lambda rngs: Ends(c, jnp.dtype(dtype), rngs))
    layers = stack_layers(lambda rngs: Layer(c.layer, jnp.dtype(dtype), rngs), c.layers, remat)
    name = f"{c.family} of width {c.layer.width}"
    kinds = sorted(set(c.local or (False,)))  # whether layers have the window
    kind_of_layer = [kinds.index(local) for local in c.local] if len(kinds) > 1 else None

    def init(key):
        ends_key, layers_key = jax.random.split(key)
        return fresh(ends_key) | {"layers": layers.init(layers_key)}

    def ends(params) -> Ends:
        return merged({name: leaf for name, leaf in params.items() if name != "layers"})

    def run(params, tokens, places, mask, place=0, cache=(), read=None):
        outer = ends(params)

        def context(local: bool):
            frequencies = c.local_frequencies if local else c.frequencies
            angles = (
                places[..., None].astype(jnp.float32) * jnp.asarray(frequencies, jnp.float32)[None, None] if frequencies else None
            )
            is_cut = local and c.window is not None and c.window < mask.shape[-1]
            return angles, keep_last(mask, c.window or 0) if is_cut else mask, place

        contexts, which = [context(local) for local in kinds], None
        if kind_of_layer is not None:
            contexts, which = [jax.tree.map(lambda *both: jnp.stack(both), *contexts)], jnp.asarray(kind_of_layer)
        x, cache = layers.run(params["layers"], outer.embed(tokens, places), *contexts[0], cache=cache, read=read, kinds=which)
        return outer.norm(x), cache

    def hidden(params: PyTree, tokens: Array, mask: Array, read=None, segments: Array | None = None):
        t = tokens.shape[1]
        check_context(name, t, c.context)
        check_tokens(tokens, c.vocabulary, name, mask)
        causal = jnp.tril(jnp.ones((t, t), bool))
        places, visible = token_positions(mask), mask[:, None] & causal[None]
        if segments is not None:
            visible = visible & (segments[:, :, None] == segments[:, None])
            places = jnp.maximum(jnp.sum(visible, -1, dtype=jnp.int32) - 1, 0)
        outputs = run(params, tokens, places, visible, read=read)
        return outputs[0] if read is None else outputs

    def logits(params: PyTree, hidden: Array) -> Array:
        return ends(params).logits(hidden)

    def generate(
        params: PyTree, tokens: Array, mask: Array, *, limit: int, stop: tuple[int, ...] = c.stop, beams: int = 1
    ) -> tuple[Array, Array]:
        b, t = tokens.shape
        check_context(name, t + limit, c.context)
        check_tokens(tokens, c.vocabulary, name, mask)
        kept = jnp.zeros((c.layers, b, t + limit, c.layer.groups, c.layer.head_width), params["embedding"].dtype)

        def step(cache, tokens, places, place, mask, at):
            x, cache = run(params, tokens, places, mask, place, cache)
            return logits(params, jnp.take_along_axis(x, at[:, None, None], 1)[:, 0]), cache

        search = greedy_decode if beams == 1 else functools.partial(beam_search, beams=beams)
        return search(step, {"key": kept, "value": kept}, tokens, mask, limit=limit, stop=stop)

    return LanguageModel(init, hidden, logits, generate, c.layer.width, c.context, c.stop, name, AXES, c.vocabulary)


def from_tensors(
    config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], dtype: str = "float32", later: bool = False
) -> PyTree:
    """Reads the `params` of a configuration from published files.

    Args:
      config: fields of config.json.
      tensors: by the names that transformers' `...ForCausalLM` gives them, or `GPT2Model`.
      dtype: "float32" or "bfloat16".
      later: see `read_params`.

    Raises:
      ValueError: as `read_config`; a tensor is missing, unknown, or not of the right shape or kind.
    """
    c = read_config(config)
    tensors = {key.removeprefix("transformer."): tensor for key, tensor in tensors.items()} if c.family == "gpt2" else tensors
    where = _name_gpt2_tensors() if c.family == "gpt2" else _name_tensors(c)
    if not c.tied:
        where["head"] = linear("lm_head")
    like = jax.eval_shape(build(config).init, jax.random.key(0))
    ignored = IGNORED + (r"|lm_head\.weight" if c.tied else "")
    return read_params(like, where, tensors, ignored, dtype, f"{c.family} of width {c.layer.width}", later)


def _name_tensors(c: Config) -> dict[str, Any]:
    """Returns the tensors of LLaMA and its relatives, nested like the parameters."""
    part = "model.layers.{}."
    scale = lambda name: {"scale": Tensor(f"{name}.weight")}
    attention = {to: linear(f"{part}self_attn.{to[0]}_proj", to in c.layer.biases) for to in ("key", "output", "query", "value")}
    if c.layer.qk_norm:
        attention |= {f"{to}_norm": scale(f"{part}self_attn.{to[0]}_norm") for to in ("key", "query")}
    norms = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    if c.layer.order == "around":
        norms |= {"attention_out_norm": "post_attention_layernorm"}
        norms |= {"mlp_norm": "pre_feedforward_layernorm", "mlp_out_norm": "post_feedforward_layernorm"}
    layers = {"attention": attention, "mlp": {to: linear(f"{part}mlp.{to}_proj") for to in ("down", "gate", "up")}}
    layers |= {to: scale(part + name) for to, name in norms.items()}
    return {"embedding": Tensor("model.embed_tokens.weight"), "layers": layers, "norm": scale("model.norm")}


def _name_gpt2_tensors() -> dict[str, Any]:
    """Returns GPT-2's tensors; its linear maps are [in, out], and query, key and value one tensor."""
    both = lambda name, **more: {"bias": Tensor(f"{name}.bias", **more), "kernel": Tensor(f"{name}.weight", **more)}
    norm = lambda name: {"bias": Tensor(f"{name}.bias"), "scale": Tensor(f"{name}.weight")}
    attention = {to: both("h.{}.attn.c_attn", part=(i, 3)) for i, to in enumerate(("query", "key", "value"))}
    layers = {
        "attention": attention | {"output": both("h.{}.attn.c_proj")},
        "attention_norm": norm("h.{}.ln_1"),
        "mlp": {"down": both("h.{}.mlp.c_proj"), "up": both("h.{}.mlp.c_fc")},
        "mlp_norm": norm("h.{}.ln_2"),
    }
    return {"embedding": Tensor("wte.weight"), "layers": layers, "norm": norm("ln_f"), "position": Tensor("wpe.weight")}
