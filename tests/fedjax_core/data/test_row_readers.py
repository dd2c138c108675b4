"""Rows from memory and from files."""

import errno
from unittest import mock

import numpy as np
import pytest

from fedjax_core.algorithm import Examples
from fedjax_core.data import row_readers

X, Y = np.arange(60, dtype=np.float32).reshape(20, 3), np.arange(20, dtype=np.int32)
ROWS = np.array([0, 3, 4, 5, 19, 2, 2], np.int32)


def in_files(folder):
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    return Examples(np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r"))


@pytest.mark.parametrize("place", ["memory", "files", "written", "a part of a file"])
def test_rows_and_zeros_after_them(place, tmp_path):
    examples = in_files(tmp_path) if "file" in place else Examples(X, Y)
    wanted, rows = ROWS, ROWS
    if place == "a part of a file":
        examples = Examples(np.asarray(examples.x)[2:], examples.y[2:])
        wanted = np.maximum(ROWS, 2)
        rows = wanted - 2
    reader = row_readers.open_on_disk(examples) if place == "written" else row_readers.ExampleReader(examples)
    x, y = reader.read_padded(rows, 9)
    np.testing.assert_array_equal(x[:7], X[wanted])
    np.testing.assert_array_equal(y[:7], Y[wanted])
    assert not x[7:].any()
    assert not y[7:].any()
    assert reader.row_bytes == 16
    assert (row_readers.locate_in_file(reader.like.x) is None) == (place == "memory")
    np.testing.assert_array_equal(np.asarray(reader.like.y), np.asarray(examples.y))


def test_rows_side_by_side_are_read_at_once(tmp_path):
    reader = row_readers.ExampleReader(in_files(tmp_path).x)
    with mock.patch.object(row_readers.os, "preadv", wraps=row_readers.os.preadv) as read:
        reader.read_padded(ROWS, 7)
    assert read.call_count == 5  # 0; 3, 4, 5; 19; 2; 2


def test_a_file_that_was_cut_is_one_line(tmp_path):
    reader = row_readers.ExampleReader(in_files(tmp_path))
    with open(tmp_path / "x.npy", "r+b") as file:
        file.truncate(200)
    with pytest.raises(OSError, match=r"cannot read row 19 of .*x\.npy: the file has become shorter than its array$"):
        reader.read_padded(np.array([19]), 1)


def test_a_full_disk_is_one_line(tmp_path):
    with (
        mock.patch.object(row_readers.tempfile, "tempdir", str(tmp_path)),
        mock.patch("builtins.open", side_effect=OSError(errno.ENOSPC, "No space left on device")),
        pytest.raises(
            OSError, match=r"cannot write 0\.0 GiB of examples to .* for plan\.data='disk': No space left on device; TMPDIR"
        ),
    ):
        row_readers.open_on_disk(X)
    assert not any(tmp_path.iterdir())


def test_files_that_were_written_have_no_names_left(tmp_path):
    with mock.patch.object(row_readers.tempfile, "tempdir", str(tmp_path)):
        reader = row_readers.open_on_disk(Examples(X, Y))
    assert not any(tmp_path.iterdir())
    np.testing.assert_array_equal(reader.read_padded(ROWS, 7).x, X[ROWS])


def test_changes_of_a_map_that_are_not_in_its_file_are_read(tmp_path):
    np.save(tmp_path / "x.npy", X)
    x = np.load(tmp_path / "x.npy", mmap_mode="c")
    x -= 1
    assert row_readers.locate_in_file(x) is None
    reader = row_readers.open_on_disk(Examples(x, Y))
    np.testing.assert_array_equal(reader.read_padded(ROWS, 7).x, X[ROWS] - 1)
