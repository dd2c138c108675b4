"""Clients and validation examples that are held out."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedjax_core import experiment
from fedjax_core.data import apportion, federated_data, hold_out, sources
from fedjax_core.data.ragged_index import RaggedIndex
from tests.fedjax_core.data.test_federated_data import DATA, LIGHT, divide


def apart(data, part, seed):
    """(the data with some clients set apart, those)."""
    made = hold_out.hold_out_clients(data, part, seed)
    assert made.unseen is not None
    return made, made.unseen


@LIGHT
@given(st.integers(2, 9), st.integers(0, 10_000), st.floats(0.01, 0.95))
def test_some_clients_are_taken_out_with_their_rows(clients, seed, fraction):
    whole = divide(clients=clients, seed=seed)
    data, new = apart(whole, fraction, seed)
    assert len(new.ids) == min(max(1, round(fraction * clients)), clients - 1)
    assert data.clients == clients - len(new.ids)
    others = [i for i in range(clients) if i not in set(new.ids.tolist())]
    for here, there in [*zip(range(data.clients), others, strict=True)]:
        np.testing.assert_array_equal(data.train_index[here], whole.train_index[there])
        np.testing.assert_array_equal(data.test_index[here], whole.test_index[there])
    np.testing.assert_array_equal(data.label_table, whole.label_table[others])
    for place, i in enumerate(new.ids):
        np.testing.assert_array_equal(new.train_index[place], whole.train_index[i])
        np.testing.assert_array_equal(new.test_index[place], whole.test_index[i])
    np.testing.assert_array_equal(new.label_table, whole.label_table[new.ids])
    np.testing.assert_array_equal(new.test_label_table, whole.test_label_table[new.ids])
    again = hold_out.hold_out_clients(whole, fraction, seed)
    assert data.partition_hash == again.partition_hash != whole.partition_hash
    alone = federated_data.replace_index(whole, data.train_index, data.test_index, data.validation_index)
    assert alone.partition_hash != data.partition_hash  # which others are scored counts


def test_a_number_of_clients_by_the_data_seed():
    chosen = {tuple(apart(divide(clients=8), 3, seed)[1].ids.tolist()) for seed in range(5)}
    assert len(chosen) > 1
    assert {len(ids) for ids in chosen} == {3}


def test_validation_rows_and_a_pool_are_of_the_population():
    whole = divide(clients=6)
    kept, new = apart(whole, 2, 0)
    data, rows = hold_out.hold_out_validation(kept, 0.3, 0), np.concatenate(new.train_index)
    assert not np.isin(np.concatenate([*data.train_index, *data.validation_index]), rows).any()
    assert not np.isin(federated_data.pool_clients(data).train_index[0], rows).any()
    _, late = apart(hold_out.hold_out_validation(whole, 0.3, 0), 2, 0)  # the other way round they have all of their examples too
    for mine, other in zip(late.train_index, new.train_index, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert "unseen: 2 more clients" in federated_data.format_summary(data)


def test_rows_that_a_client_has_several_times_stay_so():
    lists = [[3, 3, 5], [7, 7, 7, 2, 1], [9, 8], [4, 4, 4, 4, 6]]
    whole = federated_data.from_index(DATA, lists, [[0]] * 4)
    for seed in range(4):
        _, new = apart(whole, 2, seed)
        assert [rows.tolist() for rows in new.train_index] == [sorted(lists[i]) for i in new.ids]
        assert new.label_table.tolist() == whole.label_table[new.ids].tolist()
        held = hold_out.hold_out_validation(whole, 1, seed)
        for rows, i in zip(apart(held, 2, seed)[1].train_index, new.ids, strict=True):
            assert rows.tolist() == sorted([*held.train_index[i], *held.validation_index[i]])


def test_inputs_are_scaled_by_rows_that_somebody_seen_has():
    whole = divide(clients=4)
    assert hold_out.find_seen_examples(whole) is None
    data, new = apart(whole, 1, 0)
    theirs = new.train_index[0]
    kept = np.setdiff1d(np.arange(len(whole.train.y)), theirs)
    np.testing.assert_array_equal(hold_out.find_seen_examples(data), kept)
    few, many = whole.train._replace(x=whole.train.x[kept]), whole.train
    assert (
        experiment.compute_mean_and_std(many, hold_out.find_seen_examples(data))
        == experiment.compute_mean_and_std(few)
        != experiment.compute_mean_and_std(many)
    )
    shared = dataclasses.replace(data, train_index=(np.union1d(data.train_index[0], theirs), *data.train_index[1:]))
    assert len(hold_out.find_seen_examples(shared)) == len(whole.train.y)
    shared = dataclasses.replace(data, validation_index=(theirs, *data.validation_index[1:]))
    assert len(hold_out.find_seen_examples(shared)) == len(whole.train.y)


@pytest.mark.parametrize("part", [0, 5, 1.0, True])
def test_impossible_parts_of_clients_are_refused(part):
    with pytest.raises(ValueError, match=rf"data.unseen_clients={part} must be a fraction in \(0, 1\), or a number below .* 5"):
        hold_out.hold_out_clients(divide(clients=5), part, 0)


def test_clients_and_examples_are_held_out_once():
    with pytest.raises(ValueError, match="have unseen clients already"):
        hold_out.hold_out_clients(hold_out.hold_out_clients(divide(), 1, 0), 1, 0)
    with pytest.raises(ValueError, match="have validation examples already"):
        hold_out.hold_out_validation(hold_out.hold_out_validation(divide(), 0.2, 0), 0.2, 0)


@LIGHT
@given(st.integers(1, 8), st.integers(0, 10_000), st.floats(0.01, 0.95))
def test_a_part_of_each_client_by_class(clients, seed, fraction):
    whole = divide(clients=clients, seed=seed)
    data = hold_out.hold_out_validation(whole, fraction, seed)
    for client, (everything, kept, held) in enumerate(zip(whole.train_index, data.train_index, data.validation_index, strict=True)):
        assert len(held) == int(fraction * len(everything) + 1e-9)
        np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), everything)
        exact = fraction * whole.label_table[client]
        found = np.bincount(data.train.y[held], minlength=data.classes)
        assert np.all(np.abs(found - exact) < 2)  # rounded down in all, and each class up or down
        np.testing.assert_array_equal(data.label_table[client], whole.label_table[client] - found)
    for before, after in zip(whole.test_index, data.test_index, strict=True):
        np.testing.assert_array_equal(before, after)
    assert data.partition_hash == hold_out.hold_out_validation(whole, fraction, seed).partition_hash
    assert (data.partition_hash != whole.partition_hash) == any(len(rows) for rows in data.validation_index)


def test_each_class_has_its_part_of_the_validation_examples():
    """Also where all clients have the same few examples of each class."""
    y = np.tile(np.arange(10), 200)
    x = np.zeros((2000, 1), np.float32)
    whole = federated_data.from_index(sources.from_arrays(x, y, x, y), np.arange(2000).reshape(200, 10))
    held = np.concatenate(hold_out.hold_out_validation(whole, 0.2, 0).validation_index)
    counts = np.bincount(y[held], minlength=10)
    assert counts.sum() == 400
    assert np.abs(counts - 40).max() < 20


def test_rounding_takes_no_example_away():
    """0.29 * 100 is just below 29 in floating point."""
    whole = divide("iid", clients=1)
    (rows,) = whole.train_index
    one = federated_data.replace_index(whole, [rows[:100]], whole.test_index, [])
    assert len(hold_out.hold_out_validation(one, 0.29, 0).validation_index[0]) == 29


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (1.0, r"data.validation=1.0 must be a fraction in \(0, 1\)"),
        (0, "data.validation=0 must be"),
        (True, "data.validation=True must be"),
        (1000, r"data.validation=1000: client 0 has \d+ training examples; it must be at most \d+, or a fraction"),
    ],
)
def test_impossible_parts_of_examples_are_refused(part, message):
    with pytest.raises(ValueError, match=message):
        hold_out.hold_out_validation(divide(), part, 0)


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
        number = part if part >= 1 else int(part * len(once) + 1e-9)
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


@pytest.mark.parametrize("part", [0.2, 6])
@pytest.mark.parametrize("scheme", SHARED)
def test_nobody_trains_on_an_example_that_anybody_holds_out(part, scheme):
    seed = 0
    whole = divide(scheme, clients=6, seed=seed)
    rows = [row for mine in plain(whole.train_index) for row in mine]
    assert len(rows) > len(set(rows))
    data = hold_out.hold_out_validation(whole, part, seed)
    kept, held = plain(data.train_index), plain(data.validation_index)
    anybodys = {row for mine in held for row in mine}
    for before, left, mine in zip(plain(whole.train_index), kept, held, strict=True):
        once = set(before)
        assert len(set(mine)) == len(mine) == (int(part * len(once) + 1e-9) if part < 1 else part)
        assert once.issuperset(mine)
        assert left == [row for row in before if row not in anybodys]  # as often as before
        for c in range(4):
            of_client, of_part = (sum(DATA.train.y[row] == c for row in of) for of in (once, mine))
            assert abs(of_part - len(mine) * of_client / len(once)) < 1
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
@example([[0, 1, 2, 9], [9, 10, 11, 12]], 0.25, 0)  # one's last example is the next one's first
def test_any_lists(lists, part, seed):
    lists.append([row for rows in lists for row in rows])  # somebody shares with everybody
    whole = federated_data.from_index(DATA, lists, [[0]] * len(lists))
    if not lists[-1]:
        return
    if (wanted := expected(lists, part, seed)) is None:
        with pytest.raises(ValueError, match=rf"data.validation={part}: client \d+ (would train on nothing|has \d+ different)"):
            hold_out.hold_out_validation(whole, part, seed)
        return
    data = hold_out.hold_out_validation(whole, part, seed)
    assert (plain(data.train_index), plain(data.validation_index)) == wanted


def test_a_class_whose_part_is_a_whole_number_gives_no_more():
    dataset = sources.from_arrays(np.zeros((4, 1)), [0, 0, 1, 2], np.zeros((1, 1)), [0])
    for seed in range(10):
        data = hold_out.hold_out_validation(federated_data.from_index(dataset, [[0, 1, 2, 3]] * 2), 2, seed)
        assert [sum(dataset.train.y[rows] == 0) for rows in data.validation_index] == [1, 1]


@pytest.mark.parametrize("block", [7, 100])
def test_blocks_of_clients_change_nothing(block):
    whole = divide(SHARED[2], clients=9)
    blocks = RaggedIndex.blocks
    with mock.patch.object(RaggedIndex, "blocks", lambda lists: blocks(lists, block)):
        data = hold_out.hold_out_validation(whole, 0.2, 1)
    assert (plain(data.train_index), plain(data.validation_index)) == expected(plain(whole.train_index), 0.2, 1)


def test_clients_with_the_same_rows_hold_the_same_back():
    """However many they are, each keeps what it would keep alone."""
    rows = np.arange(0, 240, 2, dtype=np.int32)
    whole = federated_data.from_index(DATA, RaggedIndex.repeat(rows, 30_000), RaggedIndex.repeat(rows[:3], 30_000))
    data = hold_out.hold_out_validation(whole, 0.25, 0)
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
        hold_out.hold_out_validation(whole, 0.5, 0)


def test_repeats_of_too_few_rows_are_refused():
    whole = federated_data.from_index(DATA, [[4, 4, 4, 5, 5], [1, 2, 3, 6]], [[0], [1]])
    with pytest.raises(
        ValueError, match=r"data.validation=2: client 0 has 2 different training examples; it must be at most 1, or a"
    ):
        hold_out.hold_out_validation(whole, 2, 0)
    alone = federated_data.from_index(DATA, [[4], [1, 2]], [[0], [1]])
    with pytest.raises(ValueError, match=r"data.validation=1: client 0 has 1 training examples; it must be a fraction"):
        hold_out.hold_out_validation(alone, 1, 0)


@pytest.mark.parametrize(
    ("scheme", "part", "found"),
    [
        ("dirichlet(alpha=0.5)", 0.2, "79ba0070152b7fc3"),
        ("dirichlet(alpha=0.1, min_size=0)", 1, "92cf735e4240f5e5"),
        ("natural", 0.2, "2741e387fc77d743"),
    ],
)
def test_they_are_those_of_every_machine(scheme, part, found):
    assert hold_out.hold_out_validation(divide(scheme, clients=7), part, 3).partition_hash.startswith(found)
