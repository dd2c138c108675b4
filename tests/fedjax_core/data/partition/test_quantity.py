import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedjax_core.data import partition
from tests.fedjax_core.data.partition.labels import LIGHT, assert_covers, assert_valid, labelled, seeds, table


@LIGHT
@given(labelled(), st.integers(1, 12), seeds)
def test_iid_covers_evenly(labels, clients, seed):
    index = partition.iid(labels, clients, seed)
    assert_valid(index, clients, len(labels))
    assert_covers(index, len(labels))
    sizes = [len(part) for part in index]
    assert max(sizes) - min(sizes) <= 1


@LIGHT
@given(labelled(), st.integers(1, 8), seeds)
def test_quantity_skew_covers_with_its_minimum(labels, clients, seed):
    index = partition.quantity_skew(labels, clients, seed, alpha=2.0, min_size=2)
    assert_valid(index, clients, len(labels))
    assert_covers(index, len(labels))
    assert min(len(part) for part in index) >= 2


def test_quantity_skew_leaves_label_distributions_alone():
    labels = np.tile(np.arange(4), 5000)
    counts = table(labels, partition.quantity_skew(labels, 4, 3, alpha=0.8, min_size=500))
    assert counts.sum(1).max() > 2 * counts.sum(1).min()
    np.testing.assert_allclose(counts / counts.sum(1, keepdims=True), 0.25, atol=0.06)
