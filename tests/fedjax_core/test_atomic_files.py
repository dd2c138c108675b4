"""Files against what happens to them while they are written."""

import csv
import math
import os
import stat
import threading

import pytest

from fedjax_core.atomic_files import read_bytes, write_blocks, write_csv, write_text
from fedjax_core.reporting import client_scores, metrics_log
from fedjax_core.storage.checkpoints import Checkpoints
from fedjax_core.storage.json_files import JsonLinesFile, read_json, read_jsonl


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


def test_links_stay_and_lead_to_what_is_written(tmp_path):
    """Also one that leads to a link, and one that leads to a file that is not there yet."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "there").write_text("old")
    (tmp_path / "one").symlink_to("far/there")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    (tmp_path / "new").symlink_to("far/new")
    for link, file in (("one", "there"), ("two", "there"), ("new", "new")):
        write_text(tmp_path / link, link)
        assert (tmp_path / link).is_symlink()
        assert not (tmp_path / "far" / file).is_symlink()
        assert (tmp_path / "far" / file).read_text() == link
    assert set(os.listdir(tmp_path / "far")) == {"there", "new"}
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match=f"cannot write {tmp_path}/round: .*symbolic links"):
        write_text(tmp_path / "round", "")
    with pytest.raises(OSError, match=f"cannot write {tmp_path}/far: Is a directory"):
        write_text(tmp_path / "far", "")


def test_a_pipe_and_a_device_are_written_into(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_blocks(tmp_path / "pipe", [b"a", b"b"])
    reader.join()
    assert found == [b"ab"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    (tmp_path / "null").symlink_to("/dev/null")
    before = os.stat("/dev/null").st_rdev
    write_text(tmp_path / "null", "gone")
    assert (tmp_path / "null").is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert os.stat("/dev/null").st_rdev == before
    assert set(os.listdir(tmp_path)) == {"pipe", "null"}


def test_an_open_file_of_a_process_is_written_into(tmp_path):
    """As /dev/stdout is, which leads to whatever stands behind `>`."""
    with open(tmp_path / "x", "w+") as file:
        write_text(f"/dev/fd/{file.fileno()}", "text")
        assert os.path.samestat(os.fstat(file.fileno()), (tmp_path / "x").stat())
        assert file.read() == "text"


@pytest.mark.parametrize("what", ["a pipe", "a device", "a folder"])
def test_what_is_no_file_is_not_read(tmp_path, what):
    """To read a pipe would wait until somebody writes."""
    for name in ("x", "checkpoints/00000001/leaves.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if what == "a device":
            (tmp_path / name).symlink_to("/dev/zero")
        else:
            (os.mkfifo if what == "a pipe" else os.mkdir)(tmp_path / name)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for read in (read_bytes, read_json, read_jsonl, metrics_log.read_records, client_scores.read_client_scores, JsonLinesFile):
        with pytest.raises(OSError, match=f"cannot (read|write) {tmp_path}/x: it is (no regular file|a directory)"):
            read(tmp_path / "x")
    with pytest.raises(OSError, match=f"cannot be used .cannot read {tmp_path}/checkpoints/00000001/leaves.json: it is"):
        checkpoints.restore(1, {})
