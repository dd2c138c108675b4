"""CIFAR, MNIST, EMNIST and SVHN from their published files, checked by MD5 or by exact size."""

import io
import string
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_core import registry
from fedjax_core.data.sources.dataset import Dataset, add_channel_axis, from_arrays
from fedjax_core.data.sources.dataset_cards import CARDS, KRIZ
from fedjax_core.data.sources.file_checks import check_md5, find_file, read_unpacked, read_zip_member


class Cifar(NamedTuple):
    """One of CIFAR's two binary archives.

    Attributes:
      archive: file name of the archive.
      folder: that it unpacks to.
      md5: of the archive, as published beside it.
      parts: file -> number of records; the last file is the test set.
      labels: label set -> (file of its names, number of classes). A record is one byte for each
        label set, then 3072 of pixels.
    """

    archive: str
    folder: str
    md5: str
    parts: dict[str, int]
    labels: dict[str, tuple[str, int]]


CIFAR10 = Cifar(
    "cifar-10-binary.tar.gz",
    "cifar-10-batches-bin",
    "c32a1d4ab5d03f1284b67883e8d87530",
    {f"data_batch_{i}.bin": 10_000 for i in range(1, 6)} | {"test_batch.bin": 10_000},
    {"fine": ("batches.meta.txt", 10)},
)
CIFAR100 = Cifar(
    "cifar-100-binary.tar.gz",
    "cifar-100-binary",
    "03b5dce01913d631647c71ecec9e9cb8",
    {"train.bin": 50_000, "test.bin": 10_000},
    {"coarse": ("coarse_label_names.txt", 20), "fine": ("fine_label_names.txt", 100)},
)
MNIST_MD5 = {  # of the unpacked files
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
EMNIST_NAMES = {
    "byclass": string.digits + string.ascii_uppercase + string.ascii_lowercase,
    "bymerge": string.digits + string.ascii_uppercase + "abdefghnqrt",
    "balanced": string.digits + string.ascii_uppercase + "abdefghnqrt",
    "letters": string.ascii_uppercase,
    "digits": string.digits,
    "mnist": string.digits,
}
EMNIST_ROWS = {
    "byclass": [(697_932, 116_323)],
    "bymerge": [(697_932, 116_323)],
    "balanced": [(112_800, 18_800)],
    "letters": [(124_800, 20_800), (88_800, 14_800)],  # now, and as first published
    "digits": [(240_000, 40_000)],
    "mnist": [(60_000, 10_000)],
}
SVHN_MD5 = {"train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373", "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"}


def cifar10(data_dir: Path) -> Dataset:
    """Reads CIFAR-10 from `cifar-10-binary.tar.gz` (checked by md5) or `cifar-10-batches-bin/`.

    50,000 training and 10,000 test images of 32x32x3, 10 classes.
    """
    return read_cifar("cifar10", CIFAR10, data_dir, "fine")


def cifar100(data_dir: Path, labels: str = "fine") -> Dataset:
    """Reads CIFAR-100 from `cifar-100-binary.tar.gz` (checked by md5) or `cifar-100-binary/`.

    50,000 training and 10,000 test images of 32x32x3.

    Args:
      labels: "fine" (100 classes) or "coarse" (20 superclasses).
    """
    return read_cifar("cifar100", CIFAR100, data_dir, labels)


def read_cifar(name: str, spec: Cifar, data_dir: Path, labels: str) -> Dataset:
    """Reads either archive: records of label bytes and 3x32x32 pixels, channels first."""
    registry.check_choice("label set", labels, spec.labels)
    names_file, classes = spec.labels[labels]
    how = f"get {KRIZ}{spec.archive} and put it there, packed or unpacked"
    archives = [data_dir / spec.archive, data_dir / name / spec.archive]
    where = find_file(name, data_dir, archives, how, data_dir / spec.folder)
    files = [*spec.parts, names_file]
    if where.is_dir():
        blobs = {file: find_file(name, data_dir, [where / file], how).read_bytes() for file in files}
    else:
        packed = where.read_bytes()
        check_md5(where, packed, spec.md5)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            members: dict[str, Any] = {file: archive.extractfile(f"{spec.folder}/{file}") for file in files}
            blobs = {file: member.read() for file, member in members.items()}
    width = len(spec.labels) + 3072
    parts = []
    for file, rows in spec.parts.items():
        if len(blobs[file]) != rows * width:
            raise ValueError(
                f"{where}: {file} has {len(blobs[file])} bytes, {rows} records of {width} are {rows * width}: the file is "
                f"truncated or another one; {how}."
            )
        parts.append(np.frombuffer(blobs[file], np.uint8).reshape(rows, width))
    class_names = tuple(blobs[names_file].decode().split())
    if len(class_names) != classes:
        raise ValueError(f"{where}: {names_file} has {len(class_names)} names, must be {classes}; {how}.")
    column, arrays = list(spec.labels).index(labels), []
    for records in (np.concatenate(parts[:-1]), parts[-1]):
        pixels = records[:, len(spec.labels) :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays += [np.ascontiguousarray(pixels), records[:, column]]
    return from_arrays(*arrays, class_names=class_names, name=name)


def mnist(data_dir: Path) -> Dataset:
    """Reads MNIST from its four IDX files, packed (.gz) or not, in `mnist/` or beside it.

    Checked by md5. 60,000 training and 10,000 test images of 28x28x1.
    """
    how = f"get the four .gz files from {CARDS['mnist'].where} and put them there, packed or unpacked"
    arrays = []
    for file, md5 in MNIST_MD5.items():
        where = find_file("mnist", data_dir, _packed_or_not([data_dir / "mnist", data_dir], file), how)
        blob = read_unpacked(where)
        check_md5(where, blob, md5)
        arrays.append(add_channel_axis(read_idx(where, blob)))
    return from_arrays(*arrays, class_names=tuple(string.digits), name="mnist")


def emnist(data_dir: Path, split: str = "balanced") -> Dataset:
    """Reads EMNIST from its IDX files, packed (.gz) or not, or inside `gzip.zip`.

    They may be in `emnist/`, `gzip/` or beside them, and are checked by exact sizes. The files hold
    images transposed; here they are upright (`tfds:emnist/bymerge` and its like leave them so).
    Labels of `letters` start at 0 (in the files at 1). Images are 28x28x1.

    Args:
      split: byclass (62 classes), bymerge (47), balanced (47), letters (26), digits (10) or mnist
        (10).
    """
    registry.check_choice("EMNIST split", split, EMNIST_NAMES)
    return read_emnist(data_dir, split, EMNIST_ROWS[split])


def read_emnist(data_dir: Path, split: str, rows: Sequence[tuple[int, int]]) -> Dataset:
    """Reads one split, with one of the given pairs of sizes."""
    how = f"get {CARDS['emnist'].where} and put it there, packed or unpacked"
    folders = [data_dir / "emnist", data_dir / "emnist" / "gzip", data_dir / "gzip", data_dir]
    archives = [folder / "gzip.zip" for folder in (data_dir / "emnist", data_dir)]
    arrays = []
    for part in ("train", "test"):
        for kind in ("images-idx3", "labels-idx1"):
            file = f"emnist-{split}-{part}-{kind}-ubyte"
            where = find_file("emnist", data_dir, [*_packed_or_not(folders, file), *archives], how)
            blob = read_zip_member(where, f"gzip/{file}.gz") if where.suffix == ".zip" else read_unpacked(where)
            arrays.append(read_idx(where, blob))
    train_x, train_y, test_x, test_y = arrays
    if (len(train_y), len(test_y)) not in rows:
        allowed = " or ".join(f"{train} and {test}" for train, test in rows)
        raise ValueError(
            f"emnist {split}: {len(train_y)} training and {len(test_y)} test examples, published are {allowed}; {how}."
        )
    first = 1 if split == "letters" else 0
    x = [add_channel_axis(images).swapaxes(1, 2).copy() for images in (train_x, test_x)]
    y = [labels.astype(np.int32) - first for labels in (train_y, test_y)]
    return from_arrays(x[0], y[0], x[1], y[1], tuple(EMNIST_NAMES[split]), name=f"emnist_{split}")


def _packed_or_not(folders: Sequence[Path], file: str) -> list[Path]:
    return [folder / (file + end) for folder in folders for end in ("", ".gz")]


def read_idx(where: Path, blob: bytes) -> np.ndarray:
    """Reads the array of an IDX file of unsigned bytes.

    Layout: 0, 0, type (8), number of axes; the length of each axis as a big-endian 32-bit number;
    the values.

    Raises:
      ValueError: another magic number, or not exactly as many bytes as the header says.
    """
    if len(blob) < 4 or blob[:3] != b"\x00\x00\x08" or not 1 <= blob[3] <= 4 or len(blob) < 4 + 4 * blob[3]:
        raise ValueError(f"{where}: starts with {blob[:4].hex(' ')!r}, an IDX file of unsigned bytes with 00 00 08 and 01 to 04.")
    start = 4 + 4 * blob[3]
    shape = struct.unpack(f">{blob[3]}I", blob[4:start])
    if len(blob) - start != int(np.prod(shape)):
        raise ValueError(
            f"{where}: {len(blob) - start} values, its header says {shape}, which are {int(np.prod(shape))}: the file is "
            "truncated or damaged; get it again."
        )
    return np.frombuffer(blob, np.uint8, offset=start).reshape(shape)


def svhn(data_dir: Path) -> Dataset:
    """Reads SVHN's cropped digits: `train_32x32.mat` and `test_32x32.mat`, in `svhn/` or beside it.

    Checked by md5. 73,257 training and 26,032 test images of 32x32x3; the file's label 10 is digit
    0. The extra images are not read.
    """
    return read_svhn(data_dir, SVHN_MD5)


def read_svhn(data_dir: Path, md5: dict[str, str]) -> Dataset:
    """Reads both files, MATLAB's version 5: X [32, 32, 3, n] uint8, y [n, 1] from 1 to 10."""
    from scipy.io import loadmat

    how = f"get it from {CARDS['svhn'].where} and put it there"
    arrays = []
    for file, published in md5.items():
        where = find_file("svhn", data_dir, [data_dir / "svhn" / file, data_dir / file], how)
        blob = where.read_bytes()
        check_md5(where, blob, published)
        held: dict[str, Any] = loadmat(io.BytesIO(blob), variable_names=["X", "y"])
        x, y = held["X"], held["y"].reshape(-1)
        arrays += [np.ascontiguousarray(x.transpose(3, 0, 1, 2)), y.astype(np.int32) % 10]
    return from_arrays(*arrays, class_names=tuple(string.digits), name="svhn")
