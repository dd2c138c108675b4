from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_core.data import partition
from fedjax_core.data.partition import per_client_label_skew, sampling
from tests.fedjax_core.data.partition.labels import BALANCED, BALANCED_TEST, LIGHT, assert_valid, labelled, seeds, table


@LIGHT
@given(st.integers(1, 10), seeds, st.sampled_from([0.3, 1.0, 50.0]))
def test_dirichlet_clients_have_exact_sizes_and_one_distribution(clients, seed, alpha):
    train, test = partition.dirichlet_clients(
        BALANCED, BALANCED_TEST, clients, seed, alpha=alpha, train_examples=50, test_examples=20
    )
    assert_valid(train, clients, len(BALANCED))
    assert_valid(test, clients, len(BALANCED_TEST))
    for part in (*train, *test):
        assert len(np.unique(part)) == len(part)
    assert {len(part) for part in train} == {50}
    assert {len(part) for part in test} == {20}
    apart = table(BALANCED, train) / 50 - table(BALANCED_TEST, test) / 20
    assert np.abs(apart).max() < 1 / 50 + 1 / 20  # both within one example of q


def test_dirichlet_clients_share_examples_and_follow_alpha():
    def draw(alpha):
        return partition.dirichlet_clients(BALANCED, BALANCED_TEST, 40, 0, alpha=alpha, train_examples=90, test_examples=30)[0]

    skewed, even = (table(BALANCED, draw(alpha)).max(1).mean() / 90 for alpha in (0.1, 1000.0))
    assert skewed > 0.5
    assert even < 0.15
    assert len(np.unique(np.concatenate(draw(1.0)))) < 40 * 90


def test_dirichlet_clients_repeat_rows_only_on_request():
    few = np.repeat(np.arange(4), 20)
    with pytest.raises(
        ValueError, match=r"client 0 wants \d+ of the 20 training examples of class \d \(draw 50 of 50\); lower train"
    ):
        partition.dirichlet_clients(few, few, 3, 0, alpha=0.01, train_examples=60, test_examples=10, max_tries=50)
    train, _ = partition.dirichlet_clients(few, few, 3, 0, alpha=0.01, train_examples=60, test_examples=10, replace=True)
    assert [len(part) for part in train] == [60, 60, 60]
    assert len(np.unique(train[0])) <= 20 < table(few, train)[0].max()


def test_pathological_clients_repeat_rows_only_on_request():
    with pytest.raises(ValueError, match=r"client 0 wants 150 of the 100 training examples of class \d .*lower train_examples=300"):
        partition.pathological_clients(BALANCED, BALANCED_TEST, 3, 0, classes_per_client=2, train_examples=300)
    train, test = partition.pathological_clients(
        BALANCED, BALANCED_TEST, 3, 0, classes_per_client=2, train_examples=300, test_examples=80, replace=True
    )
    assert [sorted(row[row > 0]) for row in table(BALANCED, train)] == [[150, 150]] * 3
    assert [len(np.unique(part)) for part in test] == [80] * 3  # of classes of 40
    with pytest.raises(ValueError, match=r"train_examples=0 must be >= 1"):
        partition.pathological_clients(BALANCED, BALANCED_TEST, 3, 0, classes_per_client=2, train_examples=0)


def test_dirichlet_clients_need_test_rows_of_each_class():
    with pytest.raises(ValueError, match="class 9 has training examples but no test examples"):
        partition.dirichlet_clients(BALANCED, BALANCED_TEST[BALANCED_TEST < 9], 3, 0, alpha=1.0, train_examples=10)


@LIGHT
@given(st.integers(1, 10), seeds, st.integers(1, 5))
def test_pathological_clients_have_equal_shares(clients, seed, n):
    train, test = partition.pathological_clients(
        BALANCED, BALANCED_TEST, clients, seed, classes_per_client=n, train_examples=60, test_examples=30
    )
    for labels, index, total in ((BALANCED, train, 60), (BALANCED_TEST, test, 30)):
        counts = table(labels, index)
        assert np.all(np.count_nonzero(counts, 1) == n)
        assert np.all(counts.sum(1) == total)
        assert np.ptp(counts[counts > 0]) <= 1


@LIGHT
@given(labelled(), st.integers(1, 8), seeds, st.sampled_from(["random_over_classes", "random_over_clients", 0.1, 10.0]))
def test_overlapping_dirichlet_sizes_add_up_to_all_rows(labels, clients, seed, alpha):
    index = partition.overlapping_dirichlet(labels, clients, seed, alpha=alpha)
    assert_valid(index, clients, len(labels))
    assert sum(len(part) for part in index) == len(labels)
    for part in index:
        assert len(np.unique(part)) == len(part)


def test_overlapping_dirichlet_overlaps():
    index = partition.overlapping_dirichlet(BALANCED, 5, 0, train_examples=300)
    assert [len(part) for part in index] == [300] * 5
    assert len(np.unique(np.concatenate(index))) < 1000


def test_fedhpls_dir_of_all_three_sets_has_as_many_rows_as_there_are():
    """Concentrations add up to 1 over a client's classes, or over a class's clients; a client's
    examples are all different.
    """
    labels = np.repeat(np.arange(10), 500)
    for alpha, axis in (("random_over_classes", 1), ("random_over_clients", 0)):
        with mock.patch.object(per_client_label_skew, "log_dirichlet", wraps=sampling.log_dirichlet) as draw:
            index = partition.overlapping_dirichlet(labels, 5, 0, alpha=alpha)
        np.testing.assert_allclose(draw.call_args.args[1].sum(axis), 1)
        assert [len(rows) for rows in index] == [1000] * 5
        assert all(len(np.unique(rows)) == 1000 for rows in index)
        assert len(np.unique(np.concatenate(index))) < 5000, "clients share examples"
