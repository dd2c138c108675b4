"""Metrics merge by adding, and masked rows may hold anything."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.training import metrics

LOGITS = jnp.asarray([[0.1, 2.0], [1.0, 0.0], [0.0, 0.5], [jnp.nan, jnp.nan]])
Y = jnp.asarray([1, 1, 1, 0])
MASK = jnp.asarray([True, True, True, False])


def test_mean_of_ignores_masked_nan():
    total, weight = metrics.mean_of(jnp.asarray([1.0, 2.0, jnp.nan]), jnp.asarray([True, True, False]))
    assert (float(total), float(weight)) == (3.0, 2.0)


@pytest.mark.parametrize("dtype", [bool, jnp.int8, jnp.bfloat16])
def test_mean_of_what_is_no_float32(dtype):
    """Two of three; a weight in the values' dtype would be True, and int8 would end at 127."""
    values = jnp.tile(jnp.asarray([1, 1, 0]), 100).astype(dtype)
    pair = metrics.mean_of(values, jnp.arange(300) < 198)
    assert all(jnp.issubdtype(part.dtype, jnp.floating) for part in pair)
    np.testing.assert_allclose(float(metrics.value(pair)), 2 / 3, rtol=1e-2)


def test_accuracy_counts_hits_and_rows():
    hits, rows = metrics.accuracy(LOGITS, Y, MASK)
    assert (float(hits), float(rows)) == (2.0, 3.0)


def test_pairs_of_parts_add_up_to_the_whole():
    parts = [metrics.accuracy(LOGITS[i : i + 2], Y[i : i + 2], MASK[i : i + 2]) for i in (0, 2)]
    whole = metrics.accuracy(LOGITS, Y, MASK)
    assert jax.tree.map(jnp.add, *parts) == whole
    np.testing.assert_allclose(metrics.value(whole), 2 / 3, rtol=1e-6)


def test_nothing_weighed_is_zero():
    assert float(metrics.value((jnp.zeros(()), jnp.zeros(())))) == 0.0


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
