"""`test_split="merged"`: training and test set are divided together, and each client's examples 75 to 25."""

import math

import numpy as np
import pytest

from configs import fedavg
from fedjax_core import experiment
from fedjax_core.data import federated_data, partition, sources

TRAIN, TEST, CLASSES = 90, 30, 3
X = np.arange(TRAIN + TEST, dtype=np.int32)[:, None]  # an example is its number
Y = (X[:, 0] * 7 % CLASSES).astype(np.int32)
NAMES = ("a", "b", "c")


def dataset(**columns):
    return sources.from_arrays(X[:TRAIN], Y[:TRAIN], X[TRAIN:], Y[TRAIN:], class_names=NAMES, **columns)


def numbers(data):
    """Returns the numbers of each client's training and test examples."""
    parts = ((data.train, data.train_index), (data.test, data.test_index))
    train, test = ([set(np.asarray(part.x)[rows, 0].tolist()) for rows in index] for part, index in parts)
    return train, test


def check_quarters(train, test, whole):
    for own, tests, every in zip(train, test, whole, strict=True):
        assert own | tests == set(every)
        assert not own & tests
        assert len(tests) == math.ceil(len(every) / 4)


def test_each_clients_examples_are_those_of_the_partition_of_all():
    data = federated_data.federate(dataset(), "dirichlet(alpha=0.5, min_size=4)", 5, seed=3, test_split="merged")
    whole, _ = partition.make("dirichlet", {"labels": Y}, 5, 3, alpha=0.5, min_size=4)
    train, test = numbers(data)
    check_quarters(train, test, whole)
    assert any(number >= TRAIN for own in train for number in own)
    assert any(number < TRAIN for tests in test for number in tests)
    for part in (data.train, data.test):
        np.testing.assert_array_equal(part.y, Y[np.asarray(part.x)[:, 0]])
    assert sorted([*np.asarray(data.train.x)[:, 0], *np.asarray(data.test.x)[:, 0]]) == list(range(TRAIN + TEST))
    assert data.label_table.sum() + data.test_label_table.sum() == TRAIN + TEST


def test_the_draw_is_random_and_of_the_seed():
    draws = [numbers(federated_data.federate(dataset(), "iid", 2, seed=seed, test_split="merged")) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    own, tests = draws[0][0][0] | draws[0][1][0], draws[0][1][0]
    assert set(sorted(own)[: len(tests)]) != tests != set(sorted(own)[-len(tests) :])


def test_natural_clients_keep_theirs_and_their_names():
    of_train, of_test = np.arange(TRAIN) % 4, np.arange(TEST) % 4
    data = dataset(train_clients=of_train, test_clients=of_test, client_names=("w", "x", "y", "z"))
    federated = federated_data.federate(data, "natural", test_split="merged")
    whole = [[*np.flatnonzero(of_train == i), *TRAIN + np.flatnonzero(of_test == i)] for i in range(4)]
    check_quarters(*numbers(federated), whole)
    assert federated.client_names == ("w", "x", "y", "z")


def test_a_client_with_one_example_trains_on_it():
    data = dataset(train_clients=np.minimum(np.arange(TRAIN), 1), test_clients=np.ones(TEST, int))
    federated = federated_data.federate(data, "natural", test_split="merged")
    assert len(federated.train_index[0]) == 1
    assert len(federated.test_index[0]) == 0


@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        ("overlapping_dirichlet", "share examples"),
        ("dirichlet_clients(alpha=0.5, train_examples=9, test_examples=3)", "defines test examples itself"),
        ("natural", "needs the client of each example"),
    ],
)
def test_what_cannot_be_merged_is_refused(scheme, says):
    with pytest.raises(ValueError, match=says):
        federated_data.federate(dataset(), scheme, 5 if scheme != "natural" else None, test_split="merged")


def test_clients_of_training_examples_alone_cannot_be_merged():
    with pytest.raises(ValueError, match=r"needs the client of each test example, too, .* \(test_clients is None\)"):
        federated_data.federate(dataset(train_clients=np.arange(TRAIN) % 4), "natural", test_split="merged")


def test_inputs_of_a_config_depend_on_its_partition():
    config, other = fedavg.get_config("smoke"), fedavg.get_config("smoke")
    other.data.seed = 1
    assert experiment.name_inputs(config) == experiment.name_inputs(other)
    config.data.test_split = other.data.test_split = "merged"
    assert experiment.name_inputs(config) != experiment.name_inputs(other)


def test_a_limit_of_training_examples_is_refused():
    config = fedavg.get_config("smoke")
    config.data.update(examples=100, test_split="merged")
    with pytest.raises(ValueError, match=r"data.examples=100 limits training examples; data.test_split='merged' joins them with"):
        experiment.dataset(config)
