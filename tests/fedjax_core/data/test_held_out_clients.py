"""Clients that are taken out of the population."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_core import experiment
from fedjax_core.data import client_validation_split, federated_data, held_out_clients
from tests.fedjax_core.data.test_federated_data import DATA, LIGHT, divide


def apart(data, part, seed):
    """(the data with some clients set apart, those)."""
    made = held_out_clients.hold_out_clients(data, part, seed)
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
    again = held_out_clients.hold_out_clients(whole, fraction, seed)
    assert data.partition_hash == again.partition_hash != whole.partition_hash


def test_a_number_of_clients_by_the_data_seed():
    chosen = {tuple(apart(divide(clients=8), 3, seed)[1].ids.tolist()) for seed in range(5)}
    assert len(chosen) > 1
    assert {len(ids) for ids in chosen} == {3}


def test_validation_rows_and_a_pool_are_of_the_population():
    whole = divide(clients=6)
    kept, new = apart(whole, 2, 0)
    data, rows = client_validation_split.hold_out_validation(kept, 0.3, 0), np.concatenate(new.train_index)
    assert not np.isin(np.concatenate([*data.train_index, *data.validation_index]), rows).any()
    assert not np.isin(federated_data.pool_clients(data).train_index[0], rows).any()
    _, late = apart(
        client_validation_split.hold_out_validation(whole, 0.3, 0), 2, 0
    )  # the other way round they have all of their examples too
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
        held = client_validation_split.hold_out_validation(whole, 1, seed)
        for rows, i in zip(apart(held, 2, seed)[1].train_index, new.ids, strict=True):
            assert rows.tolist() == sorted([*held.train_index[i], *held.validation_index[i]])


def test_inputs_are_scaled_by_rows_that_somebody_seen_has():
    whole = divide(clients=4)
    assert held_out_clients.find_seen_examples(whole) is None
    data, new = apart(whole, 1, 0)
    theirs = new.train_index[0]
    kept = np.setdiff1d(np.arange(len(whole.train.y)), theirs)
    np.testing.assert_array_equal(held_out_clients.find_seen_examples(data), kept)
    few, many = whole.train._replace(x=whole.train.x[kept]), whole.train
    assert (
        experiment.compute_mean_and_std(many, held_out_clients.find_seen_examples(data))
        == experiment.compute_mean_and_std(few)
        != experiment.compute_mean_and_std(many)
    )
    shared = dataclasses.replace(data, train_index=(np.union1d(data.train_index[0], theirs), *data.train_index[1:]))
    assert len(held_out_clients.find_seen_examples(shared)) == len(whole.train.y)


@pytest.mark.parametrize("part", [0, 5, 1.0, True])
def test_impossible_parts_are_refused(part):
    with pytest.raises(ValueError, match=rf"data.unseen_clients={part} must be a fraction in \(0, 1\), or a number below .* 5"):
        held_out_clients.hold_out_clients(divide(clients=5), part, 0)


def test_once_is_enough():
    with pytest.raises(ValueError, match="have unseen clients already"):
        held_out_clients.hold_out_clients(held_out_clients.hold_out_clients(divide(), 1, 0), 1, 0)
