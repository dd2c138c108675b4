"""JSON objects, one a line: rows with their client, as numbers and as texts."""

import gzip
import importlib
import json

import numpy as np
import pytest

from fedjax_core.data import federated_data, sources
from tests.fedjax_core.data.sources.test_tabular import encoded
from tests.fedjax_core.data.sources.test_tff import record


def write(file, rows):
    blob = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(blob) if file.suffix == ".gz" else blob)


ROWS = [
    {"who": f"u{i % 3}", "a": i / 2, "b": 1, "says": f"the cat {'sat' if i % 2 else 'ran off'}", "mood": "ab"[i % 2]}
    for i in range(12)
]


def test_rows_have_clients(tmp_path):
    write(tmp_path / "all.jsonl.gz", ROWS)
    data = sources.load("jsonl(path='all.jsonl.gz', x=('a', 'b'), y='mood', clients='who', test_fraction=0.25)", tmp_path)
    assert data.class_names == ("a", "b")
    assert data.train.x.shape == (9, 2)
    divided = federated_data.federate(data, {"name": "natural"}, 3, 0)
    for client, rows in enumerate(divided.train_index):
        assert {int(2 * a) % 3 for a in data.train.x[rows, 0]} == {client}


def test_texts_tell_the_next_word(tmp_path):
    write(tmp_path / "train.jsonl", ROWS)
    write(tmp_path / "test.jsonl", [{"who": "u0", "says": "a cat sat"}])
    spec = "jsonl(path='train.jsonl', test='test.jsonl', x='says', clients='who', targets='tokens', words=3, length=4)"
    data = sources.load(spec, tmp_path)
    assert data.class_names == ("<pad>", "<bos>", "<eos>", "cat", "the", "off", "<unk>")
    assert data.test.x.tolist() == [[1, 6, 3, 6]]
    assert data.test.y.tolist() == [[6, 3, 6, 2]]
    assert data.train.x[1].tolist() == [1, 4, 3, 6]
    assert data.train.y[0].tolist() == [4, 3, 6, 5]  # cut
    assert data.train_clients is not None
    assert data.train_clients[:4].tolist() == [0, 1, 2, 0]
    short = sources.load(spec.replace("length=4", "length=6"), tmp_path)
    assert short.test.y.tolist() == [[6, 3, 6, 2, -1, -1]]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ('{"a": 1}\nnothing', "x='a', y='a', test_fraction=0.5", "line 2: is not JSON"),
        ('{"a": ' + "[" * 100_000, "x='a', y='a', test_fraction=0.5", "line 1: has lists or objects inside each other, deeper"),
        ('{"a": ' + "9" * 5000 + "}", "x='a', y='a', test_fraction=0.5", "line 1: is not JSON .*digits"),
        ("[1]", "x='a', y='a', test_fraction=0.5", "line 1: is list, must be an object"),
        ('{"a": 1}', "x='b', y='a', test_fraction=0.5", "has no column 'b'"),
        ('{"a": 1}', "x='a', targets='tokens', words=3, length=3, test_fraction=0.5", "row 0 of column 'a' is 1: must be a text"),
        ('{"a": "b"}', f"x='a', y='a', words=3, length={10**8}, test_fraction=0.5", r"length=100000000 must be in \[1, 2\*\*20\]"),
        ('{"a": 1}', "x='a', y='a', words=3, test_fraction=0.5", "texts need both"),
    ],
)
def test_a_wrong_file_ends_in_one_line(tmp_path, text, options, message):
    (tmp_path / "f.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        sources.load(f"jsonl(path='f.jsonl', {options})", tmp_path)


def test_a_file_that_is_not_there_is_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError, match="put the file there, or give its full path"):
        sources.load("jsonl(path='f.jsonl', x='a', y='b', test_fraction=0.5)", tmp_path)


def test_an_empty_text_is_missing_in_lines_as_in_a_delimited_file(tmp_path):
    rows = [{"a": i, "ward": "ns "[i % 3], "who": ("ann", "bob", "", "ann")[i % 4], "y": i % 2} for i in range(24)]
    write(tmp_path / "t.jsonl", rows)
    (tmp_path / "t.csv").write_text("a,ward,who,y\n" + "\n".join(",".join(map(str, row.values())) for row in rows))
    spec = "{0}(path='t.{0}', x=('a', 'ward'), categorical='ward', y='y', clients='who', missing='drop', test_fraction=0.25)"
    lines, delimited = (sources.load(spec.format(kind), tmp_path) for kind in ("jsonl", "csv"))
    assert lines.client_names == delimited.client_names == ("ann", "bob")
    np.testing.assert_array_equal(lines.train.x, delimited.train.x)
    assert lines.train.x.shape == (9, 3)
    with pytest.raises(ValueError, match=r"row 2 of column 'who' is missing \(''\)"):
        sources.load("jsonl(path='t.jsonl', x='a', y='y', clients='who', test_fraction=0.25)", tmp_path)


def test_words_are_those_of_the_rows_that_stay(tmp_path):
    rows = [{"says": f"the cat {'rare' if i % 4 == 0 else 'sat'}", "mood": None if i % 4 == 0 else "ab"[i % 2]} for i in range(24)]
    rows[1] |= {"says": ""}
    write(tmp_path / "t.jsonl", rows)
    write(tmp_path / "whole.jsonl", [row for row in rows if all(row.values())])
    spec = "jsonl(path='{}.jsonl', x='says', y='mood', words=3, length=4, test_fraction=0.25, missing='{}')"
    assert sources.load(spec.format("t", "drop"), tmp_path).train.x.max() == 5  # no <unk>
    assert sources.load(spec.format("whole", "error"), tmp_path).train.x.max() == 5
    with pytest.raises(
        ValueError, match=r"train: row 1 of column 'says' is missing \(''\); missing='drop' leaves such rows out\.$"
    ):
        sources.load(spec.format("t", "error"), tmp_path)
    with pytest.raises(ValueError, match=r"missing='mean' with words=3: a text has no mean; missing='drop'"):
        sources.load(spec.format("t", "mean"), tmp_path)


SPEC = "(path='all.{0}', x='says', clients='who', targets='tokens', words=4, length=5, test_fraction=0.25)"


def the_same_as_lines(folder, kind):
    write(folder / "all.jsonl", ROWS)
    wanted, found = (sources.load(name + SPEC.format(name), folder) for name in ("jsonl", kind))
    assert found.class_names == wanted.class_names
    for part in ("train", "test"):
        np.testing.assert_array_equal(getattr(found, part).x, getattr(wanted, part).x)
    np.testing.assert_array_equal(found.train_clients, wanted.train_clients)
    (folder / f"all.{kind}").write_bytes(b"nothing of the kind" * 9)
    with pytest.raises(ValueError, match=rf"all\.{kind}: is no .*, or damaged"):
        sources.load(kind + SPEC.format(kind), folder)


def test_parquet_gives_the_same(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet", reason="Parquet is read with pyarrow")
    table = importlib.import_module("pyarrow").Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "all.parquet")
    the_same_as_lines(tmp_path, "parquet")


def test_images_of_a_parquet_file(tmp_path):
    """As the Hugging Face hub keeps them."""
    pq = pytest.importorskip("pyarrow.parquet", reason="Parquet is read with pyarrow")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 5, 5, 3), np.uint8)
    rows = [{"img": {"bytes": encoded(p), "path": f"{i}.png"}, "label": i % 2} for i, p in enumerate(pixels)]
    pq.write_table(importlib.import_module("pyarrow").Table.from_pylist(rows), tmp_path / "all.parquet")
    data = sources.load("parquet(path='all.parquet', x='img', y='label', test_fraction=0.25)", tmp_path)
    found = np.concatenate([data.train.x, data.test.x])
    assert {p.tobytes() for p in found} == {p.tobytes() for p in pixels}
    small = sources.load("parquet(path='all.parquet', x='img', y='label', test_fraction=0.25, size=4)", tmp_path)
    assert small.train.x.shape == (6, 4, 4, 3)


def test_a_byte_order_mark_is_no_part_of_a_line(tmp_path):
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    spec = "jsonl(path='all.jsonl', x=('a', 'b'), y='mood', clients='who', test_fraction=0.25)"
    (tmp_path / "all.jsonl").write_text(text)
    wanted = sources.load(spec, tmp_path).train.x
    for blob in (text.encode("utf-8-sig"), text.encode("utf-16")):
        (tmp_path / "all.jsonl").write_bytes(blob)
        np.testing.assert_array_equal(sources.load(spec, tmp_path).train.x, wanted)


def test_array_record_gives_the_same(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module", reason="array_record is for Linux")
    writer = module.ArrayRecordWriter(str(tmp_path / "all.array_record"), "group_size:1")
    for row in ROWS:
        writer.write(record(who=row["who"].encode(), says=row["says"].encode(), a=[row["a"]]))
    writer.close()
    the_same_as_lines(tmp_path, "array_record")


def test_labels_of_records_stay_lists(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module", reason="array_record is for Linux")
    writer = module.ArrayRecordWriter(str(tmp_path / "all.array_record"), "group_size:1")
    for labels in ([b"sea"], [b"sea", b"sun"], [b"sun"], [b"sky", b"sun"]):
        writer.write(record(a=[0.5], tags=labels))
    writer.close()
    data = sources.load("array_record(path='all.array_record', x='a', y='tags', targets='labels', test_fraction=0.25)", tmp_path)
    assert data.class_names == ("sea", "sky", "sun")
    rows = np.concatenate([data.train.y, data.test.y]).tolist()
    assert sorted(rows) == [[0, 0, 1], [0, 1, 1], [1, 0, 0], [1, 0, 1]]


def test_words_are_those_of_the_training_rows(tmp_path):
    """Every row has a word of its own; those of the test examples are distinguished from none."""
    write(tmp_path / "all.jsonl", [{"who": "ab"[i % 2], "says": f"the word{i:02}", "mood": "ab"[i % 2]} for i in range(20)])
    for rest in ("targets='tokens'", "y='mood', domains='who'"):
        spec = f"jsonl(path='all.jsonl', x='says', clients='who', words=40, length=4, test_fraction=0.25, {rest})"
        data = sources.load(spec, tmp_path)
        assert (len(data.train.x), len(data.test.x)) == (15, 5)
        unknown = 3 + 16
        assert data.test.x[:, 2].tolist() == [unknown] * 5
        assert data.train.x[:, 2].max() < unknown


def test_a_parquet_table_says_which_numbers_are_bytes(tmp_path):
    """Pixels as lists of uint8, or lists of those; other integers are numbers."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    cells = [[i, 250, 3, 4] for i in range(8)]
    columns = {
        "bytes": pa.array(cells, pa.list_(pa.uint8())),
        "fixed": pa.array(cells, pa.list_(pa.uint8(), 4)),
        "square": pa.array([[cell[:2], cell[2:]] for cell in cells], pa.list_(pa.list_(pa.uint8()))),
        "wide": pa.array(cells, pa.list_(pa.int64())),
        "age": pa.array(range(8), pa.uint8()),
        "y": pa.array([0, 1] * 4),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    for x, found in {"bytes": "uint8", "fixed": "uint8", "square": "uint8", "wide": "int32", "age": "int32"}.items():
        data = sources.load(f"parquet(path='t.parquet', x='{x}', y='y', test_fraction=0.25)", tmp_path)
        assert data.train.x.dtype == found, x
