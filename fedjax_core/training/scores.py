"""Optional scores (`config.evaluation.scores`): macro F1, balanced accuracy, AUROC, expected calibration error.

A score of `config.evaluation.scores` is a function (outputs, x, y, mask [B]) -> (sum, weight) with
the value sum / weight. A score that is no such mean is an object with two functions:

    __call__(outputs, x, y, mask [B]) -> sums    pytree of arrays whose shapes do not depend on B
    finalize(sums) -> value                      on the host, of NumPy arrays; NaN where undefined

Sums are added over batches, clients and devices, and for each client. Where clients are averaged
"weighted", a client's value is weighted by its number of examples; NaN values are ignored. With an
attribute `vectorized = True`, `finalize` takes the sums of many clients at once, with a leading
axis [E, ...], and returns [E]; else it is called for each client.

A class is a column of the outputs: for classes one against the rest, for labels the label. Classes
without examples are left out of means over classes.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_core.algorithm import Array, PyTree
from fedjax_core.option_types import AtLeastOne
from fedjax_core.training import losses
from fedjax_core.training.metrics import divide_or_nan, nan_mean

Outputs = Mapping[str, Array]
FINEST, LARGEST = 0.01, 1e4  # log-odds within which bins have one width, and beyond which there are none


class _OfClasses:
    """Base of scores of classes or labels.

    Attributes:
      targets: the `algorithm.TARGETS` that it applies to.
      has_fixed_classes: whether classes must be the same in all batches; in episodes they are not.
      vectorized: see the module.
    """

    targets: ClassVar[tuple[str, ...]] = ("classes", "labels")
    has_fixed_classes: ClassVar[bool] = True
    vectorized: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class MacroF1(_OfClasses):
    """Macro F1: the mean over classes of 2 TP / (2 TP + FP + FN).

    A label is predicted where its logit is positive. A class without examples is left out of the
    mean; its predictions count as misses of the true class. In scikit-learn it is `f1_score(y,
    predicted, labels=np.unique(y), average="macro")`.
    """

    def __call__(self, outputs: Outputs, x: PyTree, y: Array, mask: Array) -> Array:
        """Returns the counts [3, K] of true positives, examples and predictions."""
        del x
        actual, predicted = _indicators(outputs["logits"], y)
        return _count(mask, actual & predicted, actual, predicted)

    def finalize(self, sums: np.ndarray) -> np.ndarray:
        """Returns macro F1 [...] of counts [..., 3, K]; NaN without examples."""
        hits, actual, predicted = (sums[..., i, :].astype(np.float64) for i in range(3))
        return nan_mean(divide_or_nan(2 * hits, actual + predicted, actual > 0))


@dataclasses.dataclass(frozen=True)
class BalancedAccuracy(_OfClasses):
    """Balanced accuracy: the mean recall over classes.

    A class without examples is left out. In scikit-learn it is `balanced_accuracy_score(y,
    predicted)`.
    """

    targets: ClassVar[tuple[str, ...]] = ("classes",)

    def __call__(self, outputs: Outputs, x: PyTree, y: Array, mask: Array) -> Array:
        """Returns the counts [2, K] of true positives and examples."""
        del x
        actual, predicted = _indicators(outputs["logits"], y)
        return _count(mask, actual & predicted, actual)

    def finalize(self, sums: np.ndarray) -> np.ndarray:
        """Returns the balanced accuracy [...] of counts [..., 2, K]; NaN without examples."""
        hits, actual = (sums[..., i, :].astype(np.float64) for i in range(2))
        return nan_mean(divide_or_nan(hits, actual, actual > 0))


@dataclasses.dataclass(frozen=True)
class AUROC(_OfClasses):
    """AUROC: the mean over classes of the area under the ROC curve of the class against the rest.

    The area is the fraction of pairs (an example of the class, one of the rest) in which the first
    has the higher probability; a tie counts half. Examples are counted in bins of their log-odds.
    The bins' width grows with the distance from chance, probability 1 / K (for labels 1 / 2): with
    4096 bins from 0.00007 at chance to 0.7 % of the distance. Examples of one bin tie, so the error
    is at most half the fraction of pairs that share a bin. That is large only if a network's
    log-odds are much closer to each other than to chance; then use more bins. A class with all of
    the examples, or none, is left out. In scikit-learn it is `roc_auc_score(y, probabilities,
    multi_class="ovr", average="macro")`.

    Attributes:
      bins: number of bins; the counts of a client take 8 * K * bins bytes.
    """

    bins: AtLeastOne = 4096

    def __call__(self, outputs: Outputs, x: PyTree, y: Array, mask: Array) -> Array:
        """Returns the counts [K, 2, bins] of examples of the rest and of each class, by ascending log-odds."""
        del x
        logits = outputs["logits"].astype(jnp.float32)
        actual = _indicators(logits, y)[0]
        odds = logits if y.ndim == 2 else _log_odds(logits) + math.log(max(1, logits.shape[1] - 1))
        reach = math.asinh(LARGEST / FINEST)
        position = (jnp.arcsinh(odds / FINEST) + reach) * (self.bins / (2 * reach))
        bins = jnp.clip(jnp.floor(position), 0, self.bins - 1).astype(jnp.int32)
        classes = jnp.broadcast_to(jnp.arange(logits.shape[1])[None], logits.shape)
        counted = jnp.broadcast_to(mask[:, None], logits.shape).astype(jnp.int32)
        return jnp.zeros((logits.shape[1], 2, self.bins), jnp.int32).at[classes, actual.astype(jnp.int32), bins].add(counted)

    def finalize(self, sums: np.ndarray) -> np.ndarray:
        """Returns the mean area [...] of counts [..., K, 2, bins]; NaN where no class has both examples and others."""
        rest, actual = (sums[..., i, :].astype(np.float64) for i in (0, 1))
        below = np.cumsum(rest, -1) - rest / 2  # of the rest, with half of those in the same bin
        pairs = rest.sum(-1) * actual.sum(-1)
        return nan_mean(divide_or_nan(np.sum(actual * below, -1), pairs, pairs > 0))


@dataclasses.dataclass(frozen=True)
class CalibrationError:
    """Expected calibration error: the mean gap between the confidence and the accuracy of predictions.

    Predictions are binned by confidence, the largest probability, into (i / n, (i + 1) / n]. The
    error is the sum over bins of |accuracy - mean confidence|, weighted by the bin's share of the
    predictions. For texts, predictions are tokens.

    Guo, Pleiss, Sun, Weinberger. On Calibration of Modern Neural Networks. ICML 2017.
    https://arxiv.org/abs/1706.04599

    Attributes:
      bins: n, the number of bins.
    """

    bins: AtLeastOne = 15
    targets: ClassVar[tuple[str, ...]] = ("classes", "tokens")
    vectorized: ClassVar[bool] = True

    def __call__(self, outputs: Outputs, x: PyTree, y: Array, mask: Array) -> Array:
        """Returns sums [3, bins]: predictions, their confidence, correct predictions."""
        del x
        y = outputs.get("targets", y)
        confidence = jnp.exp(jnp.max(jax.nn.log_softmax(outputs["logits"].astype(jnp.float32)), -1))
        right = jnp.argmax(outputs["logits"], -1) == y
        counted = losses.target_mask(y, mask)
        bins = jnp.clip(jnp.ceil(confidence * self.bins) - 1, 0, self.bins - 1).astype(jnp.int32)
        sums = jnp.stack([jnp.ones_like(confidence), confidence, right.astype(jnp.float32)])
        sums = jnp.where(counted[None], sums, 0).reshape(3, -1)
        return jnp.zeros((3, self.bins)).at[:, bins.reshape(-1)].add(sums)

    def finalize(self, sums: np.ndarray) -> np.ndarray:
        """Returns the error [...] of sums [..., 3, bins]; NaN without predictions."""
        number, confidence, right = (sums[..., i, :].astype(np.float64) for i in range(3))
        total = number.sum(-1)
        return divide_or_nan(np.abs(right - confidence).sum(-1), total, total > 0)


SCORES: dict[str, Any] = {
    "macro_f1": MacroF1,
    "balanced_accuracy": BalancedAccuracy,
    "auroc": AUROC,
    "expected_calibration_error": CalibrationError,
}


def _indicators(logits: Array, y: Array) -> tuple[Array, Array]:
    """Returns the actual and the predicted classes or labels, [B, K] bool each."""
    if y.ndim == 2:
        return y > 0, logits > 0
    classes = jnp.arange(logits.shape[-1])[None]
    return y[:, None] == classes, jnp.argmax(logits, -1)[:, None] == classes


def _count(mask: Array, *indicators: Array) -> Array:
    """Returns the counts [..., K] of indicators [B, K] over the examples in the mask."""
    return jnp.stack([jnp.sum(mask[:, None] & indicator, 0, dtype=jnp.int32) for indicator in indicators])


def _log_odds(logits: Array) -> Array:
    """Returns log(p / (1 - p)) of the softmax of logits [B, K], accurate also for p close to 1."""
    log_p = jax.nn.log_softmax(logits)
    is_largest = jnp.argmax(logits, -1)[:, None] == jnp.arange(logits.shape[-1])[None]
    others = jax.nn.logsumexp(jnp.where(is_largest, -jnp.inf, logits), -1, keepdims=True)
    rest = jnp.log1p(-jnp.exp(jnp.where(is_largest, -1.0, log_p)))  # p is at most 1/2 there
    return jnp.where(is_largest, logits - others, log_p - rest)
