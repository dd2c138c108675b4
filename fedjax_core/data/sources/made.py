"""Sets that need no files."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_core.data.memory import check_fits
from fedjax_core.data.sources.dataset import Dataset, from_arrays
from fedjax_core.data.sources.splits import stratified


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


def blank(shape: Sequence[int] = (32, 32, 3), classes: int = 10, rows: int = 100) -> Dataset:
    """Black images with labels in turn: to count parameters and traffic, and to time rounds, of a set whose files are not there.

    Args:
      shape: of an image, [H, W, C].
      classes: K.
      rows: of the training set, and as many of the test set.

    Raises:
      ValueError: a shape of another form, fewer than 2 classes, fewer rows than classes, or more than fits into memory.
    """
    if len(shape) != 3 or min(shape) < 1 or classes < 2 or rows < classes:
        raise ValueError(f"blank: shape={shape}, classes={classes}, rows={rows}: must be [H, W, C], at least 2, and at least K.")
    check_fits(f"blank: shape={shape}, rows={rows}", (rows, *shape), np.uint8)
    x, y = np.zeros((rows, *shape), np.uint8), np.arange(rows) % classes
    return from_arrays(x, y, x, y, [str(c) for c in range(classes)], name="blank")
