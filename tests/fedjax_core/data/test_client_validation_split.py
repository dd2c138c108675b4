"""Examples that are held back of each client's training examples."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_core.data import apportion, client_validation_split, federated_data
from fedjax_core.data.ragged_index import RaggedIndex
from tests.fedjax_core.data.test_federated_data import DATA, LIGHT, divide

BRANCHES = pytest.mark.parametrize("many", [apportion.MANY, 0], ids=["one by one", "together"])


@BRANCHES
@LIGHT
@given(st.integers(1, 8), st.integers(0, 10_000), st.floats(0.01, 0.95))
def test_a_part_of_each_client_by_class(many, clients, seed, fraction):
    with mock.patch.object(apportion, "MANY", many):
        check_parts(clients, seed, fraction)


def check_parts(clients, seed, fraction):
    whole = divide(clients=clients, seed=seed)
    data = client_validation_split.hold_out_validation(whole, fraction, seed)
    for client, (everything, kept, held) in enumerate(zip(whole.train_index, data.train_index, data.validation_index, strict=True)):
        assert len(held) == int(fraction * len(everything))
        np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), everything)
        exact = fraction * whole.label_table[client]
        found = np.bincount(data.train.y[held], minlength=data.classes)
        assert np.all(np.abs(found - exact) < 2)  # rounded down in all, and each class up or down
        np.testing.assert_array_equal(data.label_table[client], whole.label_table[client] - found)
    for before, after in zip(whole.test_index, data.test_index, strict=True):
        np.testing.assert_array_equal(before, after)
    assert data.partition_hash == client_validation_split.hold_out_validation(whole, fraction, seed).partition_hash
    assert (data.partition_hash != whole.partition_hash) == any(len(rows) for rows in data.validation_index)


def test_a_number_of_rows():
    data = client_validation_split.hold_out_validation(divide(), 3, 0)
    assert {len(rows) for rows in data.validation_index} == {3}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (1.0, r"data.validation=1.0 must be a fraction in \(0, 1\)"),
        (0, "data.validation=0 must be"),
        (True, "data.validation=True must be"),
        (1000, r"data.validation=1000: client 0 has \d+ training examples; it must be at most \d+, or a fraction"),
    ],
)
def test_impossible_parts_are_refused(part, message):
    with pytest.raises(ValueError, match=message):
        client_validation_split.hold_out_validation(divide(), part, 0)


def test_once_is_enough():
    with pytest.raises(ValueError, match="have validation examples already"):
        client_validation_split.hold_out_validation(client_validation_split.hold_out_validation(divide(), 0.2, 0), 0.2, 0)


# -- clients that share examples, and examples that a client has several times

SHARED = (
    "overlapping_dirichlet(alpha=0.5)",
    "dirichlet_clients(alpha=0.5, train_examples=40, test_examples=5)",
    "dirichlet_clients(alpha=0.5, train_examples=100, test_examples=5, replace=True)",
    "pathological_clients(classes_per_client=2, train_examples=50, test_examples=5)",
)


def expected(lists, part, seed):
    """(kept, held) of each client by plain loops over clients, classes and examples, or None where
    a client would keep nothing.
    """
    rank, labels = apportion.make_generator(seed, "holdout").permutation(len(DATA.train.y)), DATA.train.y
    held = []
    for rows in lists:
        once = sorted(set(rows))
        number = part if part >= 1 else int(part * len(once))
        if once and number >= len(once):
            return None
        mine, following = [], []
        for c in range(4):
            of_class = sorted((r for r in once if labels[r] == c), key=lambda r: rank[r])
            whole = number * len(of_class) // len(once) if once else 0
            mine += of_class[:whole]
            if once and number * len(of_class) % len(once):
                following.append(of_class[whole])
        missing = number - len(mine) if once else 0
        held.append(sorted(mine + sorted(following, key=lambda r: rank[r])[:missing]))
    anybodys = {row for mine in held for row in mine}
    kept = [[row for row in sorted(rows) if row not in anybodys] for rows in lists]
    return None if any(rows and not left for rows, left in zip(lists, kept, strict=True)) else (kept, held)


def plain(lists):
    return [[int(row) for row in rows] for rows in lists]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("part", [0.2, 6])
@pytest.mark.parametrize("scheme", SHARED)
def test_nobody_trains_on_a_row_that_anybody_holds(seed, part, scheme):
    whole = divide(scheme, clients=6, seed=seed)
    rows = [row for mine in plain(whole.train_index) for row in mine]
    assert len(rows) > len(set(rows))
    data = client_validation_split.hold_out_validation(whole, part, seed)
    kept, held = plain(data.train_index), plain(data.validation_index)
    anybodys = {row for mine in held for row in mine}
    for before, left, mine in zip(plain(whole.train_index), kept, held, strict=True):
        once = set(before)
        assert len(set(mine)) == len(mine) == (int(part * len(once)) if part < 1 else part)
        assert once.issuperset(mine)
        assert left == [row for row in before if row not in anybodys]  # as often as before
        for c in range(4):
            there, found = (sum(DATA.train.y[row] == c for row in of) for of in (once, mine))
            assert abs(found - len(mine) * there / len(once)) < 1
    assert (kept, held) == expected(plain(whole.train_index), part, seed)
    together = federated_data.pool_clients(data)
    assert set(plain(together.train_index)[0]) == {row for left in kept for row in left}
    assert set(plain(together.validation_index)[0]) == anybodys
    assert not anybodys & set(plain(together.train_index)[0])


@LIGHT
@given(
    st.lists(st.lists(st.integers(0, 25), max_size=30), min_size=1, max_size=6),
    st.one_of(st.integers(1, 3), st.floats(0.05, 0.6)),
    st.integers(0, 10_000),
)
def test_any_lists(lists, part, seed):
    lists.append([row for rows in lists for row in rows])  # somebody shares with everybody
    whole = federated_data.from_index(DATA, lists, [[0]] * len(lists))
    if not lists[-1]:
        return
    if (wanted := expected(lists, part, seed)) is None:
        with pytest.raises(ValueError, match=rf"data.validation={part}: client \d+ (would train on nothing|has \d+ different)"):
            client_validation_split.hold_out_validation(whole, part, seed)
        return
    data = client_validation_split.hold_out_validation(whole, part, seed)
    assert (plain(data.train_index), plain(data.validation_index)) == wanted


@pytest.mark.parametrize("block", [7, 100])
def test_blocks_of_clients_change_nothing(block):
    whole = divide(SHARED[2], clients=9)
    blocks = RaggedIndex.blocks
    with mock.patch.object(RaggedIndex, "blocks", lambda lists: blocks(lists, block)):
        data = client_validation_split.hold_out_validation(whole, 0.2, 1)
    assert (plain(data.train_index), plain(data.validation_index)) == expected(plain(whole.train_index), 0.2, 1)


def test_repeats_cost_no_more_than_their_part():
    whole = divide("dirichlet_clients(alpha=1.0, train_examples=150, test_examples=5, replace=True)", clients=5)
    data = client_validation_split.hold_out_validation(whole, 0.1, 0)
    assert min(len(set(rows)) for rows in plain(whole.train_index)) < 120
    assert min(len(rows) for rows in data.train_index) >= 115


def test_clients_with_the_same_rows_hold_the_same_back():
    """However many they are, each keeps what it would keep alone."""
    rows = np.arange(0, 240, 2, dtype=np.int32)
    whole = federated_data.from_index(DATA, RaggedIndex.repeat(rows, 30_000), RaggedIndex.repeat(rows[:3], 30_000))
    data = client_validation_split.hold_out_validation(whole, 0.25, 0)
    assert {len(mine) for mine in data.validation_index} == {30}
    assert len(np.unique(data.validation_index[0])) == 30
    assert all(np.array_equal(data.train_index[i], np.setdiff1d(rows, data.validation_index[0])) for i in (0, 17, 29_999))
    assert all(np.array_equal(data.validation_index[i], data.validation_index[0]) for i in (0, 17, 29_999))


def test_a_client_whose_rows_others_hold_is_refused():
    whole = federated_data.from_index(DATA, [[], [0, 1, 2, 3], [0], [1], [2], [3, 3]], [[0]] * 6)
    message = (
        r"data.validation=0.5: client [2-5] would train on nothing: of its 1 different training examples 0 would be its validation "
        r"examples, the other 1 those of clients that share them; take a smaller part, another data.seed, or a partition whose"
    )
    with pytest.raises(ValueError, match=message):
        client_validation_split.hold_out_validation(whole, 0.5, 0)


def test_repeats_of_too_few_rows_are_refused():
    whole = federated_data.from_index(DATA, [[4, 4, 4, 5, 5], [1, 2, 3, 6]], [[0], [1]])
    with pytest.raises(
        ValueError, match=r"data.validation=2: client 0 has 2 different training examples; it must be at most 1, or a"
    ):
        client_validation_split.hold_out_validation(whole, 2, 0)
    alone = federated_data.from_index(DATA, [[4], [1, 2]], [[0], [1]])
    with pytest.raises(ValueError, match=r"data.validation=1: client 0 has 1 training examples; it must be a fraction"):
        client_validation_split.hold_out_validation(alone, 1, 0)


@pytest.mark.parametrize(
    ("many", "scheme", "part", "found"),
    [
        (apportion.MANY, "dirichlet(alpha=0.5)", 0.2, "2261a4730f31b628"),
        (apportion.MANY, "iid", 0.5, "809722e29b25065a"),
        (apportion.MANY, "dirichlet(alpha=0.1, min_size=0)", 1, "d5b1b667ae166896"),
        (apportion.MANY, "natural", 0.2, "faaf4ec8abc50114"),
        (0, "dirichlet(alpha=0.5)", 0.2, "11b396fdfc854cbd"),
        (0, "iid", 0.5, "6301b6f2bdfda354"),
        (0, "dirichlet(alpha=0.1, min_size=0)", 1, "f1ea0c221c6c850f"),
        (0, "natural", 0.2, "2741e387fc77d743"),
    ],
)
def test_where_nobody_shares_rows_they_are_those_of_older_runs(many, scheme, part, found):
    """Hashes that commit bc3ad88 gave, before examples of shared lists were held in common."""
    with mock.patch.object(apportion, "MANY", many):
        assert client_validation_split.hold_out_validation(divide(scheme, clients=7), part, 3).partition_hash.startswith(found)
