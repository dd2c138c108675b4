"""Lists of examples by offsets against plain lists."""

import time

import numpy as np
import pytest

from fedjax_core.algorithm import Examples
from fedjax_core.data import federated_data, sources
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.engine.data_feed.device_arrays import make_index_table

LISTS = [[4, 5, 6], [], [2], [7, 8], []]


def test_they_read_like_a_tuple_of_arrays():
    lists = RaggedIndex.from_lists(LISTS)
    assert [rows.tolist() for rows in lists] == LISTS
    assert [rows.tolist() for rows in lists[1:4]] == LISTS[1:4]
    assert lists[-2].tolist() == [7, 8]
    assert lists[0].dtype == np.int32
    assert (len(lists), lists.total) == (5, 6)
    with pytest.raises(IndexError):
        lists[5]
    assert RaggedIndex.from_lists(lists) is lists
    assert len(RaggedIndex.from_lists([])) == 0


def test_a_list_that_all_share_is_there_once():
    everything = np.arange(100, dtype=np.int32)
    lists = RaggedIndex.from_lists([everything, np.array([3]), everything])
    assert len(lists.rows) == 101
    assert lists.total == 201
    assert lists[2].tolist() == list(range(100))
    counts = lists.count_labels(np.arange(100) % 3, 3)
    assert counts.tolist() == [[34, 33, 33], [1, 0, 0], [34, 33, 33]]


def test_some_clients_rows_together():
    lists = RaggedIndex.from_lists(LISTS)
    assert lists.concatenate().tolist() == [4, 5, 6, 2, 7, 8]
    assert lists.concatenate(np.array([3, 1, 0])).tolist() == [7, 8, 4, 5, 6]
    assert lists.concatenate(np.array([], int)).tolist() == []
    assert [rows.tolist() for rows in lists.select(np.array([2, 0]))] == [[2], [4, 5, 6]]


def test_counts_by_class(monkeypatch):
    labels = np.random.default_rng(0).integers(0, 4, 9)
    expected = [np.bincount(labels[np.array(rows, int)], minlength=4).tolist() for rows in LISTS]
    assert RaggedIndex.from_lists(LISTS).count_labels(labels, 4).tolist() == expected
    monkeypatch.setattr("fedjax_core.data.ragged_index._BLOCK", 2)  # fewer than a client's examples
    assert RaggedIndex.from_lists(LISTS).count_labels(labels, 4).tolist() == expected


@pytest.mark.parametrize(
    ("clients", "rows"), [(8_000, 400_000), pytest.param(342_477, 20_000_000, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_clients_that_the_data_name_cost_their_rows_and_little_more(clients, rows):
    """342,477 clients, the largest with 10,000 examples, 20 million rows: a padded table would take
    14 GB. The lists and the programs' table have the examples in common; with a device's copy they
    take less than 200 MB.
    """
    rng = np.random.default_rng(0)
    ids = np.concatenate([np.full(10_000, 7), np.arange(clients), rng.integers(0, clients, rows - 10_000 - clients)]).astype(
        np.int32
    )
    dataset = sources.Dataset(
        "many",
        Examples(np.zeros((rows, 1), np.uint8), np.zeros(rows, np.int32)),
        Examples(np.zeros((1, 1), np.uint8), np.zeros(1, np.int32)),
        ("a",),
        train_clients=ids,
        test_clients=np.zeros(1, np.int32),
    )
    start = time.process_time()
    data = federated_data.federate(dataset, {"name": "natural"}, clients, 0)
    table = make_index_table(RaggedIndex.from_lists(data.train_index))
    assert time.process_time() - start < 5 + rows / 1e6
    index = data.train_index
    assert isinstance(index, RaggedIndex)
    assert sum(part.nbytes for part in (index.rows, index.start, index.size)) == 4 * rows + 8 * clients
    assert len(index[7]) > 10_000
    assert (ids[index[7]] == 7).all()
    assert index.total == rows
    assert np.shares_memory(index.rows, table.rows)
    parts = [table.rows, table.start, table.size]  # `start` and `size` are the lists' own
    assert parts[1] is index.start
    assert parts[2] is index.size
    assert 2 * sum(part.nbytes for part in parts) < 10 * rows
