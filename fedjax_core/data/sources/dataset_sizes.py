"""Sizes of published sets, and mock data sets of a size: black images, with classes in turn.

They take no memory and teach nothing: they are for counting, tracing and compiling.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_core.algorithm import Examples
from fedjax_core.data.sources.dataset import Dataset
from fedjax_core.data.sources.published_images import EMNIST_NAMES, EMNIST_ROWS

WITHOUT_FILES = ("digits", "diabetes", "multilabel", "text", "blank")  # small sets that need no file, and are read


class Size(NamedTuple):
    """How large a set is.

    Attributes:
      rows, test_rows: of the training set and of the test set.
      shape: of an example of x.
      classes: K; of token ids how many words there are.
      users: natural clients; None where examples name none.
      targets: one of `algorithm.TARGETS`.
      dtype: of x.
    """

    rows: int
    test_rows: int
    shape: tuple[int, ...]
    classes: int
    users: int | None = None
    targets: str = "classes"
    dtype: str = "uint8"


_IMAGES = {
    "mnist": Size(60_000, 10_000, (28, 28, 1), 10),
    "fashion_mnist": Size(60_000, 10_000, (28, 28, 1), 10),
    "cifar10": Size(50_000, 10_000, (32, 32, 3), 10),
    "cifar100": Size(50_000, 10_000, (32, 32, 3), 100),
    "svhn": Size(73_257, 26_032, (32, 32, 3), 10),
    "svhn_cropped": Size(73_257, 26_032, (32, 32, 3), 10),
}
_COARSE = _IMAGES["cifar100"]._replace(classes=20)


def published_size(name: str, options: Mapping[str, Any]) -> Size | None:
    """Returns the size of a published set with its reader's options; None if only its files say it.

    FLAIR as Song et al. (2022) count it, landmarks and species as Hsu et al. (2020); of
    StackOverflow the most sentences that its users can have. How many examples Shakespeare makes is
    known from its files alone.
    """
    name, _, rest = name.partition(":")
    if name == "tfds":
        return _tfds_size(rest or str(options.get("path", "")), options)
    if name == "cifar100" and options.get("labels") == "coarse":
        return _COARSE
    if name in _IMAGES:
        return _IMAGES[name]
    if name == "emnist":
        split = options.get("split", "balanced")
        rows = EMNIST_ROWS.get(split)
        return None if rows is None else Size(*rows[0], (28, 28, 1), len(EMNIST_NAMES[split]))
    pixels = (options.get("size", 64),) * 2 + (3,)
    most, words, length = (options.get(key, value) for key, value in (("most", 64), ("words", 10_000), ("length", 20)))
    sizes = {
        "femnist": Size(671_585, 77_483, (28, 28, 1), 62, 3_400),
        "stackoverflow": Size(
            342_477 * most, most * options.get("test_users", 1000), (length,), words + 4, 342_477, "tokens", "int32"
        ),
        "flair": Size(
            min(345_879, 41_131 * options.get("most", 512)), 43_960, pixels, 1_628 if options.get("fine") else 17, 41_131, "labels"
        ),
        "landmarks": Size(164_172, 19_526, pixels, 2_028, 1_262),
        "inaturalist": Size(120_300, 35_641, pixels, 1_203, 9_275),
    }
    size, users = sizes.get(name), options.get("users")
    if size is None or size.users is None or users is None:
        return size
    return size._replace(rows=max(1, size.rows * users // size.users), users=users)


def _tfds_size(dataset: str, options: Mapping[str, Any]) -> Size | None:
    """Returns the size of a set as tensorflow_datasets has it; None of another one, or of other splits than its own."""
    if options.get("train", "train") != "train" or options.get("test", "test") != "test":
        return None
    name, _, config = dataset.partition("/")
    config = config or "byclass"
    if name == "emnist" and config in EMNIST_ROWS:  # of letters it has the first version, with 37 classes
        classes = 37 if config == "letters" else len(EMNIST_NAMES[config])
        size = Size(*EMNIST_ROWS[config][-1], (28, 28, 1), classes)
    else:
        size = _COARSE if (name, options.get("label")) == ("cifar100", "coarse_label") else _IMAGES.get(name)
    pixels = options.get("size")
    return size if size is None or pixels is None else size._replace(shape=(pixels, pixels, size.shape[-1]))


def mock_dataset(size: Size, name: str, domains: int = 1) -> Dataset:
    """Makes a data set of a size: all examples alike; classes, clients and domains in turn."""
    parts = []
    for rows in (size.rows, size.test_rows):
        x = np.broadcast_to(np.zeros((), size.dtype), (rows, *size.shape))
        if size.targets == "classes":
            y = (np.arange(rows) % size.classes).astype(np.int32)
        else:
            row, kind = {
                "labels": ((size.classes,), "bool"),
                "numbers": ((size.classes,), "float32"),
                "tokens": (size.shape, "int32"),
            }[size.targets]
            y = np.broadcast_to(np.zeros((), kind), (rows, *row))
        parts.append(Examples(x, y))
    columns: dict[str, Any] = {}
    if size.users is not None:
        columns["train_clients"] = (np.arange(size.rows) % size.users).astype(np.int32)
    if domains > 1:
        turns = [((np.arange(len(part.y)) // size.classes) % domains).astype(np.int32) for part in parts]
        columns |= {"train_domains": turns[0], "test_domains": turns[1], "domain_names": tuple(map(str, range(domains)))}
    names = tuple(map(str, range(size.classes)))
    return Dataset(name, parts[0], parts[1], names, **columns)


def subsample_size(size: Size, pixels: int | None, rows: int | None) -> Size:
    """Returns the size that `data.subsample` would leave; raises ValueError if it cannot."""
    if pixels is not None and len(size.shape) != 3:
        raise ValueError(f"data.size={pixels} is of images, examples have the shape {list(size.shape)}")
    if rows is not None and rows > size.rows:
        raise ValueError(f"data.examples={rows} must be at most {size.rows}, the training examples that there are")
    shape = size.shape if pixels is None else (pixels, pixels, size.shape[-1])
    return size._replace(shape=shape, rows=size.rows if rows is None else rows)
