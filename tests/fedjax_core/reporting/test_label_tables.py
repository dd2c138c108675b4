"""Label tables of a run, in run.json and in their CSV."""

import json

import numpy as np
import pytest

from fedjax_core.reporting import label_tables
from fedjax_core.storage.workdir import WorkDir

TRAIN, TEST = np.arange(180).reshape(60, 3), np.ones((60, 3), int)


def test_of_few_clients_run_json_has_all():
    found = label_tables.summarize_tables({"train": TRAIN[:50], "test": TEST[:50]})
    assert found == {"label_table": TRAIN[:50].tolist(), "test_label_table": TEST[:50].tolist()}


def test_of_more_it_has_sums_and_the_csv_all(tmp_path, monkeypatch):
    monkeypatch.setattr(label_tables, "_BLOCK", 7)
    found = label_tables.summarize_tables({"train": TRAIN, "test": TEST})
    assert "label_table" not in found
    assert found["train_rows"] == {
        "sum": 16110,
        "smallest": 3,
        "median": 268.5,
        "largest": 534,
        "fewest_classes": 2,
        "most_classes": 3,
        "of_class": [5310, 5370, 5430],
    }
    with WorkDir.open(tmp_path / "run", {"a": 1}) as run:
        run.record("partition", {"hash": "ab", "class_names": list("abc")} | found)
        label_tables.write_label_table(
            run.path, "abc", [(np.arange(60), {"train": TRAIN, "test": TEST}), (np.array([9]), {"train": TRAIN[:1]})]
        )
    lines = (run.path / label_tables.FILE).read_text().splitlines()
    assert lines[0] == "client,of_partition,part,a,b,c"
    assert lines[60] == "59,59,train,177,178,179"
    assert lines[61] == "0,0,test,1,1,1"
    assert lines[-1] == "60,9,train,0,1,2"
    assert label_tables.read_partition(run.path)["label_table"] == TRAIN.tolist()
    monkeypatch.setattr(label_tables, "READ", 3)
    some = label_tables.read_partition(run.path)
    assert (some["clients"], some["label_table"]) == ([0, 30, 59], TRAIN[[0, 30, 59]].tolist())
    assert len((run.path / "run.json").read_text()) < 1500


@pytest.mark.parametrize(
    ("text", "said"), [("[]", "run.json is a list"), ('{"partition": 3}', "partition of .*run.json is an int")]
)
def test_a_run_json_of_another_form_is_told(tmp_path, text, said):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=f"{said}.*expected an object"):
        label_tables.read_partition(tmp_path)


def test_names_of_clients_stand_beside_their_numbers(tmp_path):
    tables = {"train": np.arange(12).reshape(4, 3), "test": np.arange(12).reshape(4, 3) % 2}
    names = ["hospital_00", "a, b", "=1", "north\x1b[31m"]
    label_tables.write_label_table(tmp_path, ("cat", "-", "two\nlines"), [(np.arange(4), tables)], names)
    (tmp_path / "run.json").write_text(json.dumps({"partition": {"hash": "x", "number": 4, "whole": label_tables.FILE}}))
    lines = (tmp_path / label_tables.FILE).read_text().splitlines()
    assert lines[:2] == [r"client,of_partition,name,part,cat,-,two\nlines", "0,0,hospital_00,train,0,1,2"]
    found = label_tables.read_partition(tmp_path)
    assert found["label_table"] == tables["train"].tolist()
    assert found["client_names"] == ["hospital_00", "a, b", "'=1", r"north\x1b[31m"]
