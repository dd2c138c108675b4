"""CIFAR, MNIST, EMNIST and SVHN, written here in their published layouts."""

import gzip
import hashlib
import string
import struct
import zipfile

import numpy as np
import pytest
import scipy.io

from fedjax_core.data import sources
from fedjax_core.data.sources import published_images
from fedjax_core.data.sources.published_images import CIFAR10, CIFAR100, read_cifar, read_emnist, read_idx, read_svhn
from tests.fedjax_core.data.sources.written import assert_same, cifar_files, images, write_archive, write_folder

SMALL10 = CIFAR10._replace(parts=dict.fromkeys(CIFAR10.parts, 4))
SMALL100 = CIFAR100._replace(parts={"train.bin": 20, "test.bin": 6})


@pytest.mark.parametrize(("spec", "labels", "column"), [(SMALL10, "fine", 0), (SMALL100, "fine", 1), (SMALL100, "coarse", 0)])
def test_cifar_is_read_from_its_archive_and_its_folder(tmp_path, spec, labels, column):
    files, (train_x, train_y), (test_x, test_y) = cifar_files(spec)
    (tmp_path / "packed").mkdir()
    packed = write_archive(tmp_path / "packed", spec, files)
    write_folder(tmp_path / "plain", spec, files)
    for data in (read_cifar("c", packed, tmp_path / "packed", labels), read_cifar("c", spec, tmp_path / "plain", labels)):
        assert_same(data, train_x, train_y[:, column], test_x, test_y[:, column])
        assert data.class_names == tuple(f"class_{i}" for i in range(spec.labels[labels][1]))


def test_cifar_files_are_checked(tmp_path):
    files, *_ = cifar_files(SMALL10)
    write_archive(tmp_path, SMALL10, files)
    with pytest.raises(
        ValueError, match=r"cifar-10-binary.tar.gz: \d+ bytes with md5 .* published is c32a1d4ab5d03f1284b67883e8d87530"
    ):
        sources.load("cifar10", tmp_path)
    (tmp_path / SMALL10.archive).unlink()
    write_folder(tmp_path, SMALL10, files)
    with pytest.raises(ValueError, match=r"data_batch_1.bin has 12292 bytes, 10000 records of 3073 are 30730000"):
        sources.load("cifar10", tmp_path)
    file = tmp_path / SMALL10.folder / "test_batch.bin"
    file.write_bytes(bytes([10]) + file.read_bytes()[1:])
    with pytest.raises(ValueError, match="test_y has the value 10, class_names has 10 names"):
        read_cifar("cifar10", SMALL10, tmp_path, "fine")
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"test_batch.bin"):
        read_cifar("cifar10", SMALL10, tmp_path, "fine")


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
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(arrays["test_images"]))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(arrays["test_labels"]))
    data = sources.load("mnist", tmp_path)
    assert_same(data, train_x[..., None], train_y, arrays["test_images"][..., None], arrays["test_labels"])
    same = sources.load("npz:mnist.npz", shared_data)
    assert_same(same, data.train.x, data.train.y, data.test.x, data.test.y)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(idx(255 - train_x[:10]))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte: 7856 bytes with md5 .* published is 6bbc9ace"):
        sources.load("mnist", tmp_path)


def test_idx_files_are_checked(tmp_path):
    array = images(3, 5, 4, 1)[..., 0]
    blob = idx(array)
    np.testing.assert_array_equal(read_idx(tmp_path, blob), array)
    for damaged, message in (
        (blob[:3], "starts with"),
        (blob[:10], "starts with"),
        (blob[:75], "truncated or damaged"),
        (blob + b"x", r"61 values, its header says \(3, 5, 4\), which are 60"),
        (b"\x00\x00\x0d\x01" + b"\x00" * 8, "starts with '00 00 0d 01'"),
    ):
        with pytest.raises(ValueError, match=message):
            read_idx(tmp_path, damaged)


def emnist_files(split, rows=(20, 6), first=0, classes=47):
    upright = [images(number, 28, 28, 1, seed=number) for number in rows]
    labels = [np.arange(number) % classes + first for number in rows]
    files = {}
    for part, x, y in zip(("train", "test"), upright, labels, strict=True):
        files[f"emnist-{split}-{part}-images-idx3-ubyte"] = idx(x[..., 0].swapaxes(1, 2))  # transposed, as published
        files[f"emnist-{split}-{part}-labels-idx1-ubyte"] = idx(y)
    return files, upright, labels


@pytest.mark.parametrize("form", ["plain", "gz", "zip"])
def test_emnist_is_upright(tmp_path, form):
    files, x, y = emnist_files("balanced")
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
            for file, blob in files.items():
                archive.writestr(f"gzip/{file}.gz", gzip.compress(blob))
    else:
        (tmp_path / "emnist" / "gzip").mkdir(parents=True)
        for file, blob in files.items():
            place = tmp_path / "emnist" / "gzip" / file
            place.with_name(file + ".gz").write_bytes(gzip.compress(blob)) if form == "gz" else place.write_bytes(blob)
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
        upright.append(arrays[f"{part}_images"][:2000])
        labels.append(np.array([order.index(merged.get(c, c)) for c in names])[arrays[f"{part}_labels"][:2000]])
        (tmp_path / f"emnist-{split}-{part}-images-idx3-ubyte").write_bytes(idx(upright[-1].swapaxes(1, 2)))
        (tmp_path / f"emnist-{split}-{part}-labels-idx1-ubyte").write_bytes(idx(labels[-1]))
    data = read_emnist(tmp_path, split, [(2000, 2000)])
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
    numbers = {split: len(set(names)) for split, names in published_images.EMNIST_NAMES.items()}
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


def test_svhn_round_trip(tmp_path):
    """Label 10 is digit 0."""
    digits, md5 = {}, {}
    (tmp_path / "svhn").mkdir()
    for seed, part in enumerate(("train", "test")):
        x, label = images(40, seed=seed), np.random.default_rng(seed).integers(1, 11, (40, 1), np.uint8)
        digits[part] = x, label.reshape(-1) % 10
        where = tmp_path / "svhn" / f"{part}_32x32.mat"
        scipy.io.savemat(where, {"X": x.transpose(1, 2, 3, 0), "y": label}, do_compression=True)
        md5[where.name] = hashlib.md5(where.read_bytes(), usedforsecurity=False).hexdigest()
    data = read_svhn(tmp_path, md5)
    assert_same(data, *digits["train"], *digits["test"])
    assert 0 in data.train.y
    assert data.class_names == tuple(string.digits)
    with pytest.raises(ValueError, match=r"train_32x32.mat: .* bytes with md5 .*, published is e26dedcc434d2e4c54c9b2d4a06d8373"):
        sources.load("svhn", tmp_path)
