"""Files against what happens to them while they are written."""

import csv
import math
import os

import pytest

from fedjax_core.storage.files import write_csv, write_text


def test_files_are_replaced_and_as_readable_as_others(tmp_path):
    (tmp_path / "other").write_text("")
    write_text(tmp_path / "x", "old")
    write_text(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new"
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert set(os.listdir(tmp_path)) == {"x", "other"}
    with pytest.raises(OSError, match=f"cannot write {tmp_path}/none/x: No such file or directory"):
        write_text(tmp_path / "none" / "x", "")


def test_csv_has_the_union_of_columns(tmp_path):
    write_csv(tmp_path / "x.csv", [{"b": 1, "round": 1}, {"round": 2, "c": math.nan}], ["round"])
    with open(tmp_path / "x.csv", newline="") as file:
        assert list(csv.reader(file)) == [["round", "b", "c"], ["1", "1", ""], ["2", "", "nan"]]
