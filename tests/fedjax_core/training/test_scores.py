"""Scores that are no means of rows, against scikit-learn and loops; added up over batches of any size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from fedjax_core.training import metrics
from fedjax_core.training.scores import AUROC, SCORES, BalancedAccuracy, CalibrationError, MacroF1

CLASSES = 5


def rows(number: int = 400, scale: float = 2.0, kind: str = "classes", seed: int = 0):
    """(logits, y): a network that is right more often than not, of which one class has few examples."""
    rng = np.random.default_rng(seed)
    y = rng.choice(CLASSES, number, p=[0.4, 0.3, 0.2, 0.08, 0.02])
    hot = np.eye(CLASSES)[y]
    if kind == "labels":
        hot = (hot + np.roll(hot, 1, 1) * (rng.random(number) < 0.5)[:, None] > 0).astype(np.float64)
    logits = (scale * (hot + rng.normal(size=hot.shape))).astype(np.float32)
    return logits, hot.astype(bool) if kind == "labels" else y.astype(np.int32)


def merged(score, logits, y, batch: int = 64):
    """The sums of a score, over batches whose last one is padded with what may be anything."""
    total = None
    for start in range(0, len(y), batch):
        part, targets = logits[start : start + batch], y[start : start + batch]
        pad = [(0, batch - len(part))] + [(0, 0)] * (part.ndim - 1)
        outputs = {"logits": jnp.asarray(np.pad(part, pad, constant_values=7.0))}
        mask = jnp.arange(batch) < len(part)
        found = jax.jit(score)(outputs, None, jnp.asarray(np.pad(targets, pad[: targets.ndim], constant_values=1)), mask)
        total = found if total is None else jax.tree.map(jnp.add, total, found)
    return jax.device_get(total)


def value(score, logits, y, **options) -> float:
    return float(score.finalize(merged(score, logits, y, **options)))


def probabilities(logits):
    wide = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    return wide / wide.sum(1, keepdims=True)


@pytest.mark.parametrize("batch", [7, 64, 1000])
def test_macro_f1_and_balanced_accuracy_are_scikit_learns(batch):
    logits, y = rows()
    predicted = logits.argmax(1)
    wanted = sklearn_metrics.f1_score(y, predicted, average="macro")
    assert value(MacroF1(), logits, y, batch=batch) == pytest.approx(wanted, abs=1e-12)
    wanted = sklearn_metrics.balanced_accuracy_score(y, predicted)
    assert value(BalancedAccuracy(), logits, y, batch=batch) == pytest.approx(wanted, abs=1e-12)


def test_labels_are_columns():
    logits, y = rows(kind="labels")
    wanted = sklearn_metrics.f1_score(y, logits > 0, average="macro")
    assert value(MacroF1(), logits, y) == pytest.approx(wanted, abs=1e-12)
    assert value(AUROC(), logits, y) == pytest.approx(sklearn_metrics.roc_auc_score(y, logits, average="macro"), abs=5e-4)


@pytest.mark.parametrize("scale", [0.01, 0.3, 2.0, 30.0, 400.0])
@pytest.mark.parametrize("bins", [32, 4096])
def test_auroc_is_scikit_learns_within_its_bound(scale, bins):
    """Also of networks that are unsure, or far too sure: log-odds from 0.01 to 1000."""
    logits, y = rows(2000, scale)
    wide = logits.astype(np.float64)
    odds = [wide[:, k] - np.logaddexp.reduce(np.delete(wide, k, 1), axis=1) for k in range(CLASSES)]  # where p itself is 1 for many
    exact = [sklearn_metrics.roc_auc_score(y == k, odds[k]) for k in range(CLASSES)]
    score = AUROC(bins)
    sums = merged(score, logits, y)
    of_class = [float(score.finalize(sums[k : k + 1])) for k in range(CLASSES)]
    in_one_bin = (sums[:, 0].astype(float) * sums[:, 1]).sum(-1) / (sums[:, 0].sum(-1).astype(float) * sums[:, 1].sum(-1))
    assert (np.abs(np.subtract(of_class, exact)) <= in_one_bin / 2 + 1e-9).all()
    assert float(score.finalize(sums)) == pytest.approx(np.mean(of_class), abs=1e-12)
    if bins == AUROC().bins:
        np.testing.assert_allclose(of_class, exact, atol=2e-4)


def test_auroc_is_scikit_learns_one_against_the_rest():
    logits, y = rows(1000)
    wanted = sklearn_metrics.roc_auc_score(y, probabilities(logits), multi_class="ovr", average="macro")
    assert value(AUROC(), logits, y) == pytest.approx(wanted, abs=5e-4)
    two, of_two = logits[:, :2], (y > 0).astype(np.int32)
    wanted = sklearn_metrics.roc_auc_score(of_two, probabilities(two)[:, 1])
    assert value(AUROC(), two, of_two) == pytest.approx(wanted, abs=5e-4)


def test_auroc_counts_ties_half():
    logits = np.zeros((6, 2), np.float32)
    assert value(AUROC(), logits, np.array([0, 1, 0, 1, 1, 1], np.int32)) == 0.5


@pytest.mark.parametrize("bins", [15, 4])
def test_the_calibration_error_is_a_loop(bins):
    logits, y = rows(500)
    confidence = np.asarray(jax.nn.softmax(logits), np.float32).max(1)
    right, wanted = logits.argmax(1) == y, 0.0
    for i in range(bins):
        there = [j for j in range(len(y)) if i / bins < confidence[j] <= (i + 1) / bins]
        if there:
            wanted += len(there) / len(y) * abs(right[there].mean() - confidence[there].mean(dtype=np.float64))
    assert value(CalibrationError(bins), logits, y) == pytest.approx(wanted, abs=1e-6)
    assert wanted > 0.01


def test_the_calibration_error_of_tokens_counts_those_that_are_asked_for():
    logits, y = rows(60)
    texts, of_texts = logits.reshape(12, 5, CLASSES), y.reshape(12, 5).copy()
    of_texts[:, 3:] = -1
    short, of_short = texts[:, :3].reshape(-1, CLASSES), of_texts[:, :3].reshape(-1)
    assert value(CalibrationError(), texts, of_texts, batch=5) == pytest.approx(
        value(CalibrationError(), short, of_short), abs=1e-6
    )


def test_a_class_without_examples_is_left_out():
    logits, y = rows()
    seen = y < 3
    logits, y = logits[seen], y[seen]
    predicted = logits.argmax(1)
    assert (predicted > 2).any()  # which scikit-learn would count as a class of F1 0
    wanted = sklearn_metrics.f1_score(y, predicted, labels=np.unique(y), average="macro")
    assert value(MacroF1(), logits, y) == pytest.approx(wanted, abs=1e-12)
    recalls = sklearn_metrics.recall_score(y, predicted, labels=np.unique(y), average="macro")
    assert value(BalancedAccuracy(), logits, y) == pytest.approx(recalls, abs=1e-12)
    areas = [sklearn_metrics.roc_auc_score(y == k, probabilities(logits)[:, k]) for k in range(3)]
    assert value(AUROC(), logits, y) == pytest.approx(np.mean(areas), abs=5e-4)


def test_one_class_alone_has_no_area():
    logits, y = rows(20)
    assert np.isnan(value(AUROC(), logits, np.zeros_like(y)))
    assert value(MacroF1(), logits, np.full_like(y, 2)) > 0


@pytest.mark.parametrize("name", list(SCORES))
def test_without_rows_nothing_is_defined(name):
    """Neither alone nor among clients that have some."""
    score = SCORES[name]()
    logits, y = rows(30)
    some = merged(score, logits, y)
    none = np.zeros_like(some)
    assert np.isnan(score.finalize(none))
    both = score.finalize(np.stack([some, none]))
    assert both[0] == score.finalize(some)
    assert np.isnan(both[1])
    pairs = metrics.finalize_metrics("classes", {name: (np.stack([some, none]), np.array([30.0, 0.0]))}, {name: score})
    np.testing.assert_allclose(pairs[name][0], [30 * both[0], 0])
    np.testing.assert_array_equal(pairs[name][1], [30, 0])
