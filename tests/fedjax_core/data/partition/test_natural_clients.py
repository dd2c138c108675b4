import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_core.data import partition
from tests.fedjax_core.data.partition.labels import LIGHT, assert_covers, assert_disjoint, assert_valid, seeds


@LIGHT
@given(st.integers(1, 4), st.integers(1, 3), seeds)
def test_by_domain_gives_each_client_one_domain(count, each, seed):
    rng = np.random.default_rng(seed)
    domains = rng.permutation(np.repeat(np.arange(count), rng.integers(10, 40, count)))
    test_domains = rng.permutation(np.repeat(np.arange(count), rng.integers(5, 20, count)))
    train, test = partition.by_domain(domains, test_domains, count * each, seed)
    for of_row, index in ((domains, train), (test_domains, test)):
        assert_valid(index, count * each, len(of_row))
        assert_covers(index, len(of_row))
        for client, part in enumerate(index):
            assert set(of_row[part]) == {client % count}


def test_by_domain_takes_the_numbers_asked_for():
    domains = np.repeat(np.arange(2), [50, 30])
    train, test = partition.by_domain(domains, domains, 4, 0, train_examples=15, test_examples=7)
    assert [len(part) for part in train] == [15] * 4
    assert [len(part) for part in test] == [7] * 4
    assert_disjoint(train)
    with pytest.raises(ValueError, match="domain 1 has 30 train examples for 2 clients, 15 each; train_examples=16"):
        partition.by_domain(domains, domains, 4, 0, train_examples=16)
    with pytest.raises(ValueError, match="3 clients for 2 domains: must be a multiple of 2"):
        partition.by_domain(domains, domains, 3, 0)
    with pytest.raises(ValueError, match="domain 1 has 0 test examples"):
        partition.by_domain(domains, domains[:50], 2, 0)


def test_clients_are_tested_on_a_domain_that_nobody_has():
    train, test = partition.by_domain(np.repeat([0, 2, 3], 5), np.ones(4, int), 6, 0)
    assert [len(part) for part in train] == [3, 3, 3, 2, 2, 2]
    assert [part.tolist() for part in test] == [[0, 1, 2, 3]] * 6
    _, test = partition.by_domain(np.repeat([0, 2], 3), np.array([0, 2, 1, 0]), 2, 0)
    assert [part.tolist() for part in test] == [[0, 3], [1]]  # some are known


def test_natural_clients_keep_their_rows():
    ids, test_ids = np.array([7, 3, 7, 9, 3, 7]), np.array([9, 7, 9])
    train, test = partition.natural(ids, 3, 0, test_ids)
    assert [part.tolist() for part in train] == [[1, 4], [0, 2, 5], [3]]
    assert test is not None
    assert [part.tolist() for part in test] == [[], [1], [0, 2]]
    some, none = partition.natural(ids, 2, 5)
    assert none is None
    assert len({int(ids[rows[0]]) for rows in some}) == 2
    with pytest.raises(ValueError, match="4 clients, but the data have 3 natural ones"):
        partition.natural(ids, 4, 0, test_ids)


def test_clients_with_test_examples_alone_are_named(caplog):
    train, test = partition.natural(np.array([3, 7, 3]), None, 0, np.array([7, 9, 9, 3, 5]))
    assert [part.tolist() for part in train] == [[0, 2], [1]]
    assert [part.tolist() for part in test] == [[3], [0]]
    assert "2 natural clients have test examples only, 3 of all 5, which only scores on the whole test set count" in caplog.text
