"""Rows that are held back of each client's training rows."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_core.data import draws, validation
from tests.fedjax_core.data.test_federated import LIGHT, divide


@pytest.mark.parametrize("many", [draws.MANY, 0], ids=["one by one", "together"])
@LIGHT
@given(st.integers(1, 8), st.integers(0, 10_000), st.floats(0.01, 0.95))
def test_a_part_of_each_client_by_class(many, clients, seed, fraction):
    with mock.patch.object(draws, "MANY", many):
        check_parts(clients, seed, fraction)


def check_parts(clients, seed, fraction):
    whole = divide(clients=clients, seed=seed)
    data = validation.hold_out(whole, fraction, seed)
    for client, (everything, kept, held) in enumerate(zip(whole.train_index, data.train_index, data.validation_index, strict=True)):
        assert len(held) == int(fraction * len(everything))
        np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), everything)
        exact = fraction * whole.label_table[client]
        found = np.bincount(data.train.y[held], minlength=data.classes)
        assert np.all(np.abs(found - exact) < 2)  # rounded down in all, and each class up or down
        np.testing.assert_array_equal(data.label_table[client], whole.label_table[client] - found)
    for before, after in zip(whole.test_index, data.test_index, strict=True):
        np.testing.assert_array_equal(before, after)
    assert data.partition_hash == validation.hold_out(whole, fraction, seed).partition_hash
    assert (data.partition_hash != whole.partition_hash) == any(len(rows) for rows in data.validation_index)


def test_a_number_of_rows():
    data = validation.hold_out(divide(), 3, 0)
    assert {len(rows) for rows in data.validation_index} == {3}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (1.0, r"data.validation=1.0 must be a fraction in \(0, 1\)"),
        (0, "data.validation=0 must be"),
        (True, "data.validation=True must be"),
        (1000, r"data.validation=1000: client 0 has \d+ training rows; it must be at most \d+, or a fraction"),
    ],
)
def test_impossible_parts_are_refused(part, message):
    with pytest.raises(ValueError, match=message):
        validation.hold_out(divide(), part, 0)


def test_once_is_enough():
    with pytest.raises(ValueError, match="have validation rows already"):
        validation.hold_out(validation.hold_out(divide(), 0.2, 0), 0.2, 0)
