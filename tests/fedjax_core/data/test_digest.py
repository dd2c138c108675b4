"""The digest of what a data set holds."""

import dataclasses
import itertools
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_core.algorithm import Examples
from fedjax_core.data import digest, federated_data, poisoning, row_readers, sources

X = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
Y = (np.arange(60) % 3).astype(np.int32)


def divided(x=X, y=Y, test_x=X[:9], test_y=Y[:9]):
    of = sources.from_arrays(x, y, test_x, test_y, class_names=("a", "b", "c"))
    return federated_data.from_index(of, [np.arange(30), np.arange(30, len(y))], [[0], [1]])


def changed(array, row):
    array = np.array(array)
    array[row] = array[row] + 1 if array.ndim > 1 else (array[row] + 1) % 3
    return array


def test_any_input_and_any_target_counts():
    every = [
        divided(),
        *(divided(x=changed(X, row)) for row in (0, 31, 59)),
        divided(y=changed(Y, 59)),
        divided(test_x=changed(X[:9], 8)),
        divided(test_y=changed(Y[:9], 4)),
        divided(x=X.astype(np.int32), test_x=X[:9].astype(np.int32)),
    ]
    assert len({digest.digest_data(data).digest for data in every}) == len(every)
    assert digest.digest_data(divided()) == digest.digest_data(divided(x=X.copy()))
    assert not digest.digest_data(divided()).sampled


def test_the_digest_is_the_same_on_every_machine():
    """Directories of runs keep it."""
    data = divided(np.arange(300, dtype=np.float32).reshape(60, 5), Y, np.zeros((9, 5), np.float32))
    found = digest.digest_data(data).digest
    assert found == "sha256/1:d580c575828b69cd8ce0806788bc13c792a191322de39c31b0a30d67ea9de6e9"


@pytest.mark.parametrize("whole", [2**26, 300])
def test_it_does_not_matter_where_rows_are(tmp_path, monkeypatch, whole):
    """In memory, in a file, on a device, and in the other order of bytes; read whole or in part,
    and by the file alone.
    """
    monkeypatch.setattr(digest, "WHOLE", whole)
    monkeypatch.setattr(digest, "_BLOCK", 64)
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = digest.digest_examples("some", Examples(X, Y))
    assert bool(found.sampled) == (whole == 300)
    for x in (jnp.asarray(X), X.astype(">f4"), np.asfortranarray(X)):
        assert digest.digest_examples("some", Examples(x, Y)) == found
    with mock.patch.object(row_readers._File, "read", autospec=True, side_effect=row_readers._File.read) as read:
        assert digest.digest_examples("some", Examples(mapped, Y)) == found
    number = sum(len(call.args[1]) for call in read.call_args_list)
    assert number == (60 if whole == 2**26 else 15)
    with open(tmp_path / "x.npy", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(OSError, match="has become shorter than its array"):
        digest.digest_examples("some", Examples(mapped, Y))


def test_rows_of_a_deleted_file_are_read_through_the_mapping(tmp_path):
    """As those that `plan.data=disk` puts into a file without a name."""
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    (tmp_path / "x.npy").unlink()
    data = divided()
    held = dataclasses.replace(data, train=Examples(mapped, data.train.y))
    assert digest.digest_data(held) == digest.digest_data(data)


def test_of_a_large_array_runs_of_rows_are_read(monkeypatch):
    monkeypatch.setattr(digest, "WHOLE", 20 * 12)
    monkeypatch.setattr(digest, "SPANS", 4)
    assert digest._sample(60, 20) == [(0, 3), (19, 22), (38, 41), (57, 60)]
    found = digest.digest_data(divided())
    assert found.sampled == {"train/x": "12 of 60 rows"}
    assert digest.digest_data(divided(x=changed(X, 20))).digest != found.digest
    assert digest.digest_data(divided(x=X + 1)).digest != found.digest


@pytest.mark.parametrize("row_bytes", [1, 3072, 2**20, 2**28])
def test_a_sample_is_about_as_much_as_may_be_read(row_bytes):
    number = 2**38 // row_bytes
    spans = digest._sample(number, row_bytes)
    assert spans[0][0] == 0
    assert spans[-1][1] == number
    assert sum(stop - start for start, stop in spans) * row_bytes <= max(digest.WHOLE, 2 * row_bytes)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    assert len(spans) <= digest.SPANS


def test_what_attackers_make_of_their_rows_does_not_count():
    """It follows from the others and from the config, and a table knows the data alone."""
    data = divided()
    found = poisoning.poison_clients(data, [poisoning.label_flip()], [1], seed=0)
    assert found.poisoned_rows == 30
    assert digest.digest_data(found) == digest.digest_data(data)
    assert digest.digest_data(dataclasses.replace(found, poisoned_rows=0)) != digest.digest_data(data)
