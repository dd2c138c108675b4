"""CIFAR-10 and CIFAR-100 from their binary archives."""

import tarfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_core import registry
from fedjax_core.data.sources import file_checks
from fedjax_core.data.sources.dataset import Dataset, from_arrays


class Cifar(NamedTuple):
    """One of the two binary archives.

    Attributes:
      archive: file name of the archive, and the folder it unpacks to.
      md5: of the archive, as published beside it.
      parts: file -> number of records; the last file is the test set.
      labels: a record is one byte for each of these, then 3072 of pixels; and the file with the
        names.
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


def cifar10(data_dir: Path) -> Dataset:
    """Reads CIFAR-10 from `cifar-10-binary.tar.gz` (checked by md5) or `cifar-10-batches-bin/` (by
    exact sizes).

    50,000 training and 10,000 test images of 32x32x3, 10 classes. Krizhevsky. Learning Multiple
    Layers of Features from Tiny Images. 2009.

    Args:
      data_dir: the folder of the file.

    Raises:
      FileNotFoundError: the files are not there; the message says which, where to get and where to
        put them.
      ValueError: they are truncated, damaged or others.
    """
    return read_cifar("cifar10", CIFAR10, data_dir, "fine")


def cifar100(data_dir: Path, labels: str = "fine") -> Dataset:
    """Reads CIFAR-100 from `cifar-100-binary.tar.gz` (checked by md5) or `cifar-100-binary/` (by
    exact sizes).

    50,000 training and 10,000 test images of 32x32x3. Krizhevsky. Learning Multiple Layers of
    Features from Tiny Images. 2009.

    Args:
      data_dir: the folder of the file.
      labels: "fine" (100 classes) or "coarse" (20 superclasses).

    Raises:
      FileNotFoundError: the files are not there; the message says which, where to get and where to
        put them.
      ValueError: they are truncated, damaged or others; or there is no such set of labels.
    """
    return read_cifar("cifar100", CIFAR100, data_dir, labels)


def read_cifar(name: str, spec: Cifar, data_dir: Path, labels: str) -> Dataset:
    """Reads either archive: records of label bytes and 3x32x32 pixels, channels first, no header."""
    registry.check_choice("label set", labels, spec.labels)
    names_file, classes = spec.labels[labels]
    how = f"get https://www.cs.toronto.edu/~kriz/{spec.archive} and put it there, packed or unpacked"
    where = file_checks.find_file(
        name, data_dir, [data_dir / spec.archive, data_dir / name / spec.archive], how, data_dir / spec.folder
    )
    blobs = {}
    if where.is_dir():
        for file in [*spec.parts, names_file]:
            blobs[file] = file_checks.find_file(name, data_dir, [where / file], how).read_bytes()
    else:
        file_checks.check_md5(where, where.read_bytes(), spec.md5)
        with tarfile.open(where) as archive:
            for file in [*spec.parts, names_file]:
                blobs[file] = file_checks.read_tar_member(archive, where, f"{spec.folder}/{file}")
    width = len(spec.labels) + 3072
    records = []
    for file, rows in spec.parts.items():
        if len(blobs[file]) != rows * width:
            raise ValueError(
                f"{where}: {file} has {len(blobs[file])} bytes, {rows} records of {width} are {rows * width}: the file is "
                f"truncated or another one; {how}."
            )
        records.append(np.frombuffer(blobs[file], np.uint8).reshape(rows, width))
    class_names = tuple(blobs[names_file].decode().split())
    if len(class_names) != classes:
        raise ValueError(f"{where}: {names_file} has {len(class_names)} names, must be {classes}; {how}.")
    column = list(spec.labels).index(labels)

    def split(records):
        pixels = records[:, len(spec.labels) :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(pixels), records[:, column]

    (train_x, train_y), (test_x, test_y) = split(np.concatenate(records[:-1])), split(records[-1])
    return from_arrays(train_x, train_y, test_x, test_y, class_names, name=name)
