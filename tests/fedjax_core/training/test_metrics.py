"""Metrics merge by adding, masked examples may be anything, and values agree with scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import average_precision_score, log_loss, mean_squared_error, r2_score

from fedjax_core.training import losses, metrics

LOGITS = jnp.asarray([[0.1, 2.0], [1.0, 0.0], [0.0, 0.5], [jnp.nan, jnp.nan]])
Y = jnp.asarray([1, 1, 1, 0])
MASK = jnp.asarray([True, True, True, False])


def test_mean_of_ignores_masked_nan():
    total, weight = metrics.mean_pair(jnp.asarray([1.0, 2.0, jnp.nan]), jnp.asarray([True, True, False]))
    assert (float(total), float(weight)) == (3.0, 2.0)


@pytest.mark.parametrize("dtype", [bool, jnp.int8, jnp.bfloat16])
def test_mean_of_what_is_no_float32(dtype):
    """Two of three; a weight in the values' dtype would be True, and int8 would end at 127."""
    values = jnp.tile(jnp.asarray([1, 1, 0]), 100).astype(dtype)
    pair = metrics.mean_pair(values, jnp.arange(300) < 198)
    assert all(part.dtype == jnp.float32 for part in pair)  # batches are added in it: bfloat16 would end at 256 of them
    np.testing.assert_allclose(float(pair[0] / pair[1]), 2 / 3, rtol=1e-6)


def test_accuracy_counts_hits_and_rows():
    hits, rows = metrics.accuracy(LOGITS, Y, MASK)
    assert (float(hits), float(rows)) == (2.0, 3.0)


def test_pairs_of_parts_add_up_to_the_whole():
    parts = [metrics.accuracy(LOGITS[i : i + 2], Y[i : i + 2], MASK[i : i + 2]) for i in (0, 2)]
    whole = metrics.accuracy(LOGITS, Y, MASK)
    assert jax.tree.map(jnp.add, *parts) == whole
    np.testing.assert_allclose(whole[0] / whole[1], 2 / 3, rtol=1e-6)


def test_bytes_of_arrays_and_of_shapes():
    tree = {
        "a": jnp.zeros((3, 4)),
        "b": (jnp.zeros((), jnp.int32), jnp.zeros(5, bool)),
        "c": jax.ShapeDtypeStruct((2,), jnp.bfloat16),
    }
    assert metrics.nbytes(tree) == 48 + 4 + 5 + 4
    assert metrics.nbytes(()) == 0
    assert metrics.nbytes(jax.ShapeDtypeStruct((2**20, 2**12), jnp.float32)) == 2**34


def test_accuracy_of_sequences_counts_tokens():
    y = np.array([[-1, 2, 0], [1, 1, 1]])
    logits = np.eye(3)[np.array([[0, 2, 1], [1, 1, 1]])]
    assert tuple(map(float, metrics.accuracy(logits, y, np.array([True, False])))) == (1.0, 2.0)


def added(outputs, y, batch=7):
    """What batches of a set add up to, the last of them padded with NaN."""
    number, total = len(y), None
    for start in range(0, number, batch):
        rows = np.arange(start, start + batch)
        real = rows < number
        of = lambda a, rows=rows, real=real: np.where(real.reshape(-1, *[1] * (a.ndim - 1)), a[np.minimum(rows, number - 1)], 0)
        o = np.where(real.reshape(-1, *[1] * (outputs.ndim - 1)), of(outputs), np.nan).astype(np.float32)
        sums = metrics.metric_sums(jnp.asarray(o), jnp.asarray(of(y).astype(y.dtype)), jnp.asarray(real))
        total = sums if total is None else jax.tree.map(jnp.add, total, sums)
    return jax.device_get(total)


def values(kind, sums):
    return {name: float(a / b) for name, (a, b) in metrics.finalize_metrics(kind, sums).items()}


def test_average_precision_is_scikit_learns_of_scores_in_steps():
    rng = np.random.default_rng(0)
    y = (rng.random((100, 4)) < (0.1, 0.3, 0.5, 0.0)).astype(bool)
    logits = (rng.normal(size=y.shape) * 4 + 2 * y).astype(np.float32)
    logits[0] = 40.0  # beyond the reach
    found = values("labels", added(logits, y))
    steps = np.clip(
        np.floor((logits + metrics.LOGIT_LIMIT) * metrics.LOGIT_BINS / (2 * metrics.LOGIT_LIMIT)), 0, metrics.LOGIT_BINS - 1
    )
    assert found["average_precision"] == pytest.approx(average_precision_score(y[:, :3], steps[:, :3]), abs=1e-6)
    assert found["micro_average_precision"] == pytest.approx(average_precision_score(y, steps, average="micro"), abs=1e-6)
    exact = average_precision_score(y[:, :3], logits[:, :3])
    assert found["average_precision"] == pytest.approx(exact, abs=0.02)
    entries = np.logaddexp(0, logits) - y * logits
    assert found["loss"] == pytest.approx(entries.mean(), rel=1e-5)
    assert float(losses.target_loss(jnp.asarray(logits), jnp.asarray(y), jnp.ones(100, bool))) == pytest.approx(
        entries.mean(), rel=1e-5
    )


def test_a_client_without_positives_has_no_average_precision():
    nothing = added(np.zeros((3, 2), np.float32), np.zeros((3, 2), bool))
    both = {
        name: tuple(np.stack(pair) for pair in zip(a, b, strict=True))
        for (name, a), b in zip(
            nothing.items(), added(np.array([[3.0, -1.0], [-3.0, 1.0]]), np.eye(2, dtype=bool)).values(), strict=True
        )
    }
    found = metrics.finalize_metrics("labels", both)
    np.testing.assert_array_equal(found["average_precision"][1], [0, 2])
    np.testing.assert_array_equal(found["average_precision"][0], [0, 2])


def test_r2_and_squared_error_are_scikit_learns():
    rng = np.random.default_rng(1)
    y = rng.normal(size=(50, 3)).astype(np.float32) + (0, 5, -3)
    y = np.concatenate([y, np.full((50, 1), 123.4)], 1).astype(np.float32)  # the last does not vary, up to rounding
    f = (y + rng.normal(size=y.shape) * 0.5).astype(np.float32)
    found = values("numbers", added(f, y))
    assert found["r2"] == pytest.approx(r2_score(y[:, :3], f[:, :3]), abs=1e-4)
    assert found["mean_squared_error"] == found["loss"] == pytest.approx(mean_squared_error(y, f), rel=1e-5)


def test_r2_of_numbers_far_from_zero():
    rng = np.random.default_rng(3)
    y = (rng.normal(size=(400, 2)) + (3000, -900)).astype(np.float32)
    f = (y + rng.normal(size=y.shape) * 0.5).astype(np.float32)
    parts = [slice(0, 150), slice(150, 400)]
    each = [metrics.metric_sums(f[part], y[part], np.ones(len(y[part]), bool), y.mean(0)) for part in parts]
    found = metrics.finalize_metrics("numbers", jax.device_get(jax.tree.map(jnp.add, *each)))["r2"]
    assert found[0] / found[1] == pytest.approx(r2_score(y, f), abs=1e-4)


def test_perplexity_is_of_the_tokens_that_count():
    rng = np.random.default_rng(2)
    logits, y = rng.normal(size=(9, 5, 6)).astype(np.float32), rng.integers(-1, 6, (9, 5)).astype(np.int32)
    found, there = values("tokens", added(logits, y)), y >= 0
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    loss = log_loss(y[there], p[there], labels=range(6))
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(loss), rel=1e-5)
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == y)[there].mean())
