"""Language models that generate answers: the Model that is trained, decoding, and scores of texts.

Data are those of `instruction_data.build_generation_data`. FedAvg of an adapter of `make_writer`'s
Model is FedIT.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, Net, PyTree
from fedjax_core.language.instruction_data import pad_sequences
from fedjax_core.language.length_bucketing import drop_padding
from fedjax_core.language.models.transformer import LanguageModel, last_token_index, name_layers
from fedjax_core.task import Model

_log = logging.getLogger(__name__)


class AnswerOutputs(NamedTuple):
    """Outputs of a language model for questions with their answers; A: of the longest answer.

    Attributes:
      logits: [B, A, V] for the tokens of the answers.
      targets: [B, A] those tokens; -1 before a shorter answer.
      features: [B, D] last hidden state of the last token of prompt and answer.
      layers: [L, B, D] all layers' states of that token, or None.
    """

    logits: Array
    targets: Array
    features: Array
    layers: Array | None = None


def compute_answer_outputs(model: LanguageModel, params: PyTree, x: PyTree, layers: bool = False) -> AnswerOutputs:
    """Runs the model once over `build_generation_data`'s x.

    Logits are computed at the answers' places alone, which in a long text saves nearly all of them.
    """
    a = x["answer"].shape[1]
    end = last_token_index(x["mask"])
    read = lambda hidden: hidden[jnp.arange(len(end)), end].astype(jnp.float32)
    more = {"segments": x["segments"]} if "segments" in x else {}
    hidden = model.hidden(params, x["tokens"], x["mask"], read=read if layers else None, **more)
    hidden, layer_outputs = hidden if layers else (hidden, None)
    targets = jnp.where(x["answer"], x["tokens"][:, -a:], -1)
    return AnswerOutputs(model.logits(params, hidden[:, -a - 1 : -1]), targets, read(hidden), layer_outputs)


def check_unpacked(x: PyTree) -> None:
    """Raises ValueError for packed examples, of whose texts the last alone would have features."""
    if "segments" in x:
        raise ValueError("pack=True: the method reads features of each text, and a packed example has several; set pack=False")


def make_writer(model: LanguageModel) -> Model:
    """Makes a Model that learns to write answers, on their tokens and ends alone.

    x is `build_generation_data`'s. Outputs are "logits" [B, A, V], "targets" [B, A] (-1: none) and
    "features" [B, D] of the last token, intermediates its states after each layer, "layer1" to
    "layerL". Packed examples, of several texts, have neither. `head` gives the next token's logits. To
    decode, hand `model.generate` the params of the `Net`.
    """

    def apply(net: Net, x: PyTree, key=None, train=False, mask=None, intermediates=False):
        del key, train
        if intermediates:
            check_unpacked(x)
        outputs: dict[str, Any] = compute_answer_outputs(model, net.params, drop_padding(x, mask), intermediates)._asdict()
        layers = outputs.pop("layers")
        if "segments" in x:
            del outputs["features"]
        return (outputs if layers is None else outputs | {"intermediates": name_layers(layers)}), net.stats

    def features(net: Net, x: PyTree, key: Array | None = None, train: bool = False, mask: Array | None = None):
        del key, train
        check_unpacked(x)
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
    """Generates completions of many prompts, in batches of like lengths, the longest first.

    Args:
      generate: (tokens [B, T], mask [B, T]) -> (tokens [B, L], mask [B, L]), such as
        `functools.partial(generate, params)` of `generate =
        jax.jit(functools.partial(model.generate, limit=80))`.
      prompts: tokens of each, none of them empty.
      batch: B.
      multiple: widths are multiples of it, so that few programs are compiled.
      widest: largest width, such as `model.context - limit`; None: no limit.

    Returns:
      Each prompt's completion, in the order of the prompts, without the token that ended it.
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
        filled = indices + indices[-1:] * (batch - len(indices))  # a short last batch repeats its last prompt
        tokens, mask = pad_sequences([prompts[i] for i in filled], multiple, widest=widest)
        new, real = (np.asarray(array) for array in generate(jnp.asarray(tokens), jnp.asarray(mask)))
        for row, i in enumerate(indices):
            completions[i] = new[row][real[row]].tolist()
    return completions


def warn_of_rouge1(datasets: Sequence[str], answers: Sequence[str]) -> None:
    """Warns of each data set with answers of which ROUGE reads nothing: it counts words of a-z and 0-9 alone."""
    totals = Counter(datasets)
    unread = Counter(name for name, answer in zip(datasets, answers, strict=True) if not re.search("[a-z0-9]", answer.lower()))
    for name, number in unread.items():
        _log.warning(
            "%s: %d of %d answers have no letter a-z or digit, so their ROUGE-1 is 0 for any text", name, number, totals[name]
        )


def compute_rouge1(texts: Sequence[str], answers: Sequence[str]) -> list[float]:
    """Computes ROUGE-1 F of each text with its answer by `rouge-score`, without stemming."""
    try:
        from rouge_score import rouge_scorer
    except ImportError:
        raise ImportError("ROUGE needs the package rouge-score: pip install 'fedjax-core[text]'") from None
    scorer = rouge_scorer.RougeScorer(["rouge1"])
    return [float(scorer.score(answer, text)["rouge1"].fmeasure) for text, answer in zip(texts, answers, strict=True)]


def is_exact_match(texts: Sequence[str], answers: Sequence[str]) -> list[bool]:
    """Returns whether each text is its answer, but for case and white space."""
    plain = lambda text: re.sub(r"\s+", " ", text).strip().casefold()
    return [plain(text) == plain(answer) for text, answer in zip(texts, answers, strict=True)]
