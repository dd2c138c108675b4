"""Labels to divide, and what holds of index lists."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

LIGHT = settings(max_examples=10, deadline=None)
BALANCED = np.repeat(np.arange(10), 100)
BALANCED_TEST = np.repeat(np.arange(10), 40)
seeds = st.integers(0, 2**31)
alphas = st.sampled_from([1e-3, 0.05, 0.3, 1.0, 100.0])
CALLS = {
    "iid": {},
    "dirichlet": {"alpha": 0.5},
    "extended_dirichlet": {"classes_per_client": 3, "alpha": 1.0},
    "grouped_dirichlet": {"alpha": 0.5},
    "quantity_skew": {"alpha": 1.0},
    "dirichlet_clients": {"alpha": 1.0, "train_examples": 40, "test_examples": 10},
    "pathological_clients": {"classes_per_client": 2, "train_examples": 40, "test_examples": 10},
    "overlapping_dirichlet": {},
    "pathological": {"classes_per_client": 3},
    "shards": {},
    "by_domain": {},
    "natural": {},
}
COLUMNS = {
    "labels": BALANCED,
    "test_labels": BALANCED_TEST,
    "domains": np.tile(np.arange(2), 500),
    "test_domains": np.tile(np.arange(2), 200),
    "ids": np.tile(np.arange(20), 50),
    "test_ids": np.tile(np.arange(20), 20),
}


@st.composite
def labelled(draw, least=40):
    """Labels of 2 to 6 classes of uneven sizes, in random order."""
    sizes = draw(st.lists(st.integers(12, 60), min_size=2, max_size=6))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    while len(labels) < least:
        labels = np.concatenate([labels, labels])
    return np.random.default_rng(draw(st.integers(0, 1000))).permutation(labels)


def table(labels, index):
    return np.stack([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in index])


def assert_valid(index, clients, rows):
    assert len(index) == clients
    for part in index:
        assert part.dtype == np.int32
        assert np.all(np.diff(part) >= 0)
        if len(part):
            assert 0 <= part[0] <= part[-1] < rows


def assert_disjoint(index):
    together = np.concatenate(index)
    assert len(np.unique(together)) == len(together)


def assert_covers(index, rows):
    np.testing.assert_array_equal(np.sort(np.concatenate(index)), np.arange(rows))
