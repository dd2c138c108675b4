"""TensorFlow Federated's files, small ones written here in the published form."""

import errno
import lzma
import shutil
import sqlite3
import tracemalloc
from collections import deque

import numpy as np
import pytest
from tensorflow_datasets.proto import tf_example_pb2

from fedjax_core.data import federated_data, sources
from fedjax_core.data.sources import tff, vocabulary
from fedjax_core.data.sources.tfds_sets import decode_example

TABLES = """
CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, serialized_example_proto BLOB NOT NULL);
CREATE INDEX idx_examples_client_id ON examples (client_id);
CREATE INDEX idx_examples_client_id_split ON examples (split_name, client_id);
CREATE TABLE client_metadata (client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL);
"""


def record(**features):
    """A serialized `tf.train.Example` of bytes (or several), an int, or floats."""
    example = tf_example_pb2.Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        if isinstance(value, bytes) or (isinstance(value, list) and isinstance(value[0], bytes)):
            feature.bytes_list.value.extend([value] if isinstance(value, bytes) else value)
        elif isinstance(value, int):
            feature.int64_list.value.append(value)
        else:
            feature.float_list.value.extend(value)
    return example.SerializeToString()


def written(file, splits):
    """splits: {split: {client: records}}."""
    with sqlite3.connect(file) as connection:
        connection.executescript(TABLES)
        for split, clients in splits.items():
            for client, rows in clients.items():
                connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, len(rows)))
                connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", [(split, client, row) for row in rows])
    connection.close()


def writer(seed, rows):
    rng = np.random.default_rng(seed)
    return [record(pixels=(rng.integers(0, 256, 784) / 255).tolist(), label=int(rng.integers(62))) for _ in range(rows)]


def test_records_are_decoded():
    blob = b"\x0a\x13\x0a\x11\x0a\x01b\x12\x0c\x1a\x0a\x0a\x08\x03\xfe\xff\xff\xff\xff\xff\xff"  # two ints are cut
    with pytest.raises(ValueError, match=r"is no tf\.train\.Example"):
        decode_example(blob)
    assert decode_example(b"\x0a\x0c\x0a\x0a\x0a\x01b\x12\x05\x1a\x03\x0a\x01\x03")["b"].tolist() == [3]
    found = decode_example(record(a=b"text", b=-3, c=[0.5, 2.0], d=b"") + b"")
    assert (found["a"], found["b"].tolist(), found["c"].tolist(), found["d"]) == ([b"text"], [-3], [0.5, 2.0], [b""])
    assert decode_example(record(a=b"text", b=-3), ("b",)).keys() == {"b"}
    with pytest.raises(ValueError, match=r"a record of 3 bytes is no tf\.train\.Example"):
        decode_example(b"\x0a\x7f\x00")


def test_emnist_by_writer(tmp_path):
    (tmp_path / "femnist").mkdir()
    plain = tmp_path / "plain.sqlite"
    both = {"all_train": {"f2": writer(2, 3), "f1": writer(1, 2)}, "all_test": {"f1": writer(3, 1), "f2": writer(4, 1)}}
    written(plain, both | {"digits_only_train": {"f1": writer(1, 1)}})
    (tmp_path / "femnist" / "emnist_all.sqlite.lzma").write_bytes(lzma.compress(plain.read_bytes()))
    data = sources.load("femnist", tmp_path)
    assert data.train.x.shape == (5, 28, 28, 1)
    assert (len(data.class_names), data.train_clients.tolist(), data.test_clients.tolist()) == (62, [0, 0, 1, 1, 1], [0, 1])
    rng = np.random.default_rng(1)
    np.testing.assert_array_equal(data.train.x[0].reshape(-1), 255 - rng.integers(0, 256, 784))
    assert data.train.y[0] == rng.integers(62)
    one = sources.load("femnist(users=1)", tmp_path)
    assert len({*one.train_clients.tolist()}) == 1
    assert len(one.test.y) == 1
    divided = federated_data.federate(data, {"name": "natural"}, 2, 0)
    assert [len(rows) for rows in divided.train_index] == [2, 3]


def test_shakespeare_by_role(tmp_path):
    lines = {"train": {"HAMLET": [record(snippets=b"To be"), record(snippets=b"or")]}, "test": {"HAMLET": [record(snippets=b"~")]}}
    written(tmp_path / "shakespeare.sqlite", lines)
    data = sources.load("shakespeare(length=4)", tmp_path)
    names = np.array(data.class_names)
    assert len(names) == 90
    spoken = ["<bos>", *"To be", "<eos>", "<bos>", *"or", "<eos>"]
    assert names[data.train.x.reshape(-1)[:10]].tolist() == spoken[:-1][:10]
    assert names[data.train.y[data.train.y >= 0]].tolist() == spoken[1:]
    assert names[data.test.y[data.test.y >= 0]].tolist() == ["<unk>", "<eos>"]
    assert data.train_clients.tolist() == [0, 0, 0]


def test_stackoverflow_by_user(tmp_path):
    say = lambda *texts: [record(tokens=text.encode(), score=1) for text in texts]
    clients = {"train": {"7": say("a b a", "a c", "b"), "3": say("a")}, "test": {"9": say("a d")}}
    written(tmp_path / "stackoverflow.sqlite", clients)
    data = sources.load("stackoverflow(words=2, length=3, most=2, test_users=1)", tmp_path)
    assert data.class_names == ("<pad>", "<bos>", "<eos>", "a", "b", "<unk>")
    assert data.train.x.tolist() == [[1, 3, 2], [1, 3, 4], [1, 3, 5]]
    assert data.test.y.tolist() == [[3, 5, 2]]
    assert data.train_clients.tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match="has 2 users; users=5 must be at most that"):
        sources.load("stackoverflow(users=5)", tmp_path)


def test_hdf5_gives_the_same(tmp_path):
    h5py = pytest.importorskip("h5py", reason="the HDF5 form is read with h5py")
    for part, rows in (("train", [b"To be", b"or"]), ("test", [b"~"])):
        with h5py.File(tmp_path / f"shakespeare_{part}.h5", "w") as file:
            file["examples/HAMLET/snippets"] = rows
    data = sources.load("shakespeare(length=4)", tmp_path)
    names = np.array(data.class_names)
    assert "".join(names[data.train.y[data.train.y >= 0]]) == "To be<eos><bos>or<eos>"
    rng, seen = np.random.default_rng(1), {"f1": 2, "f2": 3}
    pixels = {name: rng.integers(0, 256, (rows, 28, 28)) for name, rows in seen.items()}
    for part in ("train", "test"):
        with h5py.File(tmp_path / f"fed_emnist_{part}.h5", "w") as file:
            for name, rows in seen.items():
                file[f"examples/{name}/pixels"] = (pixels[name] / 255).astype(np.float32)
                file[f"examples/{name}/label"] = np.arange(rows, dtype=np.int32)
    data = sources.load("femnist", tmp_path)
    np.testing.assert_array_equal(data.train.x[..., 0], 255 - np.concatenate([*pixels.values()]))
    assert (data.train.y.tolist(), data.train_clients.tolist()) == ([0, 1, 0, 1, 2], [0, 0, 1, 1, 1])
    for part, said in (("train", {"7": [b"a b a", b"a c", b"b"], "3": [b"a"]}), ("test", {"9": [b"a d"]})):
        with h5py.File(tmp_path / f"stackoverflow_{part}.h5", "w") as file:
            for name, sentences in said.items():
                file[f"examples/{name}/tokens"] = sentences
                file[f"examples/{name}/score"] = np.ones(len(sentences), np.int64)
    data = sources.load("stackoverflow(words=2, length=3, most=2, test_users=1)", tmp_path)
    assert data.class_names == ("<pad>", "<bos>", "<eos>", "a", "b", "<unk>")
    assert (data.train.x.tolist(), data.test.y.tolist()) == ([[1, 3, 2], [1, 3, 4], [1, 3, 5]], [[3, 5, 2]])


def test_files_that_are_not_there_or_damaged_are_told_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(
        FileNotFoundError,
        match=r"get emnist_all.sqlite.lzma, or fed_emnist_train.h5 and fed_emnist_test.h5 \(in fed_emnist.tar.bz2\), from https://",
    ):
        sources.load("femnist", tmp_path)
    (tmp_path / "shakespeare.sqlite").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(ValueError, match=r"shakespeare.sqlite: cannot be read \(file is not a database\)"):
        sources.load("shakespeare", tmp_path)
    (tmp_path / "stackoverflow_train.h5").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ImportError, match=r"pip install h5py, or get the \.sqlite\.lzma file"):
        sources.load("stackoverflow", tmp_path)


def test_a_split_without_clients_is_told_in_one_line(tmp_path):
    written(tmp_path / "shakespeare.sqlite", {"train": {"HAMLET": [record(snippets=b"To be")]}})
    with pytest.raises(ValueError, match=r"shakespeare\.sqlite: has no clients of the split 'test': another file"):
        sources.load("shakespeare", tmp_path)
    (tmp_path / "shakespeare.sqlite").unlink()
    lines = [record(snippets=b"To be")]
    written(tmp_path / "shakespeare.sqlite", {"train": {"HAMLET": lines}, "test": {"ROMEO": lines}})
    with pytest.raises(ValueError, match=r"has none of the 1 clients in the split 'test'; ask for more users"):
        sources.load("shakespeare", tmp_path)
    (tmp_path / "shakespeare.sqlite").rename(tmp_path / "emnist_all.sqlite")
    with pytest.raises(ValueError, match=r"has no clients of the split 'all_train'"):
        sources.load("femnist(users=10)", tmp_path)


def test_a_full_disk_is_no_damaged_file(tmp_path, monkeypatch):
    plain = tmp_path / "plain.sqlite"
    lines = {"HAMLET": [record(snippets=b"To be")]}
    written(plain, {"train": lines, "test": lines})
    packed = tmp_path / "shakespeare.sqlite.lzma"
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    copy, copies = shutil.copyfileobj, []
    monkeypatch.setattr(shutil, "copyfileobj", lambda *of: copies.append(copy(*of)))
    sources.load("shakespeare", tmp_path)
    assert len(copies) == 1  # unpacked once

    def full(*of):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(OSError, match=r"lzma: cannot be unpacked into .* \(No space left on device\); TMPDIR names the folder"):
        sources.load("shakespeare", tmp_path)
    monkeypatch.undo()
    packed.write_bytes(packed.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"lzma: cannot be read \(.*\): truncated, damaged or another file"):
        sources.load("shakespeare", tmp_path)


def test_what_a_reader_raises_is_no_damage(tmp_path):
    written(tmp_path / "shakespeare.sqlite", {"train": {"HAMLET": [record(snippets=b"To be")]}})

    def fails():
        with tff.open_parts(tff.Files("", "shakespeare", "shakespeare"), tmp_path) as reads:
            assert next(next(reads)[1](("snippets",)))[0] == "HAMLET"
            raise OSError("the reader's own")

    with pytest.raises(OSError, match="the reader's own"):
        fails()


def test_words_that_are_kept_once_are_told_apart_alike():
    rng = np.random.default_rng(0)
    texts = {
        part: [["abcdefgh"[i] for i in rng.integers(0, 8, rng.integers(0, 7))] for _ in range(20)] for part in ("train", "test")
    }
    texts["test"].append(["never", "a"])
    for number, behind in ((3, True), (100, False)):
        words = vocabulary.StreamingVocabulary(4, behind)
        pieces = {part: deque(words.encode(of[i : i + 5], part == "train") for i in range(0, 25, 5)) for part, of in texts.items()}
        names, found = words.index_texts(number, pieces)
        wanted, rows = vocabulary.index_texts(texts, number, 4, behind)
        assert names == wanted
        for part in texts:
            np.testing.assert_array_equal(found[part], rows[part])
            assert not pieces[part]


def test_stackoverflow_keeps_each_word_once(tmp_path):
    """100,000 words, of which lists of texts take some 60 bytes each."""
    said = [record(tokens=" ".join(f"word{i}" for i in range(200)).encode())] * 5
    written(tmp_path / "stackoverflow.sqlite", {"train": {str(user): said for user in range(100)}, "test": {"7": said}})
    tracemalloc.start()
    sources.load("stackoverflow(words=10, test_users=1)", tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 2e6
    tracemalloc.stop()


def test_windows_begin_with_the_last_of_the_one_before():
    assert tff.cut_windows(np.arange(1, 7), 3).tolist() == [[1, 2, 3, 4], [4, 5, 6, -1]]
    assert vocabulary.most_frequent_words([["b", "a"], ["c", "c"]], 2) == ["c", "a"]


def test_names_of_other_numbers_are_no_words():
    """As in published texts, where rare words are <unk> already."""
    texts = {"train": [["<unk>", "a", "<unk>", "<eos>", "b", "a"]], "test": [["<unk>", "b"]]}
    wanted, rows = vocabulary.index_texts(texts, 5, 6, behind=False)
    assert wanted == ["<pad>", "<bos>", "<eos>", "a", "b", "<unk>"]
    assert rows["train"].tolist() == [[1, 5, 3, 5, 5, 4]]
    assert rows["test"].tolist() == [[1, 5, 4, 2, 0, 0]]
    words = vocabulary.StreamingVocabulary(6, behind=False)
    pieces = {part: deque([words.encode(of, part == "train")]) for part, of in texts.items()}
    names, found = words.index_texts(5, pieces)
    assert names == wanted
    for part in texts:
        np.testing.assert_array_equal(found[part], rows[part])
