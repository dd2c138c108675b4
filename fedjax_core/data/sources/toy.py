"""Data sets that need no files."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.data.row_readers import check_fits
from fedjax_core.data.sources.dataset import Dataset, from_arrays
from fedjax_core.data.sources.file_checks import SPLIT_SEED, stratified_mask
from fedjax_core.option_types import AtLeastOne


def digits() -> Dataset:
    """Loads scikit-learn's handwritten digits, 8x8x1: 1437 training and 360 test images.

    10 classes, split by class, fixed seed. The grey levels 0..16 are scaled to 0..255.
    """
    levels = _digits()
    x = np.round(levels[:, :-1].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    y = levels[:, -1].astype(np.int32)
    is_test = stratified_mask(y, 360)
    return from_arrays(x[~is_test], y[~is_test], x[is_test], y[is_test], tuple("0123456789"), name="digits")


def _digits() -> np.ndarray:
    """Reads grey levels and digits [1797, 65]; importing scikit-learn takes longer than a round."""
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    import sklearn.datasets

    bunch: Any = sklearn.datasets.load_digits()
    return np.column_stack([bunch["data"], bunch["target"]])


def diabetes() -> Dataset:
    """Loads scikit-learn's diabetes patients: 10 features and one number to predict, standardised.

    342 training and 100 test examples, fixed seed. The number is a measure of the disease's
    progress.
    """
    import sklearn.datasets

    bunch: Any = sklearn.datasets.load_diabetes()
    x, y = bunch["data"].astype(np.float32), bunch["target"]
    is_test = stratified_mask(np.zeros(len(y), np.int32), 100)
    y = (y - y[~is_test].mean()) / y[~is_test].std()
    return from_arrays(x[~is_test], y[~is_test], x[is_test], y[is_test], ("progress",), targets="numbers", name="diabetes")


def multilabel(
    rows: AtLeastOne = 2000, tests: AtLeastOne = 500, features: AtLeastOne = 20, classes: AtLeastOne = 10, labels: AtLeastOne = 3
) -> Dataset:
    """Draws examples with several labels by scikit-learn: bags of words of their labels.

    Args:
      rows: of the training set.
      tests: of the test set.
      features: different words.
      classes: K labels.
      labels: of an example, on average; at most `classes`.
    """
    import sklearn.datasets

    if labels > classes:  # examples with too many labels are drawn again, and nearly all would be
        raise ValueError(f"multilabel: labels={labels}, classes={classes}: an example's labels must be at most the classes.")
    check_fits(f"multilabel: rows={rows}, tests={tests}, features={features}", (rows + tests, features), np.float64)
    check_fits(f"multilabel: features={features}, classes={classes}", (features, classes), np.float64)
    check_fits(f"multilabel: rows={rows}, tests={tests}, classes={classes}", (rows + tests, classes), np.int64)

    drawn: Any = sklearn.datasets.make_multilabel_classification(
        rows + tests, features, n_classes=classes, n_labels=labels, allow_unlabeled=True, random_state=SPLIT_SEED
    )
    x, y = drawn[0].astype(np.float32), drawn[1]
    return from_arrays(x[:rows], y[:rows], x[rows:], y[rows:], targets="labels", name="multilabel")


def blank(shape: Sequence[int] = (32, 32, 3), classes: int = 10, rows: int = 100) -> Dataset:
    """Makes black images with labels in turn, to count and to time with.

    Args:
      shape: of an image, [H, W, C].
      classes: K.
      rows: of the training set, and as many of the test set.
    """
    for field, value, is_valid, wanted in (
        ("shape", tuple(shape), len(shape) == 3 and min(shape) >= 1, "(H, W, C), each at least 1"),
        ("classes", classes, classes >= 2, "at least 2"),
        ("rows", rows, rows >= classes, f"at least as many as the {classes} classes"),
    ):
        if not is_valid:
            raise ValueError(f"blank: {field}={value} must be {wanted}.")
    check_fits(f"blank: shape={shape}, rows={rows}", (rows, *shape), np.uint8)
    x, y = np.zeros((rows, *shape), np.uint8), np.arange(rows) % classes
    return from_arrays(x, y, x, y, [str(c) for c in range(classes)], name="blank")
