from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import fedavg
from fedjax_core import experiment
from fedjax_core.algorithm import Examples
from fedjax_core.data import apportion, federated_data, hold_out, partition, sources
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.data.sources.dataset_sizes import Size, mock_dataset
from tests.fedjax_core.data.sources.written import pacs

LIGHT = settings(max_examples=10, deadline=None)


def toy(classes=4, rows=60, test_rows=20, seed=0):
    """A data set whose pixel says which row it is."""
    rng = np.random.default_rng(seed)
    parts = []
    for number in (rows, test_rows):
        y = rng.permutation(np.repeat(np.arange(classes), number))
        parts += [np.arange(len(y), dtype=np.float32)[:, None], y]
    names = tuple("abcdefgh"[:classes])
    domains = {"train_domains": np.arange(classes * rows) % 2, "test_domains": np.arange(classes * test_rows) % 2}
    ids = {"train_clients": np.arange(classes * rows) % 7, "test_clients": np.arange(classes * test_rows) % 7}
    return sources.from_arrays(*parts, class_names=names, name="toy", **domains, **ids)


DATA = toy()
DIRICHLET = {"name": "dirichlet", "alpha": 0.5}


def divide(scheme=None, clients=5, seed=0, **options):
    return federated_data.federate(DATA, scheme or DIRICHLET, clients, seed, **options)


def test_tables_count_what_the_lists_index():
    data = divide()
    assert (data.clients, data.classes, data.class_names, data.name) == (5, 4, ("a", "b", "c", "d"), "toy")
    for i in range(5):
        assert data.label_table[i].tolist() == [int(np.sum(data.train.y[data.train_index[i]] == c)) for c in range(4)]
        assert data.test_label_table[i].tolist() == [int(np.sum(data.test.y[data.test_index[i]] == c)) for c in range(4)]
    assert data.label_table.sum(0).tolist() == [60] * 4
    assert data.train is DATA.train
    assert data.test is DATA.test


def test_a_notebook_shows_one_line():
    assert repr(DATA) == "Dataset('toy': 240 training and 80 test examples (1,) float32, 4 outputs)"
    assert repr(divide()) == "FederatedData('toy': 5 clients, with 240 training and 80 test examples)"


def test_the_lists_are_those_of_the_partition():
    expected = partition.dirichlet(DATA.train.y, 5, 3, alpha=0.5)
    for got, wanted in zip(divide(seed=3).train_index, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_partition_may_be_written_as_in_a_config():
    assert divide("dirichlet(alpha=0.5)").partition_hash == divide(DIRICHLET).partition_hash
    assert divide("iid").partition_hash == divide({"name": "iid"}).partition_hash
    with pytest.raises(ValueError, match="unknown partition 'dirichelt'"):
        divide("dirichelt(alpha=0.5)")
    with pytest.raises(ValueError, match="needs a name"):
        divide({"alpha": 0.5})


# -- the hash


def test_the_hash_follows_the_lists():
    data = divide()
    assert data.partition_hash == divide().partition_hash
    assert len(data.partition_hash) == 64
    hashes = {data.partition_hash, divide(seed=1).partition_hash, divide(clients=6).partition_hash}
    hashes |= {
        divide(test_split="all").partition_hash,
        hold_out.hold_out_validation(divide(), 0.5, 0).partition_hash,
    }
    assert len(hashes) == 5


def test_the_hash_is_that_of_every_machine():
    """sha256 over numbers written out by hand: lengths as 64-bit, examples as 32-bit little-endian."""
    import hashlib
    import struct

    data = federated_data.from_index(DATA, [[2, 1], [5]], [[0], []])
    train = struct.pack("<3q", 2, 2, 1) + struct.pack("<3i", 1, 2, 5)
    test = struct.pack("<3q", 2, 1, 0) + struct.pack("<1i", 0)
    held = struct.pack("<3q", 2, 0, 0)
    assert data.partition_hash == hashlib.sha256(train + test + held).hexdigest()


# -- clients' own test examples


@LIGHT
@given(st.integers(1, 12), st.integers(0, 10_000), st.sampled_from([0.01, 0.3, 10.0]))
def test_proportional_test_rows_are_disjoint_and_follow_the_training_rows(clients, seed, alpha):
    data = divide({"name": "dirichlet", "alpha": alpha, "min_size": 0}, clients, seed)
    together = np.concatenate(data.test_index)
    assert len(together) == len(np.unique(together)) == len(DATA.test.y)
    assert np.abs(data.test_label_table - data.label_table * 20 / 60).max() < 1


def balanced():
    """200 clients, each with one example of each of 10 classes, and 50 test examples of each."""
    y = np.tile(np.arange(10), 200)
    x = np.zeros((2000, 1), np.float32)
    return sources.from_arrays(x, y, x[:500], y[:500]), np.arange(2000).reshape(200, 10)


def test_clients_with_equal_data_have_as_many_test_examples():
    data = federated_data.from_index(*balanced())
    assert set(data.test_label_table.sum(1)) == {2, 3}
    assert data.test_label_table.sum(0).tolist() == [50] * 10
    assert abs(data.test_label_table[:100].sum() - 250) < 25  # the first clients have no more


def test_proportional_test_examples_are_drawn():
    rows = divide("iid", 2).test_index[0]
    for c in range(4):
        places = np.flatnonzero(np.isin(np.flatnonzero(DATA.test.y == c), rows))
        assert np.ptp(places) >= len(places)


@pytest.mark.parametrize("many", [apportion.MANY, 0], ids=["one by one", "together"])
def test_matched_leaves_out_no_class(monkeypatch, many):
    monkeypatch.setattr(apportion, "MANY", many)
    dataset, lists = balanced()
    data = federated_data.federate(dataset, lambda clients: list(lists), 200, test_split="matched", test_examples=4)
    assert np.abs(data.test_label_table.sum(0) - 80).max() < 30
    assert np.isin(range(490, 500), np.concatenate(data.test_index)).sum() >= 5  # the last ones of each class, too


def test_proportional_leaves_out_classes_that_nobody_trains_on():
    only_b = np.flatnonzero(DATA.train.y == 1)
    data = federated_data.from_index(DATA, [only_b[:20], only_b[20:], []])
    assert data.test_label_table.tolist() == [[0, 7, 0, 0], [0, 13, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("many", [apportion.MANY, 0], ids=["one by one", "together"])
@LIGHT
@given(st.integers(1, 8), st.integers(0, 10_000))
def test_matched_test_rows_have_the_training_distribution(many, clients, seed):
    with mock.patch.object(apportion, "MANY", many):
        data = divide({"name": "dirichlet", "alpha": 2.0}, clients, seed, test_split="matched", test_examples=15)
    assert {len(rows) for rows in data.test_index} == {15}
    shares = data.label_table / data.label_table.sum(1, keepdims=True)
    assert np.abs(data.test_label_table - 15 * shares).max() < 1
    for rows in data.test_index:
        assert len(np.unique(rows)) == 15


@pytest.mark.parametrize("many", [apportion.MANY, 0], ids=["one by one", "together"])
def test_matched_says_how_many_rows_there_are(monkeypatch, many):
    monkeypatch.setattr(apportion, "MANY", many)
    one_class = {"name": "pathological", "classes_per_client": 1}
    with pytest.raises(ValueError, match=r"wants 21 of the 20 test examples of class \d; test_examples=21 must be <= 20"):
        divide(one_class, 4, test_split="matched", test_examples=21)
    assert divide(one_class, 4, test_split="matched", test_examples=20).test_label_table.max(1).tolist() == [20] * 4
    untested = DATA.select(test=DATA.test.y != 0)
    with pytest.raises(ValueError, match=r"has \d+ training examples of class 0, which has no test example; take another"):
        federated_data.federate(untested, one_class, 4, 0, test_split="matched", test_examples=5)


def test_lists_by_offsets_are_lists():
    """Shared ones too, sorted or not; what they are hashed to does not depend on how they lie."""
    shared = RaggedIndex(np.array([4, 5, 6, 9, 8]), np.array([0, 0, 1, 3, 5]), np.array([3, 3, 2, 2, 0]))
    plain = [[4, 5, 6], [4, 5, 6], [5, 6], [8, 9], []]
    mine, theirs = (federated_data.from_index(DATA, lists, [[0]] * 5) for lists in (shared, plain))
    assert [rows.tolist() for rows in mine.train_index] == plain
    assert mine.partition_hash == theirs.partition_hash
    with pytest.raises(ValueError, match=r"train_index has example indices from 4 to 9: must lie in \[0, 9\)"):
        federated_data._check_lists("train_index", shared, 9)


def test_all_is_the_whole_test_set_for_everyone():
    data = divide(test_split="all")
    for rows in data.test_index:
        np.testing.assert_array_equal(rows, np.arange(80))


def test_a_partition_with_test_rows_of_its_own_keeps_them():
    scheme = {"name": "dirichlet_clients", "alpha": 1.0, "train_examples": 30, "test_examples": 12}
    for test_split in (None, "partition"):
        data = divide(scheme, test_split=test_split)
        assert {len(rows) for rows in data.train_index} == {30}
        assert {len(rows) for rows in data.test_index} == {12}
    assert {len(rows) for rows in divide(scheme, test_split="all").test_index} == {80}
    domains = divide({"name": "by_domain"}, 2)
    assert [set(rows % 2) for rows in domains.test_index] == [{0}, {1}]
    natural = divide({"name": "natural"}, 7)
    assert [set(rows % 7) for rows in natural.test_index] == [{i} for i in range(7)]
    with pytest.raises(ValueError, match="test_split='partition': 'dirichlet' defines no test examples"):
        divide(test_split="partition")


# -- before and after the partition


def test_long_tail_comes_first_and_spares_the_test_set():
    data = divide(long_tail=10.0)
    assert data.label_table.sum(0).tolist() == [60, 27, 12, 6]
    kept = partition.long_tail(DATA.train.y, 0, rho=10.0)
    np.testing.assert_array_equal(np.sort(np.concatenate(data.train_index)), kept)
    assert data.test_label_table.sum(0).tolist() == [20] * 4
    by_domain = divide({"name": "by_domain"}, 2, long_tail=10.0)
    assert [set(rows % 2) for rows in by_domain.train_index] == [{0}, {1}]


def test_long_tails_leave_the_test_set_balanced():
    """The profile of Cao et al. 2019 on as many examples as CIFAR-10's test split has."""
    balanced = mock_dataset(Size(10_000, 10_000, (1,), 10), "balanced")
    for rho in (10, 50, 100):
        data = federated_data.federate(balanced, {"name": "dirichlet", "alpha": 0.2}, 20, 0, long_tail=rho)
        assert data.label_table.sum(0).tolist() == [int(1000 * rho ** (-j / 9) + 1e-9) for j in range(10)]
        assert data.test_label_table.sum(0).tolist() == [1000] * 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": {"alpha": 0.5}}, "needs a name"),
        ({"scheme": {"name": "dirichlet", "alpha": -1}}, "alpha=-1 must be positive"),
        ({"clients": 241}, "241 clients for 240 examples"),
        ({"test_split": "propotional"}, "unknown test split 'propotional'.*Did you mean 'proportional'"),
        ({"test_split": "matched"}, "test_split='matched' with test_examples=None"),
        ({"test_examples": 5}, "test_split=None with test_examples=5"),
        ({"test_split": "matched", "test_examples": 0}, "test_examples=0: must be >= 1"),
        ({"long_tail": 0.1}, "long_tail=0.1: rho=0.1: must be"),
        ({"seed": -3}, "data seed -3"),
    ],
)
def test_impossible_requests_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        divide(**options)


def test_misaligned_data_sets_are_refused():
    short = DATA._replace(train=Examples(DATA.train.x[:-1], DATA.train.y))
    with pytest.raises(ValueError, match=r"train: labels int32 .* for 239 examples"):
        federated_data.federate(short, DIRICHLET, 3, 0)
    unnamed = DATA._replace(class_names=("a", "b", "c"))
    with pytest.raises(ValueError, match=r"train: labels from 0 to 3: must lie in \[0, 3\)"):
        federated_data.from_index(unnamed, [[0]])


# -- own lists


def test_from_index_takes_lists_as_they_are():
    data = federated_data.from_index(DATA, [[3, 1], np.array([1, 2, 239])], [[0], []])
    assert [rows.tolist() for rows in data.train_index] == [[1, 3], [1, 2, 239]]
    assert [rows.tolist() for rows in data.test_index] == [[0], []]
    assert data.test_label_table.sum(1).tolist() == [1, 0]


def test_from_index_takes_mappings_and_iterables():
    by_user = {"ann": [3, 1], "bob": np.array([2]), "eve": [5]}
    data = federated_data.from_index(DATA, by_user, {"eve": [7], "ann": [0]})
    assert [rows.tolist() for rows in data.train_index] == [[1, 3], [2], [5]]
    assert [rows.tolist() for rows in data.test_index] == [[0], [], [7]]
    assert data.client_names == ("ann", "bob", "eve")
    for lists in (by_user.values(), (rows for rows in by_user.values()), dict(enumerate(by_user.values()))):
        same = federated_data.from_index(DATA, lists, [[0], [], [7]])
        assert (same.partition_hash, same.client_names) == (data.partition_hash, ())
    with pytest.raises(ValueError, match="test_index has the client 'joe': must be one of those of train_index"):
        federated_data.from_index(DATA, by_user, {"joe": [0]})


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([[0, 240]], None, r"train_index\[0\] has example indices from 0 to 240: must lie in \[0, 240\)"),
        ([[0], [-1]], None, r"train_index\[1\] has example indices from -1"),
        ([[0.5]], None, r"train_index\[0\] has shape \(1,\) and type float64"),
        ([[0], [1]], [[0]], "train_index has 2 lists and test_index 1"),
        ([[0]], [[80]], r"test_index\[0\] has example indices from 80 to 80: must lie in \[0, 80\)"),
        ([], None, "train_index has no lists"),
        ({1: [0], "1": [1]}, None, "train_index has '1' more than once: names must differ"),
        ([[0], [1]], {"u1": [1], "u0": [0]}, "test_index is a mapping of client names, and train_index lists without names"),
    ],
)
def test_from_index_refuses_what_does_not_fit(train, test, message):
    with pytest.raises(ValueError, match=message):
        federated_data.from_index(DATA, train, test)


# -- pooled, summary


def test_pooled_does_not_depend_on_the_partition():
    pooled = [federated_data.pool_clients(divide(scheme)) for scheme in (DIRICHLET, {"name": "iid"}, {"name": "shards"})]
    assert len({data.partition_hash for data in pooled}) == 1
    assert pooled[0].clients == 1
    np.testing.assert_array_equal(pooled[0].train_index[0], np.arange(240))
    np.testing.assert_array_equal(pooled[0].test_index[0], np.arange(80))


def test_the_pooled_client_is_tested_as_often_as_clients_are():
    """So that its score is the clients' mean, weighted by their test examples."""
    shared, own, overlapping = (
        federated_data.pool_clients(federated_data.from_index(DATA, [[1], [2], [3]], test)).test_index[0].tolist()
        for test in ([[7, 3], [3, 7], [3, 7]], [[7], [2], [4]], [[7, 3], [3], [3]])
    )
    assert (shared, own, overlapping) == ([3, 7], [2, 4, 7], [3, 3, 3, 7])


def test_the_pooled_client_has_a_name_where_clients_have_names():
    """Names of unseen clients follow it."""
    data = federated_data.from_index(DATA, {"ann": [3, 1], "bob": [2]})
    assert federated_data.pool_clients(data).names_of_all == ("all clients",)
    assert federated_data.pool_clients(divide()).names_of_all == ()


def test_pooled_holds_each_row_once():
    data = federated_data.from_index(DATA, [[5, 1], [1, 7], [7, 5]])
    assert federated_data.pool_clients(data).train_index[0].tolist() == [1, 5, 7]
    held = hold_out.hold_out_validation(divide(), 0.2, 0)
    assert federated_data.pool_clients(held).validation_index[0].tolist() == sorted(np.concatenate(held.validation_index))


def test_summary_shows_the_table():
    data = federated_data.from_index(DATA, [np.flatnonzero(DATA.train.y == 0), [0, 1, 2]], [[0], []])
    lines = federated_data.format_summary(data).splitlines()
    assert lines[0].startswith("toy: 240 training and 80 test examples, 4 classes, 2 clients, partition ")
    assert data.partition_hash[:12] in lines[0]
    assert "smallest 3, median 31.5, largest 60" in lines[1]
    assert lines[3].split() == ["0", "60", "1", "|", "60", "0", "0", "0"]
    assert lines[4].split()[:4] == ["1", "3", "0", "|"]
    assert lines[4].split()[4:] == [str(n) for n in data.label_table[1]]


def test_summary_is_cut():
    data = federated_data.federate(toy(classes=8), {"name": "iid"}, 30, 0)
    lines = federated_data.format_summary(data, max_clients=4, max_classes=3).splitlines()
    assert len(lines) == 2 + 1 + 4 + 1
    assert lines[2].endswith("... 5 more")
    assert lines[-1] == "... 26 more clients"
    assert len(lines[3].split("|")[1].split()) == 3


def test_the_summary_of_many_clients_has_no_line_for_each():
    data = federated_data.federate(toy(classes=4), {"name": "iid"}, 60, 0)
    lines = federated_data.format_summary(data).splitlines()
    assert lines[2] == "deciles of training examples: 4, 4, 4, 4, 4, 4, 4, 4, 4"
    assert lines[3] == "training examples of each class: " + ", ".join(f"{name} 60" for name in data.class_names)
    assert len(lines) == 4


# -- real data


def test_pacs_by_domain(shared_data):
    """With 20 % test examples no domain but sketch has the 500 of the paper; photo has 1670 in all."""
    scheme = {"name": "by_domain", "train_examples": 1000}
    with pytest.raises(ValueError, match=r"domain 0 has 410 test examples for 1 clients, 410 each; test_examples=500"):
        federated_data.federate(pacs(shared_data), scheme | {"test_examples": 500}, 4, 0)
    data = federated_data.federate(pacs(shared_data), scheme | {"test_examples": 300}, 4, 0)
    assert data.label_table.sum(1).tolist() == [1000] * 4
    assert data.test_label_table.sum(1).tolist() == [300] * 4


def test_natural_clients_are_called_as_the_data_call_them():
    x, y = np.zeros((12, 2), np.float32), np.arange(12) % 2
    whose = np.repeat([0, 1, 2], 4)
    names = ("north\x1b[31m", "south", "a name of more than twenty signs")
    mine = sources.from_arrays(x, y, x, y, ("=1", "b\nc"), train_clients=whose, test_clients=whose, client_names=names)
    data = federated_data.federate(mine, "natural")
    assert (data.clients, data.client_names) == (3, names)
    text = federated_data.format_summary(data)
    assert "\x1b" not in text
    assert [line.split()[0] for line in text.splitlines()[3:]] == [r"north\x1b[31m", "south", "a"]
    some = federated_data.federate(mine, "natural", 2, seed=1)
    assert len(some.client_names) == 2
    for i, name in enumerate(some.client_names):
        assert {names[whose[row]] for row in some.train_index[i]} == {name}
    apart = hold_out.hold_out_clients(data, 1, seed=0)
    assert apart.unseen is not None
    assert sorted(apart.client_names + apart.unseen.names) == sorted(names)
    assert apart.names_of_all == apart.client_names + apart.unseen.names
    assert federated_data.federate(mine, "iid", 3).client_names == ()
    numbered = sources.from_arrays(x, y, x, y, train_clients=whose * 5 + 7)
    assert federated_data.federate(numbered, "natural").client_names == ("7", "12", "17")
    assert federated_data.pool_clients(data).client_names == ("all clients",)
    with pytest.raises(ValueError, match="client_names has 3 names without train_clients: give both"):
        sources.from_arrays(x, y, x, y, client_names=names)


def test_a_partition_may_be_a_function():
    images = np.zeros((6, 2, 2, 1), np.uint8)
    dataset = sources.from_arrays(images, [0, 1, 0, 1, 0, 1], images, [0, 1, 0, 1, 0, 1], class_names=("a", "b"))

    def by_label(labels, clients):
        return [np.flatnonzero(labels == i) for i in range(clients)]

    assert federated_data.federate(dataset, by_label, 2).label_table.tolist() == [[3, 0], [0, 3]]
    with pytest.raises(ValueError, match="train_index is one list of 4 numbers: must be a list of index lists, one per client"):
        federated_data.from_index(dataset, np.arange(4))
    with pytest.raises(TypeError, match=r"data is a Dataset, .* give federated_data.federate\("):
        experiment.build(fedavg.get_config("smoke"), dataset)
