"""Text in a method's hands: an encoder that scores options, a language model that writes answers, and scores of what was written.

  scoring(encoder, ...)      a Model whose classes are each example's options; its arrays: `with_options`
  writing(model)             a Model that learns to write answers; FedAvg of an adapter of it is FedIT
  bucketed(model, widths)    either, on batches that are cut to their longest text; `widths` chooses those that pay
  complete(generate, ...)    decoding of many prompts, greedy or with beams, in batches of like lengths
  rouge1, exact              scores of texts

Both are networks like others, whole: what is trained of them is chosen around them, by `task.part_of`, or by `adapters.adapted`,
whose frozen base exists once and travels as an argument of the round.

    encoder, base = pretrained.load(folder)
    data, options = instructions.to_choose(divided, pretrained.tokenizer(folder), limit=256)
    arrays = with_options(encoder, base, **options)
    model = scoring(encoder, len(options["tokens"]))
    task = lora.adapted(model, arrays, lora.lora(), classes=data.classes, population=data.clients)

Data are those of `data/instructions.py`.
"""

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, Net, PyTree
from fedjax_core.language.models.transformer import Encoder, LanguageModel, last
from fedjax_core.nn.kernels.attention import MINUS
from fedjax_core.task import Model
from fedjax_core.training import adapters, losses

TEMPERATURE = 0.05  # by which cosines are divided
PAYS = 0.85  # another width, which is another program to compile, must leave no more than this part of the work


def embed(encoder: Encoder, params: PyTree, tokens: Array, mask: Array) -> Array:
    """The mean of the real tokens' hidden states, of length 1: [B, T], [B, T] bool -> [B, D] float32; zeros for an empty row."""
    return losses.unit(_mean(encoder.hidden(params, tokens, mask), mask))


def _mean(hidden: Array, mask: Array) -> Array:
    """Over the real tokens: [B, T, D] -> [B, D] float32."""
    total = jnp.sum(jnp.where(mask[..., None], hidden.astype(jnp.float32), 0), 1)
    return total / jnp.maximum(jnp.sum(mask, 1), 1)[:, None]


def _layers(found: Array) -> dict[str, Array]:
    """[L, B, D] as "layer1" to "layerL"."""
    return {f"layer{i + 1}": found[i] for i in range(len(found))}


def embed_all(encoder: Encoder, params: PyTree, tokens: np.ndarray, mask: np.ndarray, batch: int = 64, multiple: int = 16) -> Array:
    """`embed` of many rows, in batches of like lengths.

    Args:
      encoder: the network.
      params: its parameters.
      tokens: [U, T].
      mask: [U, T]; padding is on the right.
      batch: rows at once.
      multiple: batches are as wide as the smallest multiple of it that holds them.

    Returns:
      [U, D].
    """
    one = jax.jit(functools.partial(embed, encoder))
    lengths = mask.sum(1)
    order = np.argsort(lengths, kind="stable")
    found = np.zeros((len(order), encoder.width), np.float32)
    for start in range(0, len(order), batch):
        mine = order[start : start + batch]
        width = min(-(-max(1, lengths[mine[-1]]) // multiple) * multiple, tokens.shape[1])
        rows = np.pad(mine, (0, batch - len(mine)), mode="edge")
        found[mine] = one(params, tokens[rows, :width], mask[rows, :width])[: len(mine)]
    return jnp.asarray(found)


def scoring(encoder: Encoder, options: int, temperature: float = TEMPERATURE) -> Model:
    """A classifier whose classes are each example's listed options; its head is fixed.

        logit_k = cos(embedding of the question, embedding of option k under the frozen base) / temperature

    Args:
      encoder: the network.
      options: U, the number of different options in the data.
      temperature: small ones make scores differ more.

    Returns:
      The Model. Params are the encoder's, and "head": {"options": [U, D]}, which no gradient reaches; `with_options` has both.
      x is {"tokens": [B, T], "mask": [B, T], "options": [B, K] in [0, U), or -1 for none}; such a place has a logit of -1e30. The
      features are the questions' embeddings, intermediates "layer1" to "layerL" the means of each layer's hidden states. There is
      no head from features alone: `Model.head` raises ValueError.

    Raises:
      ValueError: temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be positive")

    def init(key: Array) -> Net:
        return Net(encoder.init(key) | {"head": {"options": jnp.zeros((options, encoder.width))}}, {})

    def features(net: Net, x: PyTree, key: Array | None = None, train: bool = False, mask: Array | None = None):
        del key, train
        x = _real(x, mask)
        return embed(encoder, net.params, x["tokens"], x["mask"]), net.stats

    def head(net: Net, features: Array) -> Array:
        raise ValueError("the options differ between examples, so that logits need x, not features alone: use apply")

    def apply(net: Net, x: PyTree, key=None, train=False, mask=None, intermediates=False):
        del key, train
        asked = _real(x, mask)
        read = (lambda hidden: _mean(hidden, asked["mask"])) if intermediates else None
        hidden = encoder.hidden(net.params, asked["tokens"], asked["mask"], read=read)
        hidden, layers = hidden if intermediates else (hidden, None)
        found = losses.unit(_mean(hidden, asked["mask"]))
        listed = jax.lax.stop_gradient(net.params["head"]["options"])[jnp.maximum(x["options"], 0)]  # [B, K, D]
        scores = jnp.einsum("bd,bkd->bk", found, listed) / temperature
        outputs: dict[str, Any] = {"logits": jnp.where(x["options"] >= 0, scores, MINUS), "features": found}
        return (outputs if layers is None else outputs | {"intermediates": _layers(layers)}), net.stats

    return Model(
        init, apply, features, head, f"scoring {encoder.name}", model_axes=encoder.model_axes, vocabulary=encoder.vocabulary
    )


def with_options(encoder: Encoder, base: PyTree, tokens: np.ndarray, mask: np.ndarray, batch: int = 64) -> Net:
    """The arrays of a `scoring` model: the base, and the embeddings of all options (`to_choose`'s, [U, T]) under it."""
    return Net(base | {"head": {"options": embed_all(encoder, base, tokens, mask, batch)}}, {})


class Written(NamedTuple):
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


def written(model: LanguageModel, params: PyTree, x: PyTree, layers: bool = False) -> Written:
    """One pass over `to_write`'s x: {"tokens": [B, T], "mask": [B, T], padding on the left, "answer": [B, A]}.

    Logits are made for the answers' places alone, which in a long text saves nearly all of them.
    """
    a = x["answer"].shape[1]
    end = last(x["mask"])
    read = lambda hidden: hidden[jnp.arange(len(end)), end].astype(jnp.float32)
    hidden = model.hidden(params, x["tokens"], x["mask"], read=read if layers else None)
    hidden, each = hidden if layers else (hidden, None)
    targets = jnp.where(x["answer"], x["tokens"][:, -a:], -1)
    return Written(model.logits(params, hidden[:, -a - 1 : -1]), targets, read(hidden), each)


def writing(model: LanguageModel) -> Model:
    """A language model that learns to write answers: with `local_training.cross_entropy`, on their tokens and ends alone.

    Args:
      model: the network, whose parameters are the Model's.

    Returns:
      The Model. x is `to_write`'s. Outputs are "logits" [B, A, V], "targets" [B, A] (-1: none) and "features" [B, D] of the last
      token, intermediates its states after each layer, "layer1" to "layerL". `head` gives the next token's logits. To decode, hand
      `model.generate` the params of the `Net`.
    """

    def apply(net: Net, x: PyTree, key=None, train=False, mask=None, intermediates=False):
        del key, train
        outputs: dict[str, Any] = written(model, net.params, _real(x, mask), intermediates)._asdict()
        layers = outputs.pop("layers")
        return (outputs if layers is None else outputs | {"intermediates": _layers(layers)}), net.stats

    def features(net: Net, x: PyTree, key: Array | None = None, train: bool = False, mask: Array | None = None):
        del key, train
        return written(model, net.params, _real(x, mask)).features, net.stats

    init, head = lambda key: Net(model.init(key), {}), lambda net, features: model.logits(net.params, features)
    return Model(init, apply, features, head, f"writing {model.name}", model_axes=model.model_axes, vocabulary=model.vocabulary)


def _real(x: PyTree, mask: Array | None) -> PyTree:
    """x whose rows outside `mask` [B] have no tokens and no answer."""
    if mask is None:
        return x
    return x | {name: x[name] & mask[:, None] for name in ("mask", "answer") if name in x}


@jax.custom_batching.custom_vmap
def _common(number: Array) -> Array:
    """The number itself; under vmap the largest of all of them, which is one for all, so that a switch on it stays a switch."""
    return number


@_common.def_vmap
def _(size: int, batched: list[bool], number: Array) -> tuple[Array, bool]:
    del size
    return _common(jnp.max(number, 0) if batched[0] else number), False


def bucketed(model: Model, widths: Sequence[int], side: str = "right") -> Model:
    """The model on batches that are cut to the smallest width that holds their longest real text, which is chosen as they come.

    All that it gives is what the model gives of whole batches, to rounding: padding is not looked at, and dropout of an adapter is
    drawn as for the whole width. Clients that train at once, under vmap, share a width, the widest that one of them needs.

    Args:
      model: `scoring` or `writing`; x has "tokens" and "mask" [B, T].
      widths: numbers of tokens; those that are not below T, or have no room for x's answers, are never taken, T always may be.
      side: where the padding is, "right", or "left" as in `to_write`.

    Returns:
      The Model; the same one for no widths. Programs have one branch for each width. A gradient keeps what its backward pass needs
      of each of them, of which all but one are zeros; what is frozen is not copied.
    """
    if not widths:
        return model

    def at_width(call: Callable[..., Any], net: Net, x: PyTree, key: Array | None, mask: Array | None) -> Any:
        t, answer = x["tokens"].shape[1], x["answer"].shape[1] if "answer" in x else 0
        some = [*sorted({width for width in widths if answer < width < t}), t]
        if len(some) == 1:
            return call(net, x, key, mask)
        there = jnp.any(_real(x, mask)["mask"], 0)
        needed = jnp.max(jnp.where(there, jnp.arange(t) + 1 if side == "right" else t - jnp.arange(t), 0))

        def branch(width: int):
            first = 0 if side == "right" else t - width
            cut = lambda leaf: leaf[:, first : first + width]

            def run(net, x, key, mask):
                net = net._replace(params=adapters.drawn_for(net.params, t, first))
                return call(net, x | {name: cut(x[name]) for name in ("tokens", "mask")}, key, mask)

            return run

        number = sum((needed > width).astype(jnp.int32) for width in some[:-1])
        return jax.lax.switch(_common(number), [branch(width) for width in some], net, x, key, mask)

    def apply(net: Net, x: PyTree, key=None, train=False, mask=None, intermediates=False):
        call = lambda net, x, key, mask: model.apply(net, x, key, train=train, mask=mask, intermediates=intermediates)
        return at_width(call, net, x, key, mask)

    def features(net: Net, x: PyTree, key: Array | None = None, train: bool = False, mask: Array | None = None):
        return at_width(lambda net, x, key, mask: model.features(net, x, key, train=train, mask=mask), net, x, key, mask)

    return model._replace(apply=apply, features=features)


def widths(lengths: Sequence[np.ndarray], longest: int, batch: int = 16, most: int = 2, multiple: int = 16) -> tuple[int, ...]:
    """Widths below the longest that save work, for `bucketed`: those with the least expected number of tokens.

    Args:
      lengths: tokens of the texts from which batches are drawn, an array for each client or test set.
      longest: T, to which batches can always be as wide.
      batch: rows at once.
      most: widths, T among them; on CPU a third one costs a gradient of long texts a sixth, for zeros in place of its residuals.
      multiple: of which widths are.

    Returns:
      Ascending; () where T alone is as good.
    """
    some = np.arange(multiple, longest, multiple)
    there = [mine for mine in lengths if len(mine)]
    if not there or not len(some):
        return ()
    fits = [[np.mean(mine <= width) ** batch for width in some] for mine in there]  # how often a batch fits
    fit = np.average(fits, 0, [len(mine) for mine in there])

    def work(chosen: tuple[int, ...]) -> float:
        parts = np.diff([0.0, *(fit[i] for i in chosen), 1.0])
        return float(parts @ [*(some[i] for i in chosen), longest])

    best: tuple[int, ...] = ()
    for number in range(1, most):
        found = min(itertools.combinations(range(len(some)), number), key=work, default=())
        best = found if found and work(found) < PAYS * work(best) else best
    return tuple(int(some[i]) for i in best)


def complete(
    generate: Callable[[Array, Array], tuple[Array, Array]],
    prompts: Sequence[Sequence[int]],
    batch: int = 32,
    multiple: int = 32,
    widest: int | None = None,
) -> list[list[int]]:
    """Completions of many prompts: the longest first, in batches as wide as their longest prompt.

    Args:
      generate: (tokens [B, T], mask [B, T]) -> (tokens [B, L], mask [B, L]), such as `functools.partial(generate, params)` of
        `generate = jax.jit(functools.partial(model.generate, limit=80))`, or with beams=4 beside the limit.
      prompts: rows of tokens, none of them empty.
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
        raise ValueError(f"a prompt has {longest} tokens, widest={widest}; cut it before (`instruction_data.prompts`)")
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    found: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), batch):
        mine = order[start : start + batch]
        width = -(-len(prompts[mine[0]]) // multiple) * multiple
        width = width if widest is None else min(width, widest)
        tokens, mask = np.zeros((batch, width), np.int32), np.zeros((batch, width), bool)
        for row in range(batch):
            prompt = prompts[mine[min(row, len(mine) - 1)]]  # a short last batch repeats its last one
            tokens[row, width - len(prompt) :], mask[row, width - len(prompt) :] = prompt, True
        new, real = (np.asarray(array) for array in generate(jnp.asarray(tokens), jnp.asarray(mask)))
        for row, i in enumerate(mine):
            found[i] = new[row][real[row]].tolist()
    return found


def rouge1(texts: Sequence[str], answers: Sequence[str]) -> list[float]:
    """ROUGE-1 F of each text with its answer, as the package `rouge-score` defines words; without stemming. No words: 0.

    Raises:
      ImportError: the package is not installed.
    """
    try:
        from rouge_score import rouge_scorer
    except ImportError:
        raise ImportError("ROUGE needs the package rouge-score: pip install 'fedjax-core[text]'") from None
    scorer = rouge_scorer.RougeScorer(["rouge1"])
    return [float(scorer.score(answer, text)["rouge1"].fmeasure) for text, answer in zip(texts, answers, strict=True)]


def exact(texts: Sequence[str], answers: Sequence[str]) -> list[bool]:
    """Whether each text is its answer, but for case and white space."""
    plain = lambda text: re.sub(r"\s+", " ", text).strip().casefold()
    return [plain(text) == plain(answer) for text, answer in zip(texts, answers, strict=True)]
