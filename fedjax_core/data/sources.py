"""Where data come from: one small reader per format, all of them ending in `from_arrays`, which checks.

`load(name)` takes
  digits                         scikit-learn's 8x8 digits: embedded, offline
  cifar10, cifar100              the published binary archives
  fc100                          CIFAR-100 for few-shot learning, classes divided by superclass
  mnist, emnist                  the published IDX files
  svhn                           the published MATLAB files of cropped digits
  tfds:NAME                      an image classification set that tensorflow_datasets has prepared; TensorFlow is not needed
  npz:FILE                       arrays or encoded images in one file
  folder:DIR                     CLASS/image files
  unseen(of=SOURCE, classes=...) any of these, some of its classes in the test set alone
  unseen_domain(of=SOURCE, domain=...)  any of these that has domains, one of them in the test set alone
  only(of=SOURCE, classes=...)   any of these, some of its classes and no others
  resplit(of=SOURCE)             any of these, tested on a part of its training set
  rotated(of=SOURCE)             any of these, its images turned; a domain for each angle
  blank(shape=..., classes=...)  black images, to count and to time with
Files are looked for in `data_dir`, else in $FEDJAX_DATA, else in ~/fedjax_data. Nothing is downloaded and no pickle is ever
loaded; files of published sets are checked by checksum or by exact size. One source never stands in for another.

A further set is a function that finds its files (`_find`), turns bytes into arrays and hands them to `from_arrays`, and a line
in `READERS`.
"""

import gzip
import hashlib
import io
import itertools
import os
import string
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_core import by_name
from fedjax_core.algorithm import Examples
from fedjax_core.data.partition import apportion, generator

DATA_VARIABLE = "FEDJAX_DATA"
SPLIT_SEED = 0  # of the splits that are ours, where a set comes without one
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


class Dataset(NamedTuple):
    """A labelled image set on the host, with its official test set.

    Attributes:
      name: what tables call it.
      train: Examples(x [rows, H, W, C] uint8 in 0..255, or float32; y [rows] int32 in [0, K)).
      test: Examples of the same kind.
      class_names: K names.
      train_domains: [rows] int32 in [0, len(domain_names)), or None.
      test_domains: [test rows], or None.
      domain_names: empty if there are no domains.
      train_clients: [rows] int32, the natural client of each row (a writer, a user), or None.
      test_clients: [test rows], or None.
    """

    name: str
    train: Examples
    test: Examples
    class_names: tuple[str, ...]
    train_domains: np.ndarray | None = None
    test_domains: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()
    train_clients: np.ndarray | None = None
    test_clients: np.ndarray | None = None


def load(name: str, data_dir: str | os.PathLike | None = None, **options) -> Dataset:
    """Loads a data set by name.

    Args:
      name: one of the names above, such as "digits", "tfds:cifar10" or "npz:pacs64.npz"; what follows the colon can also be
        the option `path`.
      data_dir: where the files lie; None: $FEDJAX_DATA, else ~/fedjax_data.
      **options: the reader's own keyword arguments: those of the function in `READERS` that have a default.

    Raises:
      ValueError: an unknown name, or files that are damaged or not what they should be.
      FileNotFoundError: the files are not there; the message says which, where to get and where to put them.
      TypeError: an option that the reader does not have.
    """
    kind, colon, rest = name.partition(":")
    if kind in PREFIXED and not colon:
        rest = str(options.pop("path", ""))
    if kind not in READERS or bool(rest) != (kind in PREFIXED):
        names = {reader: f"{reader}:{PREFIXED[reader]}" if reader in PREFIXED else reader for reader in READERS}
        hint = f" Did you mean {names[kind]!r}?" if kind in names else by_name.did_you_mean(kind, names)
        raise ValueError(f"unknown data set {name!r}; allowed: {', '.join(names.values())}.{hint}")
    root = Path(data_dir or os.environ.get(DATA_VARIABLE) or Path.home() / "fedjax_data").expanduser()
    return by_name.call(f"data set {name!r}", READERS[kind], {"data_dir": root, "path": rest}, options)


def from_arrays(
    train_x: Any,
    train_y: Any,
    test_x: Any,
    test_y: Any,
    class_names: Sequence[str] | None = None,
    *,
    name: str = "arrays",
    train_domains: Any = None,
    test_domains: Any = None,
    domain_names: Sequence[str] = (),
    train_clients: Any = None,
    test_clients: Any = None,
) -> Dataset:
    """A data set from arrays that you have; checks them.

    >>> import numpy as np
    >>> images = np.zeros((6, 8, 8, 1), np.uint8)
    >>> mine = from_arrays(images, [0, 1, 2, 0, 1, 2], images[:2], [0, 1], class_names=("cat", "dog", "owl"))
    >>> mine.train.x.shape, mine.train.y.tolist(), mine.class_names
    ((6, 8, 8, 1), [0, 1, 2, 0, 1, 2], ('cat', 'dog', 'owl'))

    Args:
      train_x: [rows, H, W, C] uint8, or floats (kept as float32); other features are [rows, D].
      train_y: [rows] integer labels in [0, K).
      test_x: as `train_x`, with the same shape of a row.
      test_y: [test rows].
      class_names: K names; None: "0" ... up to the largest label.
      name: what tables call it.
      train_domains: [rows] integers, where rows come from several domains.
      test_domains: [test rows]; given if `train_domains` is.
      domain_names: their names; empty: "0" ... up to the largest.
      train_clients: [rows] integers >= 0, the client that each row belongs to.
      test_clients: [test rows], or None.

    Raises:
      ValueError: a wrong shape, type or range; the message names the array, what it found and what is allowed.
    """
    parts = {"train": (train_x, train_y), "test": (test_x, test_y)}
    examples = {part: Examples(_pixels(f"{part}_x", x), _integers(f"{part}_y", y)) for part, (x, y) in parts.items()}
    train, test = examples["train"], examples["test"]
    if train.x.shape[1:] != test.x.shape[1:] or train.x.dtype != test.x.dtype:
        found = " and ".join(f"{x.shape} {x.dtype}" for x in (train.x, test.x))
        raise ValueError(f"train_x and test_x are {found}: rows must agree in shape and type.")
    for part, rows in examples.items():
        if len(rows.x) != len(rows.y) or not len(rows.y):
            raise ValueError(f"{part}_x has {len(rows.x)} rows and {part}_y {len(rows.y)}: must be equally many, at least 1.")
    class_names = _names("class_names", class_names, {"train_y": train.y, "test_y": test.y})
    if len(class_names) < 2:
        raise ValueError(f"{len(class_names)} class: classification needs at least 2; pass class_names if labels are missing.")
    columns = {"train_domains": train_domains, "test_domains": test_domains}
    columns |= {"train_clients": train_clients, "test_clients": test_clients}
    checked = {what: None if values is None else _integers(what, values) for what, values in columns.items()}
    for what, values in checked.items():
        rows = len(examples[what.split("_")[0]].y)
        if values is not None and len(values) != rows:
            raise ValueError(f"{what} has {len(values)} entries for {rows} rows: must be one per row.")
    domains = {what: checked[what] for what in ("train_domains", "test_domains")}
    if (checked["train_domains"] is None) != (checked["test_domains"] is None):
        raise ValueError("train_domains and test_domains: give both or neither.")
    if checked["train_clients"] is None and checked["test_clients"] is not None:
        raise ValueError("test_clients without train_clients: give both, or train_clients alone.")
    domain_names = () if checked["train_domains"] is None else _names("domain_names", domain_names or None, domains)
    return Dataset(name, train, test, class_names, domain_names=domain_names, **checked)


def digits() -> Dataset:
    """Scikit-learn's handwritten digits: 8x8x1, 10 classes, 1437 training and 360 test rows (stratified, fixed seed).

    The grey levels 0..16 are scaled to 0..255. Original: Alpaydin, Kaynak. Optical Recognition of Handwritten Digits, UCI, 1998.
    """
    import sklearn.datasets

    bunch: Any = sklearn.datasets.load_digits()
    x = np.round(bunch["images"][..., None] * (255 / 16)).astype(np.uint8)
    y = bunch["target"].astype(np.int32)
    is_test = stratified(y, 360)
    return from_arrays(x[~is_test], y[~is_test], x[is_test], y[is_test], tuple("0123456789"), name="digits")


class Cifar(NamedTuple):
    """One of the two binary archives.

    Attributes:
      archive: file name of the archive, and the folder it unpacks to.
      md5: of the archive, as published beside it.
      parts: file -> number of records; the last file is the test set.
      labels: a record is one byte for each of these, then 3072 of pixels; and the file with the names.
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
    """CIFAR-10 from `cifar-10-binary.tar.gz` (checked by md5) or `cifar-10-batches-bin/` (by exact sizes)."""
    return read_cifar("cifar10", CIFAR10, data_dir, "fine")


def cifar100(data_dir: Path, labels: str = "fine") -> Dataset:
    """CIFAR-100 from `cifar-100-binary.tar.gz` (checked by md5) or `cifar-100-binary/` (by exact sizes).

    Args:
      data_dir: where it lies.
      labels: "fine" (100 classes) or "coarse" (20 superclasses).
    """
    return read_cifar("cifar100", CIFAR100, data_dir, labels)


def read_cifar(name: str, spec: Cifar, data_dir: Path, labels: str) -> Dataset:
    """Reads either archive: records of label bytes and 3x32x32 pixels, channels first, no header."""
    by_name.choose("label set", labels, spec.labels)
    names_file, classes = spec.labels[labels]
    how = f"get https://www.cs.toronto.edu/~kriz/{spec.archive} and put it there, packed or unpacked"
    where = _find(name, data_dir, [data_dir / spec.archive, data_dir / name / spec.archive], how, data_dir / spec.folder)
    blobs = {}
    if where.is_dir():
        for file in [*spec.parts, names_file]:
            blobs[file] = _find(name, data_dir, [where / file], how).read_bytes()
    else:
        _check_md5(where, where.read_bytes(), spec.md5)
        with tarfile.open(where) as archive:
            for file in [*spec.parts, names_file]:
                blobs[file] = _member(archive, where, f"{spec.folder}/{file}")
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


SUPERCLASS = (  # of each class of CIFAR-100, both in alphabetical order
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10),
    *(12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12),
    *(1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
)
FC100 = {  # superclasses
    "train": (1, 2, 3, 4, 5, 6, 9, 10, 15, 17, 18, 19),
    "validation": (8, 11, 13, 16),
    "test": (0, 7, 12, 14),
}


def fc100(data_dir: Path, of: str = "cifar100", test: str = "test") -> Dataset:
    """FC100: CIFAR-100 with its classes divided by superclass, for few-shot learning; all 600 images of each class.

    60 classes are trained on (labels 0 to 59), and the test set is of 20 others (60 to 79); each in alphabetical order. FC100 as
    folders `train/CLASS/*` and `test/CLASS/*` is read by `folder:DIR`.

    Oreshkin, Rodriguez Lopez, Lacoste. TADAM: Task dependent adaptive metric for improved few-shot learning. NeurIPS 2018.
    https://arxiv.org/abs/1805.10123

    Args:
      data_dir: where the files lie.
      of: where CIFAR-100 comes from: "cifar100", its published archive; "tfds:cifar100"; or another source that has all of it.
      test: "test", or "validation" for the 20 classes that hyperparameters are chosen on.
    """
    by_name.choose("FC100 test", test, ("test", "validation"))
    dataset = _source(of, data_dir)
    if len(dataset.class_names) != len(SUPERCLASS) or list(dataset.class_names) != sorted(dataset.class_names):
        raise ValueError(
            f"fc100: of={of!r} has {len(dataset.class_names)} classes, {', '.join(dataset.class_names[:3])} ...: must have the "
            "100 of CIFAR-100, in alphabetical order."
        )
    train, tested = (np.flatnonzero(np.isin(SUPERCLASS, FC100[part])) for part in ("train", test))
    return _divided(dataset, train, tested, "fc100")


def unseen(data_dir: Path, of: str, classes: Sequence[int]) -> Dataset:
    """Another set, some of whose classes make up the test set and are not trained on: for few-shot episodes.

    All rows of a class, of both parts, stand on one side. The classes that are trained on come first.

    Args:
      data_dir: where the files lie.
      of: the set, such as "digits" or "emnist(split='bymerge')".
      classes: labels of the unseen ones.
    """
    dataset = _source(of, data_dir)
    number = len(dataset.class_names)
    wanted = np.unique(np.asarray(classes, int))
    if len(wanted) != len(classes) or not 1 <= len(wanted) < number or not 0 <= wanted[0] <= wanted[-1] < number:
        raise ValueError(f"unseen: classes={classes}: must be some, not all, of the labels 0 to {number - 1} of {of!r}, each once.")
    return _divided(dataset, np.setdiff1d(np.arange(number), wanted), wanted, f"{dataset.name}_unseen")


def only(data_dir: Path, of: str, classes: Sequence[int]) -> Dataset:
    """Some classes of another set, such as half of them to pre-train on, or those that are public.

    Args:
      data_dir: where the files lie.
      of: the set, such as "cifar10".
      classes: labels of those that stay; the first of them becomes label 0.
    """
    dataset = _source(of, data_dir)
    number, wanted = len(dataset.class_names), np.asarray(classes, int)
    if not len(wanted) or len({*wanted.tolist()}) < len(wanted) or not 0 <= min(wanted) <= max(wanted) < number:
        raise ValueError(f"only: classes={classes}: must be some of the labels 0 to {number - 1} of {of!r}, each once.")
    label = np.full(number, -1, np.int32)
    label[wanted] = np.arange(len(wanted))
    train, test = (np.flatnonzero(np.isin(part.y, wanted)) for part in (dataset.train, dataset.test))
    of_rows = lambda column, rows: None if column is None else column[rows]
    return dataset._replace(
        name=f"{dataset.name}_only",
        train=Examples(dataset.train.x[train], label[dataset.train.y[train]]),
        test=Examples(dataset.test.x[test], label[dataset.test.y[test]]),
        class_names=tuple(dataset.class_names[c] for c in wanted),
        train_domains=of_rows(dataset.train_domains, train),
        test_domains=of_rows(dataset.test_domains, test),
        train_clients=of_rows(dataset.train_clients, train),
        test_clients=of_rows(dataset.test_clients, test),
    )


def unseen_domain(data_dir: Path, of: str, domain: str) -> Dataset:
    """Another set, one of whose domains is the test set and is not trained on: "leave one domain out".

    All rows of a domain, of both parts, stand on one side. With the partition `by_domain` each client has one of the others, and
    is tested on all test rows.

    Args:
      data_dir: where the files lie.
      of: a set with domains, such as "npz(path='pacs64.npz')" or "folder(path='office', domains=True, test_fraction=0.2)".
      domain: the name of the unseen one.
    """
    dataset = _source(of, data_dir)
    if dataset.train_domains is None or dataset.test_domains is None:
        raise ValueError(f"unseen_domain: of={of!r} has no domains; needs a set that has, such as folder(path=DIR, domains=True).")
    left_out = dataset.domain_names.index(by_name.choose(f"domain of {of}", domain, dataset.domain_names))
    x, y = (np.concatenate(column) for column in zip(dataset.train, dataset.test, strict=True))
    domains = np.concatenate([dataset.train_domains, dataset.test_domains])
    test = domains == left_out
    if test.all() or not test.any():
        raise ValueError(f"unseen_domain: domain={domain!r} has {test.sum()} of the {len(test)} rows: must have some, and not all.")
    names = {"domain_names": dataset.domain_names, "name": f"{dataset.name}_unseen_{domain}"}
    columns = {"train_domains": domains[~test], "test_domains": domains[test]}
    return from_arrays(x[~test], y[~test], x[test], y[test], dataset.class_names, **columns, **names)


def rotated(data_dir: Path, of: str, degrees: Sequence[float] = (0, 30, 60, 90)) -> Dataset:
    """Another set whose images are turned counterclockwise, by one of several angles each: a domain for each angle.

    As in Ghifary, Kleijn, Zhang, Balduzzi. Domain Generalization for Object Recognition with Multi-task Autoencoders. ICCV 2015.

    Args:
      data_dir: where the files lie.
      of: a set of uint8 images, such as "digits".
      degrees: the angles; the names of the domains. Corners that turn in are black.
    """
    from PIL import Image

    dataset, angles = _source(of, data_dir), tuple(degrees)
    if len(angles) < 2 or len({*angles}) < len(angles):
        raise ValueError(f"rotated: degrees={angles}: must be two or more angles, each once.")
    if dataset.train.x.ndim != 4 or dataset.train.x.dtype != np.uint8:
        raise ValueError(f"rotated: of={of!r} has rows {dataset.train.x.shape[1:]} {dataset.train.x.dtype}: must be uint8 images.")
    parts = []
    for part, (x, y) in (("train", dataset.train), ("test", dataset.test)):
        domains = generator(SPLIT_SEED, f"rotated {part}").permutation(np.arange(len(y)) % len(angles)).astype(np.int32)
        turned = x.copy()
        for i in np.flatnonzero(np.asarray(angles)[domains] != 0):
            for c in range(x.shape[-1]):
                turned[i, ..., c] = Image.fromarray(x[i, ..., c]).rotate(angles[domains[i]], Image.Resampling.BILINEAR)
        parts += [turned, y, domains]
    train_x, train_y, train_domains, test_x, test_y, test_domains = parts
    names = {"domain_names": tuple(f"{angle:g}" for angle in angles), "name": f"{dataset.name}_rotated"}
    held = {"train_domains": train_domains, "test_domains": test_domains}
    return from_arrays(train_x, train_y, test_x, test_y, dataset.class_names, **held, **names)


def resplit(data_dir: Path, of: str, test_fraction: float = 0.2) -> Dataset:
    """Another set's training rows alone, a part of each class as test set; its own test rows are left out.

    For clients with private test sets (FedHPL, Figures 7 to 9), with `pathological(classes_per_client=(2, 4, 6, 8, 10))`.

    Args:
      data_dir: where the files lie.
      of: the set, such as "cifar10".
      test_fraction: part of each class that is tested on; fixed seed.
    """
    dataset = _source(of, data_dir)
    x, y = dataset.train
    is_test = _stratified_fraction([y], test_fraction)
    of_row = lambda column, kept: None if column is None else column[kept]
    return dataset._replace(
        name=f"{dataset.name}_resplit",
        train=Examples(x[~is_test], y[~is_test]),
        test=Examples(x[is_test], y[is_test]),
        train_domains=of_row(dataset.train_domains, ~is_test),
        test_domains=of_row(dataset.train_domains, is_test),
        train_clients=of_row(dataset.train_clients, ~is_test),
        test_clients=of_row(dataset.train_clients, is_test),
    )


def blank(shape: Sequence[int] = (32, 32, 3), classes: int = 10, rows: int = 100) -> Dataset:
    """Black images with labels in turn: to count parameters and traffic, and to time rounds, of a set whose files are not there.

    Args:
      shape: of an image, [H, W, C].
      classes: K.
      rows: of the training set, and as many of the test set.
    """
    if len(shape) != 3 or min(shape) < 1 or classes < 2 or rows < classes:
        raise ValueError(f"blank: shape={shape}, classes={classes}, rows={rows}: must be [H, W, C], at least 2, and at least K.")
    x, y = np.zeros((rows, *shape), np.uint8), np.arange(rows) % classes
    return from_arrays(x, y, x, y, [str(c) for c in range(classes)], name="blank")


def _source(of: str, data_dir: Path) -> Dataset:
    name, options = by_name.parse(of)
    if name.startswith("tfds:cifar100"):
        options = {"label": "label"} | options  # beside it stands the superclass
    return load(name, data_dir, **options)


def _divided(dataset: Dataset, train: np.ndarray, test: np.ndarray, name: str) -> Dataset:
    """All rows of the classes `train` as training set, and of `test` as test set, numbered in this order."""
    x, y = (np.concatenate(column) for column in zip(dataset.train, dataset.test, strict=True))
    chosen = np.concatenate([train, test])
    label = np.full(len(dataset.class_names), -1, np.int32)
    label[chosen] = np.arange(len(chosen))
    train_rows, test_rows = (np.flatnonzero(np.isin(y, classes)) for classes in (train, test))
    names = [dataset.class_names[c] for c in chosen]
    return from_arrays(x[train_rows], label[y[train_rows]], x[test_rows], label[y[test_rows]], names, name=name)


MNIST_MD5 = {  # of the unpacked files
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def mnist(data_dir: Path) -> Dataset:
    """MNIST from its four IDX files, packed (.gz) or not, in `mnist/` or beside it; checked by md5."""
    how = "get the four .gz files from https://storage.googleapis.com/cvdf-datasets/mnist/ and put them there, packed or unpacked"
    arrays = []
    for file, md5 in MNIST_MD5.items():
        folders = (data_dir / "mnist", data_dir)
        where = _find("mnist", data_dir, [folder / (file + end) for folder in folders for end in ("", ".gz")], how)
        blob = _unpacked(where)
        _check_md5(where, blob, md5)
        arrays.append(_grey(read_idx(where, blob)))
    train_x, train_y, test_x, test_y = arrays
    return from_arrays(train_x, train_y, test_x, test_y, tuple(string.digits), name="mnist")


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


def emnist(data_dir: Path, split: str = "balanced") -> Dataset:
    """EMNIST from its IDX files, packed (.gz) or not, in `emnist/`, `gzip/` or inside `gzip.zip`; checked by exact sizes.

    The files hold images transposed; here they are upright (`tfds:emnist/bymerge` and its like leave them so). Labels of `letters`
    start at 0 (in the files at 1).

    Args:
      data_dir: where they lie.
      split: byclass (62 classes), bymerge (47), balanced (47), letters (26), digits (10) or mnist (10).
    """
    by_name.choose("EMNIST split", split, EMNIST_NAMES)
    return read_emnist(data_dir, split, EMNIST_ROWS[split])


def read_emnist(data_dir: Path, split: str, rows: Sequence[tuple[int, int]]) -> Dataset:
    """Reads one split, with one of the given pairs of sizes."""
    how = "get https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip and put it there, packed or unpacked"
    folders = [data_dir / "emnist", data_dir / "emnist" / "gzip", data_dir / "gzip", data_dir]
    archives = [folder / "gzip.zip" for folder in (data_dir / "emnist", data_dir)]
    arrays = []
    for part in ("train", "test"):
        for kind in ("images-idx3", "labels-idx1"):
            file = f"emnist-{split}-{part}-{kind}-ubyte"
            places = [folder / (file + end) for folder in folders for end in ("", ".gz")]
            where = _find("emnist", data_dir, [*places, *archives], how)
            blob = _zipped(where, f"gzip/{file}.gz") if where.suffix == ".zip" else _unpacked(where)
            arrays.append(read_idx(where, blob))
    train_x, train_y, test_x, test_y = arrays
    if (len(train_y), len(test_y)) not in rows:
        allowed = " or ".join(f"{train} and {test}" for train, test in rows)
        raise ValueError(f"emnist {split}: {len(train_y)} training and {len(test_y)} test rows, published are {allowed}; {how}.")
    first = 1 if split == "letters" else 0
    x = [_grey(images).swapaxes(1, 2).copy() for images in (train_x, test_x)]
    y = [labels.astype(np.int32) - first for labels in (train_y, test_y)]
    return from_arrays(x[0], y[0], x[1], y[1], tuple(EMNIST_NAMES[split]), name=f"emnist_{split}")


SVHN_MD5 = {"train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373", "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"}


def svhn(data_dir: Path) -> Dataset:
    """SVHN, cropped digits: `train_32x32.mat` and `test_32x32.mat`, in `svhn/` or beside it; checked by md5.

    73,257 training and 26,032 test images of 32x32x3; the file's label 10 is digit 0. The extra images are not read. Netzer et al.
    Reading Digits in Natural Images with Unsupervised Feature Learning. NIPS workshop, 2011.
    """
    return read_svhn(data_dir, SVHN_MD5)


def read_svhn(data_dir: Path, md5: dict[str, str]) -> Dataset:
    """Reads both files, MATLAB's version 5: X [32, 32, 3, rows] uint8, y [rows, 1] from 1 to 10."""
    from scipy.io import loadmat

    how = "get it from http://ufldl.stanford.edu/housenumbers/ and put it there"
    arrays = []
    for file, published in md5.items():
        where = _find("svhn", data_dir, [folder / file for folder in (data_dir / "svhn", data_dir)], how)
        blob = where.read_bytes()
        _check_md5(where, blob, published)
        held: dict[str, Any] = loadmat(io.BytesIO(blob), variable_names=["X", "y"])
        if missing := {"X", "y"} - set(held):
            raise ValueError(f"{where}: has no array {min(missing)}, needs X [32, 32, 3, rows] and y [rows, 1]; {how}.")
        x, y = held["X"], held["y"].reshape(-1)
        if x.shape != (32, 32, 3, len(y)) or not np.isin(y, range(1, 11)).all():
            raise ValueError(
                f"{where}: X {x.shape} and y from {y.min()} to {y.max()}, must be (32, 32, 3, {len(y)}), 1 to 10; {how}."
            )
        arrays += [np.ascontiguousarray(x.transpose(3, 0, 1, 2)), y.astype(np.int32) % 10]
    train_x, train_y, test_x, test_y = arrays
    return from_arrays(train_x, train_y, test_x, test_y, tuple(string.digits), name="svhn")


def read_idx(where: Path, blob: bytes) -> np.ndarray:
    """The array in an IDX file of unsigned bytes.

    Layout: 0, 0, type (8), number of axes; the length of each axis as a big-endian 32-bit number; the values.

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


def tfds(
    data_dir: Path,
    path: str,
    train: str = "train",
    test: str = "test",
    size: int | None = None,
    image: str | None = None,
    label: str | None = None,
) -> Dataset:
    """An image classification set prepared by tensorflow_datasets in random-access form, read without TensorFlow.

    Args:
      data_dir: holds `NAME/[CONFIG/]VERSION/`, itself or in its folder `tfds`.
      path: NAME, NAME/CONFIG, or either with :VERSION; the newest version if none is given.
      train: split that is trained on; slices such as "train[:1000]" work.
      test: split that is the test set; some sets have "validation" only.
      size: resize all images to size x size; needed where they differ.
      image: feature that holds the image, where there are several.
      label: feature that holds the label, where there are several.
    """
    import tensorflow_datasets

    builder: Any = tensorflow_datasets.builder_from_directory(tfds_folder(data_dir, path))
    features = builder.info.features

    def the(kind, chosen, option):
        found = [key for key, feature in features.items() if type(feature) is kind]
        if chosen is None and len(found) == 1:
            return found[0]
        if chosen not in found:
            raise ValueError(f"tfds:{path}: option {option}={chosen!r}: must be one of its {kind.__name__} features, {found}.")
        return chosen

    image = the(tensorflow_datasets.features.Image, image, "image")
    label = the(tensorflow_datasets.features.ClassLabel, label, "label")
    channels = features[image].shape[-1] or 3
    if features[image].np_dtype != np.uint8:
        raise ValueError(f"tfds:{path}: images of type {np.dtype(features[image].np_dtype)}; only uint8 images are read.")
    arrays = []
    for split in (train, test):
        try:
            rows = builder.as_data_source(split, decoders={image: tensorflow_datasets.decode.SkipDecoding()})
            records = [(row[image], row[label]) for row in rows]
        except NotImplementedError as error:
            raise ValueError(
                f"tfds:{path}: prepared as {builder.info.file_format.value}, which has no random access; prepare it again with "
                "file_format='array_record'."
            ) from error
        except (ValueError, KeyError) as error:
            raise ValueError(f"tfds:{path}: split {split!r}: the set has {', '.join(builder.info.splits)}.") from error
        except (RuntimeError, OSError) as error:
            raise ValueError(f"tfds:{path}: split {split!r} is missing, truncated or damaged ({error}); get it again.") from error
        blobs, labels = zip(*records, strict=True)
        arrays += [_decode(f"tfds:{path} {split}", blobs, len(blobs), channels, size), np.array(labels)]
    train_x, train_y, test_x, test_y = arrays
    return from_arrays(train_x, train_y, test_x, test_y, tuple(features[label].names), name=builder.info.name)


def npz(data_dir: Path, path: str, channels: int = 3, size: int | None = None, test_fraction: float | None = None) -> Dataset:
    """A .npz file with arrays or encoded images; read without pickle.

    Either both parts, `train_` and `test_` in front of each key, or one with `is_test` [rows] bool and bare keys:
      images                 [rows, H, W] or [rows, H, W, C], uint8 or floats
      bytes, offsets         instead of images: encoded files one after another, file i is bytes[offsets[i]:offsets[i + 1]]
      labels                 [rows] integers
      domains, clients       [rows] integers, optional
    and without a prefix, optional: class_names [K], domain_names.

    Args:
      data_dir: where relative paths start.
      path: the file.
      channels: 3 or 1, what encoded images are converted to.
      size: resize encoded images to size x size; needed where they differ.
      test_fraction: for a file in one part: our own split, stratified by class (and domain), in place of `is_test`.
    """
    where = data_dir / Path(path).expanduser()
    candidates = [where] if where.suffix == ".npz" else [where, where.with_name(where.name + ".npz")]
    where = _find(f"npz:{path}", data_dir, candidates, "put the file there, or give its full path")
    columns = _npz_columns(where)
    names = {key: [str(name) for name in columns.pop(key)] for key in ("class_names", "domain_names") if key in columns}
    parts = {"train": {}, "test": {}}
    if "labels" in columns:
        labels = columns["labels"]
        rows = {key: columns[key] for key in NPZ_COLUMNS if key in columns}
        if test_fraction is not None:
            is_test = _stratified_fraction([labels, rows["domains"]] if "domains" in rows else [labels], test_fraction)
        elif "is_test" in columns:
            is_test = columns["is_test"].astype(bool)
        else:
            raise ValueError(f"{where}: has neither `is_test` nor a test part; pass test_fraction, such as 0.2.")
        rows |= {"images": _npz_images(where, rows, "", channels, size)}
        for part, chosen in (("train", ~is_test), ("test", is_test)):
            parts[part] = {key: values[chosen] for key, values in rows.items() if key not in ("bytes", "offsets")}
    elif test_fraction is not None:
        raise ValueError(f"{where}: test_fraction={test_fraction}, but the file has a test part of its own.")
    else:
        for part in parts:
            rows = {key: columns[f"{part}_{key}"] for key in NPZ_COLUMNS if f"{part}_{key}" in columns}
            if "labels" not in rows:
                raise ValueError(f"{where}: has no `{part}_labels` (found: {', '.join(columns)}).")
            parts[part] = rows | {"images": _npz_images(where, rows, f"{part}_", channels, size)}
    train, test = parts["train"], parts["test"]
    return from_arrays(
        train["images"],
        train["labels"],
        test["images"],
        test["labels"],
        names.get("class_names"),
        name=where.stem,
        train_domains=train.get("domains"),
        test_domains=test.get("domains"),
        domain_names=names.get("domain_names", ()),
        train_clients=train.get("clients"),
        test_clients=test.get("clients"),
    )


NPZ_COLUMNS = ("images", "bytes", "offsets", "labels", "domains", "clients")
NPZ_SHARED = ("is_test", "class_names", "domain_names")


def _npz_columns(where: Path) -> dict[str, np.ndarray]:
    """The arrays of the file that have a known key."""
    if not zipfile.is_zipfile(where):
        raise ValueError(f"{where}: is not a .npz archive, or is truncated.")
    columns = {}
    with np.load(where, allow_pickle=False) as file:
        for key in file.files:
            if key.removeprefix("train_").removeprefix("test_") in NPZ_COLUMNS or key in NPZ_SHARED:
                try:
                    columns[key] = file[key]
                except ValueError:
                    raise ValueError(f"{where}: `{key}` holds pickled objects, which are never loaded.") from None
                except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                    raise ValueError(f"{where}: `{key}` is damaged ({error}); get the file again.") from error
        if not columns:
            raise ValueError(f"{where}: has none of the known keys; found {', '.join(file.files) or 'nothing'}.")
    return columns


def _npz_images(where: Path, rows: dict[str, np.ndarray], prefix: str, channels: int, size: int | None) -> np.ndarray:
    if "images" in rows:
        if size is not None:
            raise ValueError(f"{where}: size={size}: only encoded images are resized, `{prefix}images` is an array.")
        return _grey(rows["images"])
    if "bytes" not in rows or "offsets" not in rows:
        raise ValueError(f"{where}: has neither `{prefix}images` nor `{prefix}bytes` with `{prefix}offsets`.")
    blob, offsets, count = rows["bytes"].tobytes(), rows["offsets"], len(rows["labels"])
    if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != len(blob) or np.any(np.diff(offsets) < 0):
        raise ValueError(
            f"{where}: `{prefix}offsets` must be {count + 1} increasing numbers from 0 to {len(blob)}, one more than there are "
            "labels."
        )
    files = (blob[a:b] for a, b in itertools.pairwise(offsets))
    return _decode(f"{where} {prefix}bytes", files, count, channels, size)


def folder(
    data_dir: Path,
    path: str,
    domains: bool = False,
    channels: int = 3,
    size: int | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """A folder of images: `train/CLASS/*` and `test/CLASS/*`, or `CLASS/*` with `test_fraction`.

    With `domains`, a level above the classes: `train/DOMAIN/CLASS/*` and `test/...`, or `DOMAIN/CLASS/*` with `test_fraction`.
    Classes, domains and files come in alphabetical order.

    Args:
      data_dir: where relative paths start.
      path: the folder.
      domains: whether there is a level of domains.
      channels: 3 or 1, what images are converted to.
      size: resize all images to size x size; needed where they differ.
      test_fraction: part of each class (and domain) that becomes the test set, where the folder has none; fixed seed.
    """
    root = data_dir / Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"folder:{path}: there is no folder {root}; put it there, or give its full path.")
    halves = [root / part for part in ("train", "test")]
    has_split = all(half.is_dir() for half in halves)
    if has_split and test_fraction is not None:
        raise ValueError(f"{root}: test_fraction={test_fraction}, but the folder has train/ and test/ of its own.")
    if not has_split and test_fraction is None:
        raise ValueError(f"{root}: has no train/ and test/; pass test_fraction, such as 0.2, to split it.")
    files = [_image_files(half, domains) for half in (halves if has_split else [root])]
    listed = [entry for half in files for entry in half]
    class_names = sorted({class_name for _, class_name, _ in listed})
    domain_names = sorted({domain for domain, _, _ in listed})
    arrays = []
    for half in files:
        x = _decode(str(root), (file.read_bytes() for _, _, file in half), len(half), channels, size)
        y = np.array([class_names.index(class_name) for _, class_name, _ in half], np.int32)
        arrays.append((x, y, np.array([domain_names.index(domain) for domain, _, _ in half], np.int32)))
    if test_fraction is not None:
        x, y, of_domain = arrays[0]
        is_test = _stratified_fraction([y, of_domain], test_fraction)
        arrays = [tuple(array[chosen] for array in (x, y, of_domain)) for chosen in (~is_test, is_test)]
    (train_x, train_y, train_domains), (test_x, test_y, test_domains) = arrays
    held = {"train_domains": train_domains, "test_domains": test_domains, "domain_names": domain_names} if domains else {}
    return from_arrays(train_x, train_y, test_x, test_y, class_names, name=root.name, **held)


READERS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "fc100": fc100,
    "mnist": mnist,
    "emnist": emnist,
    "svhn": svhn,
    "tfds": tfds,
    "npz": npz,
    "folder": folder,
    "unseen": unseen,
    "unseen_domain": unseen_domain,
    "only": only,
    "resplit": resplit,
    "rotated": rotated,
    "blank": blank,
}
PREFIXED = {"tfds": "NAME", "npz": "FILE", "folder": "DIR"}


def _find(name: str, data_dir: Path, candidates: Iterable[Path], how: str, *folders: Path) -> Path:
    """The first candidate file (or folder) that exists."""
    candidates = list(candidates)
    for place in candidates:
        if place.is_file():
            return place
    for place in folders:
        if place.is_dir():
            return place
    looked = ", ".join(str(place) for place in [*candidates, *(f"{place}/" for place in folders)])
    raise FileNotFoundError(
        f"{name} is not in {data_dir}: looked for {looked}; {how} (or set data_dir, or the variable {DATA_VARIABLE})."
    )


def _check_md5(where: Path, blob: bytes, published: str) -> None:
    found = hashlib.md5(blob, usedforsecurity=False).hexdigest()
    if found != published:
        raise ValueError(
            f"{where}: {len(blob)} bytes with md5 {found}, published is {published}: truncated, damaged or "
            "another file; get it again."
        )


def _unpacked(where: Path) -> bytes:
    return _gunzip(where, where.read_bytes()) if where.suffix == ".gz" else where.read_bytes()


def _gunzip(where: Path, blob: bytes) -> bytes:
    try:
        return gzip.decompress(blob)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{where}: cannot be unpacked ({error}): truncated or damaged; get it again.") from error


def _zipped(where: Path, member: str) -> bytes:
    try:
        with zipfile.ZipFile(where) as archive:
            return _gunzip(where, archive.read(member))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(f"{where}: cannot read {member} ({error}): truncated or another archive; get it again.") from error


def _member(archive: tarfile.TarFile, where: Path, member: str) -> bytes:
    try:
        file = archive.extractfile(member)
    except KeyError:
        file = None
    if file is None:
        raise ValueError(f"{where}: has no file {member}.")
    return file.read()


def tfds_folder(data_dir: Path, path: str) -> Path:
    """The folder of a prepared set: NAME/[CONFIG/]VERSION."""
    name, _, version = path.partition(":")
    roots = [data_dir, data_dir / "tfds"]

    def versions(folder: Path) -> Iterator[Path]:
        for child in sorted(folder.iterdir()) if folder.is_dir() else ():
            if (child / "dataset_info.json").is_file() and (child / "features.json").is_file():
                yield child

    for root in roots:
        there = {child.name: child for child in versions(root / name)}
        if there and not version:
            return max(there.values(), key=lambda child: [int(n) if n.isdigit() else -1 for n in child.name.split(".")])
        if version in there:
            return there[version]
    known = sorted(
        f"{name}/{child.name}"
        for root in roots
        if (root / name).is_dir()
        for child in (root / name).iterdir()
        if any(versions(child))
    )
    have = f" It has {', '.join(known)}: name one." if known else ""
    looked = ", ".join(str(root / name / (version or "VERSION") / "dataset_info.json") for root in roots)
    raise FileNotFoundError(
        f"tfds:{path} is not prepared in {data_dir}: looked for {looked}.{have} To prepare it (needs TensorFlow: pip install "
        f"'fedjax-core[prepare]'): tfds.builder({name!r}, data_dir='{data_dir / 'tfds'}', "
        "file_format='array_record').download_and_prepare()."
    )


def _decode(where: str, blobs: Iterable[bytes], count: int, channels: int, size: int | None) -> np.ndarray:
    """Decodes encoded images into one array [count, H, W, channels] uint8."""
    from PIL import Image

    if channels not in (1, 3):
        raise ValueError(f"{where}: channels={channels}: must be 1 (grey) or 3 (colour).")
    if size is not None and size < 1:
        raise ValueError(f"{where}: size={size}: must be >= 1.")
    out = None
    for i, blob in enumerate(blobs):
        try:
            image = Image.open(io.BytesIO(blob)).convert("L" if channels == 1 else "RGB")
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(f"{where}: image {i} cannot be decoded ({error}).") from error
        if size is not None and image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        width, height = image.size
        if out is None:
            out = np.empty((count, height, width, channels), np.uint8)
        if out.shape[1:3] != (height, width):
            raise ValueError(
                f"{where}: image {i} is {height}x{width} and the first {out.shape[1]}x{out.shape[2]}; pass size to resize all."
            )
        out[i] = np.asarray(image).reshape(height, width, channels)
    if out is None:
        raise ValueError(f"{where}: there are no images.")
    return out


def _image_files(root: Path, domains: bool) -> list[tuple[str, str, Path]]:
    """(domain, class, file) of each image under `root`, in order; the domain is "" if there are none."""

    def folders(parent: Path) -> list[Path]:
        return sorted(child for child in parent.iterdir() if child.is_dir() and not child.name.startswith("."))

    found = []
    for domain in folders(root) if domains else [root]:
        for class_folder in folders(domain):
            for file in sorted(class_folder.iterdir()):
                if file.suffix.lower() in IMAGE_ENDINGS and not file.name.startswith("."):
                    found.append((domain.name if domains else "", class_folder.name, file))
    if not found:
        layout = "DOMAIN/CLASS/*" if domains else "CLASS/*"
        raise ValueError(f"{root}: no images; looked for {layout} ending in {', '.join(IMAGE_ENDINGS)}.")
    return found


def stratified(strata: np.ndarray, tests: int) -> np.ndarray:
    """[rows] bool: `tests` test rows, from every stratum in proportion; the same at every call."""
    values, counts = np.unique(strata, return_counts=True)
    rng = generator(SPLIT_SEED, "split")
    is_test = np.zeros(len(strata), bool)
    for value, number in zip(values, apportion(tests, counts), strict=True):
        is_test[rng.permutation(np.flatnonzero(strata == value))[:number]] = True
    return is_test


def _stratified_fraction(columns: Sequence[np.ndarray], fraction: float) -> np.ndarray:
    if not 0 < fraction < 1:
        raise ValueError(f"test_fraction={fraction}: must lie between 0 and 1.")
    _, strata = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)
    return stratified(strata.reshape(-1), round(fraction * len(strata)))


def _grey(images: np.ndarray) -> np.ndarray:
    """[rows, H, W] as [rows, H, W, 1]; anything else as it is."""
    return images[..., None] if images.ndim == 3 else images


def _pixels(what: str, values: Any) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim not in (2, 4):
        hint = f"; pass {what}[..., None] for grey images" if values.ndim == 3 else ""
        raise ValueError(f"{what} has shape {values.shape}: must be [rows, H, W, C] images or [rows, D] features{hint}.")
    if np.issubdtype(values.dtype, np.floating):
        values = values.astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            raise ValueError(f"{what} has {int((~np.isfinite(values)).sum())} values that are NaN or infinite: must be finite.")
    elif values.dtype != np.uint8:
        raise ValueError(f"{what} has type {values.dtype}: must be uint8 (0..255) or floats.")
    return values


def _integers(what: str, values: Any) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{what} has shape {values.shape} and type {values.dtype}: must be integers of shape [rows].")
    if len(values) and (values.min() < 0 or values.max() > np.iinfo(np.int32).max):
        raise ValueError(f"{what} has values from {values.min()} to {values.max()}: must be >= 0 and fit 32 bits.")
    return values.astype(np.int32)


def _names(what: str, names: Sequence[str] | None, columns: dict[str, Any]) -> tuple[str, ...]:
    """The names of the values 0 ... of the columns, by default the numbers themselves; checks that there are enough."""
    top = {column: int(values.max()) for column, values in columns.items()}
    if names is None:
        return tuple(str(i) for i in range(max(top.values()) + 1))
    for column, largest in top.items():
        if largest >= len(names):
            raise ValueError(f"{column} has the value {largest}, {what} has {len(names)} names: must lie in [0, {len(names)}).")
    return tuple(str(name) for name in names)
