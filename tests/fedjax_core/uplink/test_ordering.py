"""Columns in order, as NumPy has them."""

import jax
import numpy as np
import pytest

from fedjax_core.uplink import ordering


@pytest.mark.parametrize(("rows", "columns"), [(1, 3), (2, 1), (3, 5), (8, 4), (13, 300), (100, 257)])
def test_columns_are_in_order(rows, columns):
    x = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)
    x[:, 0] = np.round(x[:, 0])  # some are equal
    x[-1, -1] = np.inf
    np.testing.assert_array_equal(jax.jit(ordering.columns)(x), np.sort(x, 0))
    np.testing.assert_array_equal(jax.vmap(ordering.columns)(np.stack([x, -x])), np.sort([x, -x], 1))


def test_many_rows_are_in_order():
    x = np.random.default_rng(0).normal(size=(ordering.MOST + 1, 2)).astype(np.float32)
    np.testing.assert_array_equal(ordering.columns(x), np.sort(x, 0))


def test_a_network_alone_compares_on_a_cpu():
    text = jax.jit(ordering.columns).lower(np.zeros((8, 4), np.float32)).as_text()
    assert "stablehlo.minimum" in text
    assert "stablehlo.sort" not in text
