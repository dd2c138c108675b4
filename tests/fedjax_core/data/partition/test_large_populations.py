"""Draws for very many clients are made together, and follow what those one by one follow."""

from typing import Any

import numpy as np
import pytest

from fedjax_core.data import apportion
from fedjax_core.data.partition import label_skew, large_populations, per_client_label_skew, sampling
from fedjax_core.data.ragged_index import RaggedIndex

MAKE: Any = per_client_label_skew
CLIENTS = apportion.MANY + 500
LABELS, TEST_LABELS = np.arange(20_000, dtype=np.int32) % 4, np.arange(400, dtype=np.int32) % 4


@pytest.fixture(autouse=True)
def together(monkeypatch):
    """Fails where a step is made for each client."""

    def refuse(*arguments):
        raise AssertionError("one client's draw")

    for module in (per_client_label_skew, label_skew):
        monkeypatch.setattr(module, "assign_classes", refuse)
    for name in ("choose_examples", "apportion_capped"):
        monkeypatch.setattr(per_client_label_skew, name, refuse)


def check(lists: RaggedIndex, size: int, labels: np.ndarray) -> np.ndarray:
    """[N, K] examples by class, of lists of one size whose examples are sorted and distinct."""
    found = lists.concatenate().reshape(CLIENTS, size)
    assert (np.diff(found) > 0).all()
    return (labels[found][..., None] == np.arange(4)).sum(1)


def test_own_distributions_of_very_many_clients():
    train, test = MAKE.dirichlet_clients(LABELS, TEST_LABELS, CLIENTS, 0, alpha=0.3, train_examples=12, test_examples=4)
    mine, theirs = check(train, 12, LABELS), check(test, 4, TEST_LABELS)
    assert 0.6 < (mine.max(1) / 12).mean() < 0.8  # one by one it is 0.70
    assert np.abs(mine / 12 - theirs / 4).max() <= 1 / 12 + 1 / 4
    np.testing.assert_allclose(mine.mean(0), 3, atol=0.15)
    again = MAKE.dirichlet_clients(LABELS, TEST_LABELS, CLIENTS, 0, alpha=0.3, train_examples=12, test_examples=4)[0]
    np.testing.assert_array_equal(train.rows, again.rows)
    uses = np.bincount(train.rows, minlength=len(LABELS))
    assert uses.max() < 12 * CLIENTS / len(LABELS) + 6 * np.sqrt(12 * CLIENTS / len(LABELS))


def test_two_classes_for_each_of_very_many_clients(monkeypatch):
    train, _ = MAKE.pathological_clients(LABELS, TEST_LABELS, CLIENTS, 0, classes_per_client=2, train_examples=6, test_examples=0)
    mine = check(train, 6, LABELS)
    assert (np.sort(mine)[:, -2:] == 3).all()
    holders = (mine > 0).sum(0)
    assert holders.max() - holders.min() <= 1
    monkeypatch.setattr(per_client_label_skew, "_BLOCK", 40_000)  # 4000 clients
    train, _ = MAKE.pathological_clients(LABELS, TEST_LABELS, CLIENTS, 0, classes_per_client=2, train_examples=6, test_examples=0)
    np.testing.assert_array_equal(check(train, 6, LABELS), mine)
    lists = label_skew.pathological(LABELS, CLIENTS, 0, classes_per_client=1)
    assert set(lists.size.tolist()) == {1}


def test_rows_that_a_client_takes_once_and_others_take_too():
    lists = MAKE.overlapping_dirichlet(LABELS, CLIENTS, 0, train_examples=5)
    check(lists, 5, LABELS)


def test_what_cannot_be_is_said_of_the_client():
    few = np.arange(40) % 4
    with pytest.raises(ValueError, match=r"client \d+ wants \d+ of the 10 training examples of class \d .*lower train_examples=12"):
        MAKE.dirichlet_clients(few, few, CLIENTS, 0, alpha=0.01, train_examples=12, test_examples=0, max_tries=2)
    train, _ = MAKE.dirichlet_clients(few, few, CLIENTS, 0, alpha=0.01, train_examples=12, test_examples=0, replace=True)
    assert (train.size == 12).all()


@pytest.mark.parametrize("number", [1, 3, 5, 6])
def test_sets_of_places_are_equally_likely(number):
    clients = 6000
    whose, places = large_populations._draw_distinct(np.random.default_rng(0), np.full(clients, number), 6)
    cells = np.unique(whose * 6 + places)
    assert len(cells) == len(whose) == clients * number
    masks = np.bincount(whose, 2**places)
    _, found = np.unique(masks, return_counts=True)
    expected = clients / len(found)
    assert len(found) == {1: 6, 3: 20, 5: 6, 6: 1}[number]
    assert np.abs(found - expected).max() < 5 * np.sqrt(expected)


def test_rows_of_many_blocks(monkeypatch):
    monkeypatch.setattr(large_populations, "_BLOCK", 50)
    rng = np.random.default_rng(0)
    of_class, numbers = [np.arange(0, 30, 2), np.arange(1, 9, 2)], rng.integers(0, 4, (60, 2))
    numbers[3] = 0
    numbers[5, 1] = 7  # of four
    lists = large_populations.choose_examples(rng, of_class, numbers, replace=True)
    for rows_of, wanted in zip(lists, numbers, strict=True):
        assert [int((rows_of % 2 == 0).sum()), int((rows_of % 2).sum())] == wanted.tolist()
        assert (np.diff(rows_of) >= 0).all()
        assert set(rows_of[rows_of % 2 == 1].tolist()) <= set(of_class[1].tolist())
        assert len(set(rows_of.tolist())) == len(rows_of) or wanted[1] == 7


def test_classes_are_dealt_as_one_by_one():
    for classes, each in ((10, 4), (7, 3), (5, 5)):
        held = large_populations.assign_classes(np.random.default_rng(0), classes, 101, each)
        assert (held.sum(1) == each).all()
        for number in range(1, 102):
            holders = held[:number].sum(0)
            assert holders.max() - holders.min() <= 1
        one_by_one = sampling.assign_classes(np.random.default_rng(0), classes, 101, each)
        np.testing.assert_array_equal(np.sort(held.sum(0)), np.sort(one_by_one.sum(0)))
    with pytest.raises(ValueError, match=r"classes_per_client=6: must lie in \[1, 5\]"):
        large_populations.assign_classes(np.random.default_rng(0), 5, 101, 6)


def test_caps_are_those_of_one_client_after_another():
    rng = np.random.default_rng(0)
    shares, caps, totals = rng.dirichlet(np.full(5, 0.2), 200), np.array([3, 9, 1, 4, 20]), rng.integers(0, 38, 200)
    found = large_populations.apportion_capped(totals, shares, caps)
    np.testing.assert_array_equal(
        found, [apportion.apportion_capped(int(n), share, caps) for n, share in zip(totals, shares, strict=True)]
    )
