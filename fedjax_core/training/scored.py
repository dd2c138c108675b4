"""What is scored of each kind of targets (`algorithm.TARGETS`).

  classes   accuracy, loss (cross-entropy)
  labels    average_precision (the mean over labels), micro_average_precision (all labels as one), loss (sigmoid cross-entropy)
  numbers   r2, mean_squared_error, loss (the same)
  tokens    accuracy, perplexity (exp of the loss), loss (cross-entropy of a token)

A program adds up what these are made of over batches, clients and devices (`sums`); the host makes them of it (`finished`).

Average precision is sum_n (R_n - R_{n-1}) P_n over thresholds n, as scikit-learn has it, of rows counted by their logit in BINS
steps from -REACH to REACH: scores of one step are one threshold. FLAIR's benchmark has 200 thresholds, even in the probability.
A label that no row has counts for nothing. R2 is the mean over the D numbers of 1 - sum (y - f)^2 / sum (y - mean)^2, without
those that do not vary; its sums are float32's, of y less a centre that all batches have: their mean may lie far from 0.

What is scored beside may be no mean either: it then has a function `finalize` (`scores.py`), which the host calls.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, PyTree, targets_of
from fedjax_core.training import losses, metrics
from fedjax_core.training.metrics import Pair

NAMES = {
    "classes": ("accuracy", "loss"),
    "labels": ("average_precision", "micro_average_precision", "loss"),
    "numbers": ("r2", "mean_squared_error", "loss"),
    "tokens": ("accuracy", "perplexity", "loss"),
}
BINS, REACH = 512, 16.0
CONSTANT = 1e-5  # of the mean square: a smaller variance is rounding


def sums(outputs: Array, y: Array, mask: Array, center: np.ndarray | float = 0.0) -> dict[str, Pair]:
    """What the scores of a batch are made of: pairs whose sums may have axes of their own.

    Args:
      outputs: of the network, [B, K]; of tokens [B, T, V].
      y: targets.
      mask: [B] which rows are real; the others may hold anything.
      center: of numbers, [D] near the mean of all targets; the same for all sums that are added up.
    """
    kind, wide = targets_of(y), outputs.astype(jnp.float32)
    if kind == "labels":
        rows = jnp.mean(losses.sigmoid_cross_entropy_entries(wide, y), -1)
        counts, number = _by_score(wide, y, mask), jnp.sum(mask, dtype=jnp.float32)
        return {"average_precision": (counts, number), "loss": metrics.mean_of(rows, mask)}
    if kind == "numbers":
        rows = jnp.mean((wide - y) ** 2, -1)
        there = lambda values: jnp.sum(jnp.where(mask[:, None], values, 0), 0)
        off = y - jnp.broadcast_to(jnp.asarray(center, y.dtype), y.shape)
        moments = jnp.stack([there(off), there(off * off), there((wide - y) ** 2)])
        return {"r2": (moments, jnp.sum(mask, dtype=jnp.float32)), "loss": metrics.mean_of(rows, mask)}
    rows = losses.cross_entropy_rows(wide, jnp.maximum(y, 0))
    return {"accuracy": metrics.accuracy(outputs, y, mask), "loss": metrics.mean_of(rows, losses.counted(y, mask))}


def sums_bytes(y: Array | np.ndarray) -> int:
    """Bytes of `sums` for targets like these; of single numbers as if there were none."""
    numbers = {"labels": 2 * BINS, "numbers": 3}
    return 4 * y.shape[-1] * numbers[kind] if (kind := targets_of(y)) in numbers else 0


def _by_score(logits: Array, y: Array, mask: Array) -> Array:
    """[K, 2, BINS]: real rows without and with each label, by their logit for it."""
    step = jnp.clip(jnp.floor((logits + REACH) * (BINS / (2 * REACH))), 0, BINS - 1).astype(jnp.int32)
    labels = jnp.broadcast_to(jnp.arange(y.shape[1])[None], y.shape)
    real = jnp.broadcast_to(mask[:, None], y.shape).astype(jnp.float32)
    return jnp.zeros((y.shape[1], 2, BINS)).at[labels, (y > 0).astype(jnp.int32), step].add(real)


def finished(
    kind: str, found: Mapping[str, tuple[PyTree, np.ndarray]], own: Mapping[str, Callable] | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The scores of a kind of targets, as pairs of numbers; in their place in `found` what a task scores beside.

    Args:
      kind: one of `NAMES`.
      found: added up, as NumPy arrays; with leading axes [E] of clients, or without.
      own: by name, what a task scores beside.

    Returns:
      By name (value times weight, weight); the weight is that of the rows, or 0 where a score is not defined.
    """
    no_means = {name: score for name, score in (own or {}).items() if finalizer(score) is not None}
    found = {name: _finalized(no_means[name], *pair) if name in no_means else pair for name, pair in found.items()}
    if kind == "classes":
        return found
    made, rest = {}, dict(found)
    if kind == "labels":
        counts, rows = map(np.asarray, rest.pop("average_precision"))
        of_all = average_precision(counts.sum(-3))
        made["average_precision"] = _pair(mean_of_defined(average_precision(counts)), rows)
        made["micro_average_precision"] = _pair(of_all, rows)
    elif kind == "numbers":
        moments, rows = map(np.asarray, rest.pop("r2"))
        made["r2"] = _pair(mean_of_defined(_r2(moments.astype(np.float64), rows)), rows)
        made["mean_squared_error"] = rest["loss"]
    else:
        total, tokens = map(np.asarray, rest["loss"])
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            made["perplexity"] = _pair(np.exp(total.astype(np.float64) / tokens), tokens)
    both = made | rest
    return {name: both[name] for name in dict.fromkeys([*NAMES[kind], *both])}


def unwrap(score: Callable) -> Any:
    """Returns the function or object of a score without options that are bound to it."""
    while isinstance(score, functools.partial):
        score = score.func
    return score


def finalizer(score: Callable) -> Callable | None:
    """Returns the function `finalize` of a score that is no mean; None of one that is."""
    return getattr(unwrap(score), "finalize", None)


def _finalized(score: Callable, sums: PyTree, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values of a score that is no mean as pairs.

    Args:
      score: it.
      sums: leaves [...] of one set of rows, or [E, ...] of the sets of clients.
      weights: [] or [E], how many rows each has; without any the score is not defined.
    """
    weights, finalize = np.asarray(weights), unwrap(score).finalize
    if weights.ndim == 0:
        values = finalize(sums) if weights > 0 else math.nan
    elif getattr(unwrap(score), "vectorized", False):
        values = finalize(sums)
    else:
        of_client = lambda i: finalize(jax.tree.map(lambda leaf: leaf[i], sums)) if weights[i] > 0 else math.nan
        values = [float(of_client(i)) for i in range(len(weights))]
    return _pair(np.asarray(values, np.float64), weights)


def average_precision(counts: np.ndarray) -> np.ndarray:
    """[..., 2, BINS] counts of negatives and positives by score, ascending -> [...]; NaN without a positive."""
    below, above = (counts[..., i, ::-1].astype(np.float64) for i in (0, 1))
    true, false = np.cumsum(above, -1), np.cumsum(below, -1)
    precision = np.divide(true, true + false, out=np.zeros_like(true), where=true + false > 0)
    total = true[..., -1]
    return np.divide(np.sum(above * precision, -1), total, out=np.full(total.shape, np.nan), where=total > 0)


def _r2(moments: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """[..., 3, D] sums of y, y^2 (less the centre) and (y - f)^2 over the rows -> [..., D]; NaN of what does not vary."""
    total, squares, errors = (moments[..., i, :] for i in range(3))
    spread = squares - total**2 / np.maximum(rows, 1)[..., None]
    varies = spread > CONSTANT * squares
    return 1 - np.divide(errors, spread, out=np.full(spread.shape, np.nan), where=varies)


def mean_of_defined(values: np.ndarray) -> np.ndarray:
    """The mean over the last axis of those that are not NaN; NaN if all are."""
    there = ~np.isnan(values)
    number = there.sum(-1)
    return np.divide(np.where(there, values, 0).sum(-1), number, out=np.full(number.shape, np.nan), where=number > 0)


def _pair(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values as sums over their weights; weightless where they are NaN."""
    known = ~np.isnan(values) & (weights > 0)
    return np.where(known, values * weights, 0), np.where(known, weights, 0)
