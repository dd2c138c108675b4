"""Sizes of published sets, and mock data sets of a size: black images, with classes and clients in
turn.

They take no memory, and nothing can be learnt from them: they are for counting, tracing and
compiling.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_core.algorithm import Examples
from fedjax_core.data.sources.dataset import Dataset
from fedjax_core.data.sources.mnist_idx import EMNIST_NAMES, EMNIST_ROWS

WITHOUT_FILES = (
    "digits",
    "diabetes",
    "multilabel",
    "text",
    "blank",
)  # sets that need no file: they are small, and read as they are


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


_IMAGE = {"mnist": (60_000, 10_000, (28, 28, 1), 10), "cifar10": (50_000, 10_000, (32, 32, 3), 10)}
_IMAGE |= {"cifar100": (50_000, 10_000, (32, 32, 3), 100), "svhn": (73_257, 26_032, (32, 32, 3), 10)}
_IMAGE |= {"fashion_mnist": _IMAGE["mnist"], "svhn_cropped": _IMAGE["svhn"]}


def published_size(name: str, options: Mapping[str, Any]) -> Size | None:
    """Returns the size of a published set with its reader's options; None where it is
    known from its files alone.

    FLAIR as Song et al. (2022) count it, landmarks and species as Hsu et al. (2020); of
    StackOverflow the most sentences that its users can have. How many examples Shakespeare makes is
    known from its files alone.
    """
    name, _, rest = name.partition(":")
    part = rest or str(options.get("path", ""))
    if name == "tfds":
        name, _, part = part.partition("/")
        if name == "emnist":
            return _emnist(part or "byclass")
    if name in _IMAGE:
        return Size(*_IMAGE[name])
    if name == "emnist":
        return _emnist(options.get("split", "balanced"))
    users = options.get("users")
    if name == "femnist":
        return _of_users(Size(671_585, 77_483, (28, 28, 1), 62, 3_400), users)
    if name == "stackoverflow":
        most, words, length = (options.get(key, value) for key, value in (("most", 64), ("words", 10_000), ("length", 20)))
        of_tests = most * options.get("test_users", 1000)
        return _of_users(Size(342_477 * most, of_tests, (length,), words + 4, 342_477, "tokens", "int32"), users)
    if name == "flair":
        pixels = options.get("size", 64)
        fine = 1_628 if options.get("fine") else 17
        return _of_users(Size(345_879, 43_960, (pixels, pixels, 3), fine, 41_131, "labels"), users)
    if name == "landmarks":
        return _of_users(Size(164_172, 19_526, (options.get("size", 64),) * 2 + (3,), 2_028, 1_262), users)
    if name == "inaturalist":
        return _of_users(Size(120_300, 35_641, (options.get("size", 64),) * 2 + (3,), 1_203, 9_275), users)
    return None


def _emnist(split: str) -> Size | None:
    if split not in EMNIST_ROWS:
        return None
    return Size(*EMNIST_ROWS[split][0], (28, 28, 1), len(EMNIST_NAMES[split]))


def _of_users(whole: Size, users: int | None) -> Size:
    if users is None or whole.users is None:
        return whole
    return whole._replace(rows=max(1, whole.rows * users // whole.users), users=users)


def mock_dataset(size: Size, name: str, domains: int = 1) -> Dataset:
    """Makes a data set of a size: all examples alike; classes, clients and domains in turn.

    Args:
      size: how large.
      name: what messages call it.
      domains: how many there are.
    """
    parts = []
    for rows in (size.rows, size.test_rows):
        x = np.broadcast_to(np.zeros((), size.dtype), (rows, *size.shape))
        if size.targets == "classes":
            y = (np.arange(rows) % size.classes).astype(np.int32)
        else:
            row, kind = {
                "labels": ((size.classes,), "uint8"),
                "numbers": ((size.classes,), "float32"),
                "tokens": (size.shape, "int32"),
            }[size.targets]
            y = np.broadcast_to(np.zeros((), kind), (rows, *row))
        parts.append(Examples(x, y))
    whose: dict[str, Any] = {}
    if size.users is not None:
        whose["train_clients"] = (np.arange(size.rows) % size.users).astype(np.int32)
    if domains > 1:
        turns = [((np.arange(len(part.y)) // size.classes) % domains).astype(np.int32) for part in parts]
        whose |= {"train_domains": turns[0], "test_domains": turns[1], "domain_names": tuple(map(str, range(domains)))}
    names = tuple(map(str, range(size.classes)))
    return Dataset(name, parts[0], parts[1], names, **whose)


def subsample_size(size: Size, pixels: int | None, rows: int | None) -> Size:
    """Returns the size that `data.subsample` would leave.

    Raises:
      ValueError: images are to be resized, and there are none; more examples than there are.
    """
    if pixels is not None and len(size.shape) != 3:
        raise ValueError(f"data.size={pixels} is of images, examples have the shape {list(size.shape)}")
    if rows is not None and rows > size.rows:
        raise ValueError(f"data.examples={rows} must be at most {size.rows}, the training examples that there are")
    shape = size.shape if pixels is None else (pixels, pixels, size.shape[-1])
    return size._replace(shape=shape, rows=size.rows if rows is None else rows)
