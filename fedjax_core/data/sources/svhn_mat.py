"""SVHN from its MATLAB files."""

import io
import string
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_core.data.sources import file_checks
from fedjax_core.data.sources.dataset import Dataset, from_arrays

SVHN_MD5 = {"train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373", "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"}


def svhn(data_dir: Path) -> Dataset:
    """Reads SVHN's cropped digits: `train_32x32.mat` and `test_32x32.mat`, in `svhn/` or beside it;
    checked by md5.

    73,257 training and 26,032 test images of 32x32x3; the file's label 10 is digit 0. The extra
    images are not read. Netzer et al. Reading Digits in Natural Images with Unsupervised Feature
    Learning. NIPS workshop, 2011.

    Args:
      data_dir: the folder of the files.

    Raises:
      FileNotFoundError: the files are not there; the message says which, where to get and where to
        put them.
      ValueError: they are truncated, damaged or others.
    """
    return read_svhn(data_dir, SVHN_MD5)


def read_svhn(data_dir: Path, md5: dict[str, str]) -> Dataset:
    """Reads both files, MATLAB's version 5: X [32, 32, 3, n] uint8, y [n, 1] from 1 to 10."""
    from scipy.io import loadmat

    how = "get it from http://ufldl.stanford.edu/housenumbers/ and put it there"
    arrays = []
    for file, published in md5.items():
        where = file_checks.find_file("svhn", data_dir, [folder / file for folder in (data_dir / "svhn", data_dir)], how)
        blob = where.read_bytes()
        file_checks.check_md5(where, blob, published)
        held: dict[str, Any] = loadmat(io.BytesIO(blob), variable_names=["X", "y"])
        if missing := {"X", "y"} - set(held):
            raise ValueError(f"{where}: has no array {min(missing)}, needs X [32, 32, 3, n] and y [n, 1]; {how}.")
        x, y = held["X"], held["y"].reshape(-1)
        if x.shape != (32, 32, 3, len(y)) or not np.isin(y, range(1, 11)).all():
            raise ValueError(
                f"{where}: X {x.shape} and y from {y.min()} to {y.max()}, must be (32, 32, 3, {len(y)}), 1 to 10; {how}."
            )
        arrays += [np.ascontiguousarray(x.transpose(3, 0, 1, 2)), y.astype(np.int32) % 10]
    train_x, train_y, test_x, test_y = arrays
    return from_arrays(train_x, train_y, test_x, test_y, tuple(string.digits), name="svhn")
