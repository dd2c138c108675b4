"""Encoders that score the answer options of each example.

encoder, base = load_pretrained.load(folder)
data, options = build_option_data(divided, load_pretrained.load_tokenizer(folder), limit=256)
arrays = add_option_embeddings(encoder, base, **options)
model = make_option_scorer(encoder, len(options["tokens"]))
task = adapters.adapter_task(model, arrays, adapters.lora(), classes=data.classes, population=data.clients)
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, Net, PyTree
from fedjax_core.language.length_bucketing import drop_padding
from fedjax_core.language.models.transformer import Encoder, name_layers
from fedjax_core.nn.kernels.attention import MASKED_SCORE
from fedjax_core.task import Model
from fedjax_core.training import losses

TEMPERATURE = 0.05  # by which cosines are divided


def embed_batch(encoder: Encoder, params: PyTree, tokens: Array, mask: Array) -> Array:
    """Returns the mean hidden states of real tokens, of length 1: [B, T] -> [B, D] float32."""
    return losses.normalize(_mean(encoder.hidden(params, tokens, mask), mask))


def _mean(hidden: Array, mask: Array) -> Array:
    """Returns the mean over the real tokens: [B, T, D] -> [B, D] float32."""
    total = jnp.sum(jnp.where(mask[..., None], hidden.astype(jnp.float32), 0), 1)
    return total / jnp.maximum(jnp.sum(mask, 1), 1)[:, None]


def embed_texts(encoder: Encoder, params: PyTree, tokens: np.ndarray, mask: np.ndarray, batch: int, multiple: int = 16) -> Array:
    """Embeds many texts [U, T], padded on the right, as [U, D], in batches of like lengths."""
    embed_jit = jax.jit(functools.partial(embed_batch, encoder))
    lengths = mask.sum(1)
    order = np.argsort(lengths, kind="stable")
    embeddings = np.zeros((len(order), encoder.width), np.float32)
    for start in range(0, len(order), batch):
        indices = order[start : start + batch]
        width = min(-(-max(1, lengths[indices[-1]]) // multiple) * multiple, tokens.shape[1])
        rows = np.pad(indices, (0, batch - len(indices)), mode="edge")
        embeddings[indices] = embed_jit(params, tokens[rows, :width], mask[rows, :width])[: len(indices)]
    return jnp.asarray(embeddings)


def make_option_scorer(encoder: Encoder, options: int, temperature: float = TEMPERATURE) -> Model:
    """Makes a classifier whose classes are each example's listed options; its head is fixed.

        logit_k = cos(embedding of the question, embedding of option k under the frozen base) / temperature

    Params are the encoder's, and "head": {"options": [U, D]}, which no gradient reaches
    (`add_option_embeddings` has both). x is {"tokens": [B, T], "mask": [B, T], "options": [B, K] in
    [0, U), or -1 for none}; such a place has a logit of -1e30. The features are the questions'
    embeddings, intermediates "layer1" to "layerL" the means of each layer's hidden states. There is
    no head from features alone: `Model.head` raises ValueError.

    Args:
      encoder: the network.
      options: U, the number of different options in the data.
      temperature: small ones make scores differ more.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be positive")

    def init(key: Array) -> Net:
        return Net(encoder.init(key) | {"head": {"options": jnp.zeros((options, encoder.width))}}, {})

    def features(net: Net, x: PyTree, key: Array | None = None, train: bool = False, mask: Array | None = None):
        del key, train
        x = drop_padding(x, mask)
        return embed_batch(encoder, net.params, x["tokens"], x["mask"]), net.stats

    def head(net: Net, features: Array) -> Array:
        raise ValueError("the options differ between examples, so that logits need x, not features alone: use apply")

    def apply(net: Net, x: PyTree, key=None, train=False, mask=None, intermediates=False):
        del key, train
        visible = drop_padding(x, mask)
        read = (lambda hidden: _mean(hidden, visible["mask"])) if intermediates else None
        hidden = encoder.hidden(net.params, visible["tokens"], visible["mask"], read=read)
        hidden, layers = hidden if intermediates else (hidden, None)
        embeddings = losses.normalize(_mean(hidden, visible["mask"]))
        listed = jax.lax.stop_gradient(net.params["head"]["options"])[jnp.maximum(x["options"], 0)]  # [B, K, D]
        scores = jnp.einsum("bd,bkd->bk", embeddings, listed) / temperature
        outputs: dict[str, Any] = {"logits": jnp.where(x["options"] >= 0, scores, MASKED_SCORE), "features": embeddings}
        return (outputs if layers is None else outputs | {"intermediates": name_layers(layers)}), net.stats

    return Model(
        init, apply, features, head, f"scoring {encoder.name}", model_axes=encoder.model_axes, vocabulary=encoder.vocabulary
    )


def add_option_embeddings(encoder: Encoder, base: PyTree, tokens: np.ndarray, mask: np.ndarray, batch: int = 64) -> Net:
    """Returns the arrays of such a model: the base, and all options [U, T] embedded by it."""
    return Net(base | {"head": {"options": embed_texts(encoder, base, tokens, mask, batch)}}, {})
