import gzip
import string
import struct
import zipfile

import numpy as np
import pytest

from fedjax_core.data import sources
from fedjax_core.data.sources.mnist_idx import EMNIST_NAMES, read_emnist, read_idx
from tests.fedjax_core.data.sources.written import assert_same, images


def idx(array):
    """An IDX file: 0, 0, 8 (unsigned bytes), axes; big-endian lengths; values."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


def test_mnist_files_give_the_same_as_its_npz(tmp_path, shared_data):
    """The real set, written as IDX files: passes the published checksums, packed and not."""
    with np.load(shared_data / "mnist.npz") as file:
        arrays = {key: file[key] for key in file.files}
    (tmp_path / "mnist").mkdir()
    train_x, train_y = arrays["train_images"], arrays["train_labels"]
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(idx(train_x))
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(train_y), 1))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(arrays["test_images"]), 1))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(arrays["test_labels"]))
    data = sources.load("mnist", tmp_path)
    assert_same(data, train_x[..., None], train_y, arrays["test_images"][..., None], arrays["test_labels"])
    same = sources.load("npz:mnist.npz", shared_data)
    assert_same(same, data.train.x, data.train.y, data.test.x, data.test.y)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(idx(255 - train_x))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte: 47040016 bytes with md5 .* published is 6bbc9ace"):
        sources.load("mnist", tmp_path)


def test_idx_round_trip(tmp_path):
    array = images(3, 5, 4, 1)[..., 0]
    np.testing.assert_array_equal(read_idx(tmp_path, idx(array)), array)


@pytest.mark.parametrize("cut", [0, 3, 10, 75])
def test_truncated_idx_is_refused(tmp_path, cut):
    blob = idx(images(3, 5, 4, 1)[..., 0])
    assert len(blob) == 76
    with pytest.raises(ValueError, match=r"truncated or damaged|starts with"):
        read_idx(tmp_path, blob[:cut])
    with pytest.raises(ValueError, match=r"61 values, its header says \(3, 5, 4\), which are 60"):
        read_idx(tmp_path, blob + b"x")


def test_idx_of_another_type_is_refused(tmp_path):
    with pytest.raises(ValueError, match="starts with '00 00 0d 01'"):
        read_idx(tmp_path, b"\x00\x00\x0d\x01" + b"\x00" * 8)


def emnist_files(split, rows=(20, 6), first=0, classes=47):
    upright = [images(number, 28, 28, 1, seed=number) for number in rows]
    labels = [np.arange(number) % classes + first for number in rows]
    files = {}
    for part, x, y in zip(("train", "test"), upright, labels, strict=True):
        files[f"emnist-{split}-{part}-images-idx3-ubyte"] = idx(x[..., 0].swapaxes(1, 2))  # transposed, as published
        files[f"emnist-{split}-{part}-labels-idx1-ubyte"] = idx(y)
    return files, upright, labels


@pytest.mark.parametrize("how", ["plain", "gz", "zip"])
def test_emnist_is_upright(tmp_path, how):
    files, x, y = emnist_files("balanced")
    if how == "zip":
        with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
            for file, blob in files.items():
                archive.writestr(f"gzip/{file}.gz", gzip.compress(blob))
    else:
        (tmp_path / "emnist" / "gzip").mkdir(parents=True)
        for file, blob in files.items():
            place = tmp_path / "emnist" / "gzip" / file
            place.with_name(file + ".gz").write_bytes(gzip.compress(blob)) if how == "gz" else place.write_bytes(blob)
    data = read_emnist(tmp_path, "balanced", [(20, 6)])
    assert_same(data, x[0], y[0], x[1], y[1])
    assert len(data.class_names) == 47
    with pytest.raises(ValueError, match="emnist balanced: 20 training and 6 test examples, published are 112800 and 18800"):
        sources.load("emnist", tmp_path)


@pytest.mark.parametrize(("split", "number"), [("byclass", 62), ("bymerge", 47)])
def test_emnist_by_class_and_by_merge_on_real_characters(tmp_path, shared_data, split, number):
    """A sample of the set, written as the published files: by merge, 15 small letters count as
    capitals.
    """
    with np.load(shared_data / "emnist_byclass_sample.npz") as file:
        arrays = {key: file[key] for key in file.files}
    names = np.array([*string.digits, *string.ascii_uppercase, *string.ascii_lowercase])
    assert names.tolist() == arrays["class_names"].tolist()
    merged = {c: c.upper() for c in "cijklmopsuvwxyz"} if split == "bymerge" else {}
    order = [c for c in names if c not in merged]  # of the labels in the files
    upright, labels = [], []
    for part in ("train", "test"):
        upright.append(arrays[f"{part}_images"])
        labels.append(np.array([order.index(merged.get(c, c)) for c in names])[arrays[f"{part}_labels"]])
        (tmp_path / f"emnist-{split}-{part}-images-idx3-ubyte").write_bytes(idx(upright[-1].swapaxes(1, 2)))
        (tmp_path / f"emnist-{split}-{part}-labels-idx1-ubyte").write_bytes(idx(labels[-1]))
    data = read_emnist(tmp_path, split, [(40_000, 8_000)])
    assert_same(data, upright[0][..., None], labels[0], upright[1][..., None], labels[1])
    assert data.class_names == tuple(order)
    assert np.unique(data.train.y).tolist() == list(range(number))


def test_emnist_letters_start_at_zero(tmp_path):
    files, x, y = emnist_files("letters", first=1, classes=26)
    for file, blob in files.items():
        (tmp_path / file).write_bytes(blob)
    data = read_emnist(tmp_path, "letters", [(20, 6)])
    assert_same(data, x[0], y[0] - 1, x[1], y[1] - 1)
    assert data.class_names[0] == "A"


def test_emnist_names_are_as_many_as_published():
    numbers = {split: len(set(names)) for split, names in EMNIST_NAMES.items()}
    assert numbers == {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def test_truncated_gz_and_zip_are_refused(tmp_path):
    files, *_ = emnist_files("balanced")
    for file, blob in files.items():
        (tmp_path / f"{file}.gz").write_bytes(gzip.compress(blob)[:-20])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz: cannot be unpacked .* truncated or damaged"):
        sources.load("emnist", tmp_path)
    for file in files:
        (tmp_path / f"{file}.gz").unlink()
    (tmp_path / "gzip.zip").write_bytes(b"PK\x03\x04 half an archive")
    with pytest.raises(ValueError, match=r"gzip.zip: cannot read gzip/emnist-balanced-train-images"):
        sources.load("emnist", tmp_path)
