"""Language models that generate answers: the Model that is trained, and decoding of many prompts.

  writing(model)             a Model that learns to write answers; FedAvg of an adapter of it is FedIT
  complete(generate, ...)    decoding of many prompts, greedy or with beams, in batches of like lengths

Data are those of `instruction_data.build_generation_data`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, Net, PyTree
from fedjax_core.language.length_bucketing import drop_padding
from fedjax_core.language.models.transformer import LanguageModel, last_token_index, name_layers
from fedjax_core.task import Model


class AnswerOutputs(NamedTuple):
    """What a language model makes of questions with their answers; A: of the longest answer.

    Attributes:
      logits: [B, A, V] for the tokens of the answers.
      targets: [B, A] those tokens; -1 before a shorter answer.
      features: [B, D] last hidden state of the last token of prompt and answer.
      layers: [L, B, D] all layers' states of that token, if asked for.
    """

    logits: Array
    targets: Array
    features: Array
    layers: Array | None = None


def compute_answer_outputs(model: LanguageModel, params: PyTree, x: PyTree, layers: bool = False) -> AnswerOutputs:
    """Runs the model once over `build_generation_data`'s x: {"tokens": [B, T], "mask": [B, T],
    padding on the left, "answer": [B, A]}.

    Logits are made for the answers' places alone, which in a long text saves nearly all of them.
    """
    a = x["answer"].shape[1]
    end = last_token_index(x["mask"])
    read = lambda hidden: hidden[jnp.arange(len(end)), end].astype(jnp.float32)
    hidden = model.hidden(params, x["tokens"], x["mask"], read=read if layers else None)
    hidden, layer_outputs = hidden if layers else (hidden, None)
    targets = jnp.where(x["answer"], x["tokens"][:, -a:], -1)
    return AnswerOutputs(model.logits(params, hidden[:, -a - 1 : -1]), targets, read(hidden), layer_outputs)


def make_writer(model: LanguageModel) -> Model:
    """Makes a Model that learns to write answers: with `local_training.model_loss`, on their
    tokens and ends alone.

    Args:
      model: the network, whose parameters are the Model's.

    Returns:
      The Model. x is `build_generation_data`'s. Outputs are "logits" [B, A, V], "targets" [B, A]
      (-1: none) and "features" [B, D] of the last token, intermediates its states after each layer,
      "layer1" to "layerL". `head` gives the next token's logits. To decode, hand `model.generate`
      the params of the `Net`.
    """

    def apply(net: Net, x: PyTree, key=None, train=False, mask=None, intermediates=False):
        del key, train
        outputs: dict[str, Any] = compute_answer_outputs(model, net.params, drop_padding(x, mask), intermediates)._asdict()
        layers = outputs.pop("layers")
        return (outputs if layers is None else outputs | {"intermediates": name_layers(layers)}), net.stats

    def features(net: Net, x: PyTree, key: Array | None = None, train: bool = False, mask: Array | None = None):
        del key, train
        return compute_answer_outputs(model, net.params, drop_padding(x, mask)).features, net.stats

    init, head = lambda key: Net(model.init(key), {}), lambda net, features: model.logits(net.params, features)
    return Model(init, apply, features, head, f"writing {model.name}", model_axes=model.model_axes, vocabulary=model.vocabulary)


def generate_completions(
    generate: Callable[[Array, Array], tuple[Array, Array]],
    prompts: Sequence[Sequence[int]],
    batch: int = 32,
    multiple: int = 32,
    widest: int | None = None,
) -> list[list[int]]:
    """Generates completions of many prompts: the longest first, in batches as wide as their longest
    prompt.

    Args:
      generate: (tokens [B, T], mask [B, T]) -> (tokens [B, L], mask [B, L]), such as
        `functools.partial(generate, params)` of `generate =
        jax.jit(functools.partial(model.generate, limit=80))`, or with beams=4 beside the limit.
      prompts: examples of tokens, none of them empty.
      batch: B.
      multiple: widths are multiples of it, so that few programs are compiled.
      widest: but no width is larger, such as `model.context - limit`; None: no such end.

    Returns:
      Each prompt's completion, in the order of the prompts, without the token that ended it.

    Raises:
      ValueError: a prompt is empty, or longer than the widest.
    """
    if not all(len(prompt) for prompt in prompts):
        raise ValueError("a prompt has no tokens; there must be at least one to begin with")
    longest = max(map(len, prompts), default=0)
    if widest is not None and longest > widest:
        raise ValueError(f"a prompt has {longest} tokens, widest={widest}; cut it before (`instruction_data.tokenize_prompts`)")
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    completions: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), batch):
        indices = order[start : start + batch]
        width = -(-len(prompts[indices[0]]) // multiple) * multiple
        width = width if widest is None else min(width, widest)
        tokens, mask = np.zeros((batch, width), np.int32), np.zeros((batch, width), bool)
        for row in range(batch):
            prompt = prompts[indices[min(row, len(indices) - 1)]]  # a short last batch repeats its last one
            tokens[row, width - len(prompt) :], mask[row, width - len(prompt) :] = prompt, True
        new, real = (np.asarray(array) for array in generate(jnp.asarray(tokens), jnp.asarray(mask)))
        for row, i in enumerate(indices):
            completions[i] = new[row][real[row]].tolist()
    return completions
