import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_core.data import partition
from tests.fedjax_core.data.partition.labels import BALANCED, LIGHT, assert_covers, assert_valid, labelled, seeds, table


@LIGHT
@given(labelled(), st.integers(1, 12), seeds)
def test_iid_covers_evenly(labels, clients, seed):
    index = partition.iid(labels, clients, seed)
    assert_valid(index, clients, len(labels))
    assert_covers(index, len(labels))
    sizes = [len(part) for part in index]
    assert max(sizes) - min(sizes) <= 1
    np.testing.assert_allclose(table(BALANCED, partition.iid(BALANCED, 4, seed)), 25, atol=24)  # not in their order


@LIGHT
@given(labelled(), st.integers(1, 8), seeds)
def test_quantity_skew_covers_with_its_minimum(labels, clients, seed):
    index = partition.quantity_skew(labels, clients, seed, alpha=2.0, min_size=2)
    assert_valid(index, clients, len(labels))
    assert_covers(index, len(labels))
    assert min(len(part) for part in index) >= 2


def test_quantity_skew_leaves_label_distributions_alone():
    labels = np.repeat(np.arange(4), 5000)
    counts = table(labels, partition.quantity_skew(labels, 4, 3, alpha=0.8, min_size=500))
    assert counts.sum(1).max() > 2 * counts.sum(1).min()
    np.testing.assert_allclose(counts / counts.sum(1, keepdims=True), 0.25, atol=0.06)


def test_long_tail_of_cifar10_is_the_published_one():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    kept = partition.long_tail(labels, 0, rho=100)
    assert np.bincount(labels[kept]).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert len(np.unique(kept)) == len(kept) == 12406
    assert np.bincount(labels[partition.long_tail(labels, 0, rho=10)])[[0, -1]].tolist() == [5000, 500]


@LIGHT
@given(labelled(), st.floats(1, 10), seeds)
def test_long_tail_follows_its_profile(labels, rho, seed):
    counts = np.bincount(labels[partition.long_tail(labels, seed, rho=rho)])
    profile = counts[0] * rho ** -(np.arange(len(counts)) / (len(counts) - 1))
    np.testing.assert_array_equal(counts, np.floor(profile + 1e-9))
    assert np.all(counts <= np.bincount(labels))


def test_long_tail_refuses_an_empty_tail():
    with pytest.raises(ValueError, match=r"rho=200: class 9 would keep no example of 100 .*allowed here: 1 to 100"):
        partition.long_tail(BALANCED, 0, rho=200)
    with pytest.raises(ValueError, match=r"rho=0.5: must be a finite number >= 1"):
        partition.long_tail(BALANCED, 0, rho=0.5)
