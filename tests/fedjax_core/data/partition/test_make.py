import inspect

import numpy as np
import pytest

from fedjax_core import registry
from fedjax_core.data import partition
from tests.fedjax_core.data.partition.labels import BALANCED, CALLS, COLUMNS


def flat(result):
    return [part for half in result if half is not None for part in half]


def test_every_scheme_is_called_here():
    assert set(CALLS) == set(partition.SCHEMES)


@pytest.mark.parametrize("name", CALLS)
def test_partitions_depend_on_the_seed_alone(name):
    before = {key: values.copy() for key, values in COLUMNS.items()}
    np.random.seed(1)  # noqa: NPY002
    first = partition.make(name, COLUMNS, 6, 3, **CALLS[name])
    np.random.seed(2)  # noqa: NPY002
    again = partition.make(name, COLUMNS, 6, 3, **CALLS[name])
    other = partition.make(name, COLUMNS, 6, 4, **CALLS[name])
    for a, b in zip(flat(first), flat(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(flat(first), flat(other), strict=True))
    for key, values in COLUMNS.items():
        np.testing.assert_array_equal(values, before[key])


@pytest.mark.parametrize("name", partition.SCHEMES)
def test_more_clients_than_rows_or_none_at_all_are_refused(name):
    scheme, options = partition.SCHEMES[name], CALLS[name]
    takes = inspect.signature(scheme).parameters
    given = {key: values for key, values in COLUMNS.items() if key in takes}
    for clients in (0, -1, 2.5):
        with pytest.raises(ValueError, match=f"clients={clients}: must be an integer >= 1"):
            scheme(**given, clients=clients, seed=0, **options)
    if not name.endswith("_clients"):  # those share examples
        with pytest.raises(ValueError, match="1001 clients"):
            scheme(**given, clients=1001, seed=0, **options)


@pytest.mark.parametrize("seed", [-1, 0.5, None, True])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(ValueError, match=r"data seed .* must be an integer >= 0"):
        partition.iid(BALANCED, 2, seed)


def test_bad_labels_are_refused():
    with pytest.raises(ValueError, match=r"labels of shape \(3,\) and type float64"):
        partition.iid(np.array([0.0, 1.0, 2.0]), 1, 0)
    with pytest.raises(ValueError, match="label -1 in row 1"):
        partition.iid(np.array([0, -1, 2]), 1, 0)


def test_other_infeasible_requests_are_refused():
    with pytest.raises(
        ValueError, match=r"4 clients with classes_per_client=2 hold 8 of 10 classes; needs classes_per_client >= 3"
    ):
        partition.pathological(BALANCED, 4, 0, classes_per_client=2)
    with pytest.raises(ValueError, match=r"classes_per_client=11: must lie in \[1, 10\]"):
        partition.pathological(BALANCED, 4, 0, classes_per_client=11)
    with pytest.raises(ValueError, match=r"classes_per_client=\(2, 11, 3\): must lie in \[1, 10\]"):
        partition.pathological(BALANCED, 3, 0, classes_per_client=(2, 11, 3))
    for wrong in ((2, 10), 2.5):
        with pytest.raises(ValueError, match=r"must be an integer, or 3 of them, one per client"):
            partition.pathological(BALANCED, 3, 0, classes_per_client=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"class \d has 2 examples for 3 holders"):
        partition.pathological(np.repeat(np.arange(2), 2), 3, 0, classes_per_client=2)
    with pytest.raises(ValueError, match=r"shards_per_client=11 for 100 clients and 1000 examples: must lie in \[1, 10\]"):
        partition.shards(BALANCED, 100, 0, shards_per_client=11)
    with pytest.raises(ValueError, match=r"min_share=0.3 for 5 clients: must lie in \[0, 1/5 = 0.2\]"):
        partition.dirichlet(BALANCED, 5, 0, alpha=1.0, min_share=0.3)
    with pytest.raises(ValueError, match=r"min_share=0.1 with balanced=True"):
        partition.dirichlet(BALANCED, 5, 0, alpha=1.0, min_share=0.1, balanced=True)
    with pytest.raises(ValueError, match=r"self_balancing=True with min_share=0.1: .* set one of them"):
        partition.dirichlet(BALANCED, 5, 0, alpha=1.0, min_share=0.1, self_balancing=True)
    with pytest.raises(ValueError, match=r"self_balancing=True with balanced=True"):
        partition.dirichlet(BALANCED, 5, 0, alpha=1.0, balanced=True, self_balancing=True)
    with pytest.raises(ValueError, match=r"train_examples=1001: must lie in \[1, 1000\]"):
        partition.overlapping_dirichlet(BALANCED, 5, 0, train_examples=1001)


def test_make_explains_names_options_and_missing_columns():
    with pytest.raises(ValueError, match=r"unknown partition 'dirichlt'; allowed: iid, dirichlet.*Did you mean 'dirichlet'\?"):
        partition.make("dirichlt", COLUMNS, 3, 0)
    with pytest.raises(TypeError, match=r"partition 'dirichlet' has no option 'alhpa'.*Did you mean 'alpha'\?"):
        partition.make("dirichlet", COLUMNS, 3, 0, alhpa=1.0)
    with pytest.raises(TypeError, match="partition 'dirichlet' needs the option 'alpha'"):
        partition.make("dirichlet", COLUMNS, 3, 0)
    with pytest.raises(ValueError, match=r"partition 'natural' needs the client of each example .*, and the data have none"):
        partition.make("natural", {"labels": BALANCED}, 3, 0)


OUTSIDE = """
import numpy as np

def turns(labels, clients, *, step: int = 1, returns=None):
    index = [np.arange(i, len(labels), clients * step)[::-1] for i in range(clients)]
    return {None: index, "pair": (index, index), "few": index[1:], "far": [[len(labels)]] * clients, "int": 3,
            "twice": [index[0], *(np.repeat(part, 2) for part in index[1:])]}[returns]
"""


def test_a_partition_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(OUTSIDE)
    mine = f"{tmp_path}/mine.py:turns"
    train, test = partition.make(mine, COLUMNS, 4, 0, step=100)
    assert [part.tolist() for part in train] == [[i, i + 400, i + 800] for i in range(4)]
    assert (train[0].dtype, test) == (np.int32, None)
    assert len(partition.make(mine, COLUMNS | {"test_labels": BALANCED}, 4, 0, returns="pair")[1] or ()) == 4
    with pytest.raises(TypeError, match=r"mine\.py:turns' returned 3 lists: must be a list of 4 index lists, or two of them"):
        partition.make(mine, COLUMNS, 4, 0, returns="few")
    with pytest.raises(TypeError, match=r"mine\.py:turns' returned int: must be a list of 4"):
        partition.make(mine, COLUMNS, 4, 0, returns="int")
    with pytest.raises(
        ValueError, match=r"training examples of client 0 has example indices from 1000 to 1000: must lie in \[0, 1000\)"
    ):
        partition.make(mine, COLUMNS, 4, 0, returns="far")
    with pytest.raises(
        ValueError, match=r"turns': test examples of client 0 has example indices from 0 to 996: must lie in \[0, 400\)"
    ):
        partition.make(mine, COLUMNS, 4, 0, returns="pair")


def test_examples_without_a_client_or_twice_in_one_are_named(tmp_path, caplog):
    (tmp_path / "mine.py").write_text(OUTSIDE)
    mine = f"{tmp_path}/mine.py:turns"
    partition.make(mine, COLUMNS, 4, 0)
    assert not caplog.messages
    partition.make(mine, COLUMNS, 4, 0, step=100)
    partition.make(mine, COLUMNS, 4, 0, returns="twice")
    missing, twice = caplog.messages
    assert missing.endswith("mine.py:turns': 988 of 1000 training examples have no client")
    assert twice.endswith("mine.py:turns': client 1 has training example 1 2 times, which counts as often")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("dirichlet", {"alpha": 1.0, "min_size": "x"}, "partition.min_size='x' must be an int, at least 0"),
        ("dirichlet", {"alpha": 1.0, "min_share": 2}, "partition.min_share=2 must be in"),
        ("shards", {"shards_per_client": 2.5}, "partition.shards_per_client=2.5 must be an int"),
        ("dirichlet_clients", {"alpha": 1.0, "train_examples": 0}, "train_examples=0 must be at least 1"),
    ],
)
def test_values_of_options_are_checked(name, options, said):
    with pytest.raises(ValueError, match=said):
        partition.make(name, COLUMNS, 4, 0, **options)


def test_a_scheme_cannot_write_to_the_labels():
    def careless(labels, clients):
        labels += 1
        return [np.arange(len(labels))] * clients

    labels = np.zeros(4, np.int32)
    spec = registry.ResolvedSpec("partition", "careless", "careless", {}, careless, "mine")
    with pytest.raises(ValueError, match="read-only"):
        partition.divide(spec, {"labels": labels}, 2, 0)
    assert labels.flags.writeable


def test_a_tuple_of_two_clients_lists_is_told():
    spec = registry.ResolvedSpec("partition", "two", "two", {}, lambda labels: (np.arange(3), np.arange(3, 6)), "mine")
    with pytest.raises(TypeError, match=r"must be a list of 2 index lists.* A tuple is \(lists of training, lists of test"):
        partition.divide(spec, {"labels": np.zeros(6, np.int32)}, 2, 0)
