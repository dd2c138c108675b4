"""Metrics of training and evaluation, as sums that merge by adding over batches, clients and devices.

A metric that is a mean over examples is a pair (sum, weight). `metric_sums` gives the sums for the
metrics of each kind of target (`algorithm.TARGETS`), and `finalize_metrics` turns them into values
on the host:

  classes   accuracy, loss (cross-entropy)
  labels    average_precision (mean over labels), micro_average_precision (all labels pooled),
            loss (sigmoid cross-entropy)
  numbers   r2, mean_squared_error, loss (the same)
  tokens    accuracy, perplexity (exp of the loss), loss (cross-entropy of a token)

Average precision is sum_n (R_n - R_{n-1}) P_n over thresholds n, as in scikit-learn, with logits
counted in LOGIT_BINS bins from -LOGIT_LIMIT to LOGIT_LIMIT; logits of one bin share a threshold.
That makes it too low: of normal logits by about 0.002 where those of a label have a deviation of 3,
0.005 at 1, 0.02 at 0.3, 0.1 at 0.05. AUROC's bins (`scores.py`), eight times as many, would not
always be within 0.001 either.
FLAIR's benchmark has 200 thresholds, evenly spaced in the probability. A label without a positive
example is left out. R2 is the mean over the D numbers of 1 - sum (y - f)^2 / sum (y - mean)^2,
without those that are constant. Its sums are float32, of y less a center that all batches share,
since the mean may be far from 0.

Scores of the user (`Task.scores`) follow the same protocol. A score that is no mean has a function
`finalize` (`scores.py`).
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Algorithm, Array, PyTree, map_built, targets_of
from fedjax_core.task import Task
from fedjax_core.training import losses

Pair = tuple[Array, Array]  # sum, weight

METRIC_NAMES = {
    "classes": ("accuracy", "loss"),
    "labels": ("average_precision", "micro_average_precision", "loss"),
    "numbers": ("r2", "mean_squared_error", "loss"),
    "tokens": ("accuracy", "perplexity", "loss"),
}
LOGIT_BINS, LOGIT_LIMIT = 512, 16.0
MIN_RELATIVE_VARIANCE = 1e-5  # of the mean square; a smaller variance is rounding
TRIGGERED = "triggered"  # output: logits of the examples with a backdoor's trigger


def mean_pair(values: Array, mask: Array) -> Pair:
    """Returns the pair of the mean of `values` [B] over `mask` [B]; masked entries may be anything.

    Sums are float32 or wider: those of booleans are at most True, those of bfloat16 stay at 256 where ones are added.
    """
    values = values.astype(jnp.promote_types(values.dtype, jnp.float32))
    return jnp.sum(jnp.where(mask, values, 0)), jnp.sum(mask, dtype=values.dtype)


def accuracy(logits: Array, y: Array, mask: Array) -> Pair:
    """Returns the pair of the top-1 accuracy, of logits [B, K] and y [B].

    For tokens [B, T, V] and [B, T], of which negative ones do not count.
    """
    return mean_pair((jnp.argmax(logits, -1) == y).astype(jnp.float32), losses.target_mask(y, mask))


def nbytes(tree: PyTree) -> int:
    """Returns the bytes of a pytree of arrays or shapes: what it costs to send it."""
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def metric_sums(outputs: Array, y: Array, mask: Array, center: np.ndarray | float = 0.0) -> dict[str, Pair]:
    """Returns the sums behind the metrics of a batch, as pairs; sums may have axes of their own.

    `outputs` are [B, K], for tokens [B, T, V]; masked examples may be anything. For numbers
    `center` [D] is near the mean of all targets, and the same in all sums that are added.
    """
    kind, outputs32 = targets_of(y), outputs.astype(jnp.float32)
    if kind == "labels":
        loss = jnp.mean(losses.sigmoid_cross_entropy_per_label(outputs32, y), -1)
        counts, number = _count_by_logit(outputs32, y, mask), jnp.sum(mask, dtype=jnp.float32)
        return {"average_precision": (counts, number), "loss": mean_pair(loss, mask)}
    if kind == "numbers":
        loss = jnp.mean((outputs32 - y) ** 2, -1)
        masked_sum = lambda values: jnp.sum(jnp.where(mask[:, None], values, 0), 0)
        centered = y - jnp.broadcast_to(jnp.asarray(center, y.dtype), y.shape)
        moments = jnp.stack([masked_sum(centered), masked_sum(centered * centered), masked_sum((outputs32 - y) ** 2)])
        return {"r2": (moments, jnp.sum(mask, dtype=jnp.float32)), "loss": mean_pair(loss, mask)}
    loss = losses.cross_entropy_per_example(outputs32, jnp.maximum(y, 0))
    return {"accuracy": accuracy(outputs, y, mask), "loss": mean_pair(loss, losses.target_mask(y, mask))}


def metric_sums_bytes(y: Array | np.ndarray) -> int:
    """Returns the bytes of the arrays in `metric_sums` for targets like `y`; scalars count as 0."""
    per_output = {"labels": 2 * LOGIT_BINS, "numbers": 3}.get(targets_of(y), 0)
    return 4 * y.shape[-1] * per_output


def _count_by_logit(logits: Array, y: Array, mask: Array) -> Array:
    """Returns [K, 2, LOGIT_BINS]: numbers of examples without and with each label, by their logit."""
    bins = jnp.clip(jnp.floor((logits + LOGIT_LIMIT) * (LOGIT_BINS / (2 * LOGIT_LIMIT))), 0, LOGIT_BINS - 1).astype(jnp.int32)
    labels = jnp.broadcast_to(jnp.arange(y.shape[1])[None], y.shape)
    ones = jnp.broadcast_to(mask[:, None], y.shape).astype(jnp.float32)
    return jnp.zeros((y.shape[1], 2, LOGIT_BINS)).at[labels, (y > 0).astype(jnp.int32), bins].add(ones)


def finalize_metrics(
    kind: str, sums: Mapping[str, tuple[PyTree, np.ndarray]], scores: Mapping[str, Callable] | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns the metrics of one kind of target, and the user's scores, as pairs of numbers.

    Args:
      kind: a key of `METRIC_NAMES`.
      sums: totals of `metric_sums` and of the scores, without leading axes, or with [E] of clients.
      scores: `Task.scores`.

    Returns:
      By name (value times weight, weight). The weight is that of the examples, or 0 where a metric
      is undefined.
    """
    no_means = {name: score for name, score in (scores or {}).items() if finalizer(score) is not None}
    sums = {name: _finalize_score(no_means[name], *pair) if name in no_means else pair for name, pair in sums.items()}
    if kind == "classes":
        return sums
    metrics, others = {}, dict(sums)
    if kind == "labels":
        counts, number = map(np.asarray, others.pop("average_precision"))
        metrics["average_precision"] = _as_pair(nan_mean(average_precision(counts)), number)
        metrics["micro_average_precision"] = _as_pair(average_precision(counts.sum(-3)), number)
    elif kind == "numbers":
        moments, number = map(np.asarray, others.pop("r2"))
        metrics["r2"] = _as_pair(nan_mean(_r2(moments.astype(np.float64), number)), number)
        metrics["mean_squared_error"] = others["loss"]
    else:
        total, tokens = map(np.asarray, others["loss"])
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            metrics["perplexity"] = _as_pair(np.exp(total.astype(np.float64) / tokens), tokens)
    metrics |= others
    return {name: metrics[name] for name in dict.fromkeys([*METRIC_NAMES[kind], *metrics])}


def unwrap_score(score: Callable) -> Any:
    """Returns the function or object of a score, without the options bound to it."""
    while isinstance(score, functools.partial):
        score = score.func
    return score


def finalizer(score: Callable) -> Callable | None:
    """Returns the function `finalize` of a score that is no mean; None for one that is."""
    return getattr(unwrap_score(score), "finalize", None)


def _finalize_score(score: Callable, sums: PyTree, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values of a score that is no mean, as pairs; undefined where the weight is 0.

    `sums` has leaves [...] of one set of examples, or [E, ...] of the sets of clients.
    """
    weights, finalize = np.asarray(weights), unwrap_score(score).finalize
    if weights.ndim == 0:
        values = finalize(sums) if weights > 0 else math.nan
    elif getattr(unwrap_score(score), "vectorized", False):
        values = finalize(sums)
    else:
        sums_of = lambda i: jax.tree.map(lambda leaf: leaf[i], sums)
        values = [float(finalize(sums_of(i))) if weight > 0 else math.nan for i, weight in enumerate(weights)]
    return _as_pair(np.asarray(values, np.float64), weights)


def average_precision(counts: np.ndarray) -> np.ndarray:
    """Returns the average precision of counts [..., 2, ascending bins]; NaN without a positive."""
    negatives, positives = (counts[..., i, ::-1].astype(np.float64) for i in (0, 1))
    true, false = np.cumsum(positives, -1), np.cumsum(negatives, -1)
    precision = np.divide(true, true + false, out=np.zeros_like(true), where=true + false > 0)
    total = true[..., -1]
    return divide_or_nan(np.sum(positives * precision, -1), total, total > 0)


def _r2(moments: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Returns R2 [..., D] of sums [..., 3, D] of y, y^2 and (y - f)^2; NaN where y is constant."""
    total, squares, errors = (moments[..., i, :] for i in range(3))
    variation = squares - total**2 / np.maximum(number, 1)[..., None]
    varies = variation > MIN_RELATIVE_VARIANCE * squares
    return 1 - divide_or_nan(errors, variation, varies)


def nan_mean(values: np.ndarray) -> np.ndarray:
    """Returns the mean over the last axis of the values that are not NaN; NaN if all are."""
    is_defined = ~np.isnan(values)
    number = is_defined.sum(-1)
    return divide_or_nan(np.where(is_defined, values, 0).sum(-1), number, number > 0)


def divide_or_nan(over: np.ndarray, under: np.ndarray, is_defined: np.ndarray) -> np.ndarray:
    """Returns the quotient in float64 where it is defined, else NaN; all three have one shape."""
    return np.divide(over, under, out=np.full(np.shape(over), np.nan), where=is_defined)


def _as_pair(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (values times weights, weights); the weight is 0 where the value is NaN."""
    is_defined = ~np.isnan(values) & (weights > 0)
    return np.where(is_defined, values * weights, 0), np.where(is_defined, weights, 0)


class Trigger(Protocol):
    """A backdoor's pattern on examples, and its class: `data.poisoning.Trigger`."""

    @property
    def target(self) -> int: ...

    def add_to(self, x: PyTree) -> PyTree: ...


def with_triggered_outputs(build: Callable[[Task], Algorithm], trigger: Trigger) -> Callable[[Task], Algorithm]:
    """Returns the method whose predictors also give the logits of the examples with the trigger."""

    def add_triggered(predict):
        return lambda sent, client, x: predict(sent, client, x) | {TRIGGERED: predict(sent, client, trigger.add_to(x))["logits"]}

    def change(inner: Algorithm, _: Task) -> Algorithm:
        return inner._replace(predict={name: add_triggered(predict) for name, predict in inner.predict.items()})

    return map_built(build, change)


def backdoor_score(trigger: Trigger) -> Callable[..., Pair]:
    """Returns a score: how many examples of other classes get the trigger's class when it is on them."""

    def backdoor(outputs: dict[str, Array], x: PyTree, y: Array, mask: Array) -> Pair:
        del x
        is_fooled = jnp.argmax(outputs[TRIGGERED], -1) == trigger.target
        return mean_pair(is_fooled, mask & (y != trigger.target))

    return backdoor
