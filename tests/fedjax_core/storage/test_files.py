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


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=HYPERLINK(A1)", "'=HYPERLINK(A1)"),
        ("+SUM(1)", "'+SUM(1)"),
        ("-2+3+cmd|' /C calc'!A0", "'-2+3+cmd|' /C calc'!A0"),
        ("@x", "'@x"),
        ("-E1", "'-E1"),
        ("cat\x1b[31m", r"cat\x1b[31m"),
        ("two\nlines\r\t", r"two\nlines\r\t"),
        ("\t=1", r"\t=1"),
        ("-0.3 ± 0.1 %", "-0.3 ± 0.1 %"),
        ("-1e-05", "-1e-05"),
        ("日本, né", "日本, né"),
        ("", ""),
        (-0.5, "-0.5"),
        (None, ""),
        (True, "True"),
    ],
)
def test_cells_are_nothing_that_anybody_runs(tmp_path, cell, written):
    write_csv(tmp_path / "x.csv", [{"name": cell, "n": 1}])
    with open(tmp_path / "x.csv", newline="") as file:
        assert list(csv.reader(file)) == [["name", "n"], [written, "1"]]


def test_csv_has_the_union_of_columns(tmp_path):
    write_csv(tmp_path / "x.csv", [{"b": 1, "round": 1}, {"round": 2, "c": math.nan}], ["round"])
    with open(tmp_path / "x.csv", newline="") as file:
        assert list(csv.reader(file)) == [["round", "b", "c"], ["1", "1", ""], ["2", "", "nan"]]
