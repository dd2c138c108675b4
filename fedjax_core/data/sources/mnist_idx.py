"""MNIST and EMNIST from their IDX files."""

import string
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_core import registry
from fedjax_core.data.sources import file_checks
from fedjax_core.data.sources.dataset import Dataset, add_channel_axis, from_arrays

MNIST_MD5 = {  # of the unpacked files
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def mnist(data_dir: Path) -> Dataset:
    """Reads MNIST from its four IDX files, packed (.gz) or not, in `mnist/` or beside it; checked
    by md5.

    60,000 training and 10,000 test images of 28x28x1. LeCun, Bottou, Bengio, Haffner.
    Gradient-Based Learning Applied to Document Recognition. Proceedings of the IEEE, 1998.

    Args:
      data_dir: the folder of the files.

    Raises:
      FileNotFoundError: the files are not there; the message says which, where to get and where to
        put them.
      ValueError: they are truncated, damaged or others.
    """
    how = "get the four .gz files from https://storage.googleapis.com/cvdf-datasets/mnist/ and put them there, packed or unpacked"
    arrays = []
    for file, md5 in MNIST_MD5.items():
        folders = (data_dir / "mnist", data_dir)
        where = file_checks.find_file("mnist", data_dir, [folder / (file + end) for folder in folders for end in ("", ".gz")], how)
        blob = file_checks.read_unpacked(where)
        file_checks.check_md5(where, blob, md5)
        arrays.append(add_channel_axis(read_idx(where, blob)))
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
    """Reads EMNIST from its IDX files, packed (.gz) or not, in `emnist/`, `gzip/` or inside
    `gzip.zip`; checked by exact sizes.

    The files hold images transposed; here they are upright (`tfds:emnist/bymerge` and its like
    leave them so). Labels of `letters` start at 0 (in the files at 1). Images are 28x28x1. Cohen,
    Afshar, Tapson, van Schaik. EMNIST: an extension of MNIST to handwritten letters. 2017.

    Args:
      data_dir: the folder of the files.
      split: byclass (62 classes), bymerge (47), balanced (47), letters (26), digits (10) or mnist
        (10).

    Raises:
      FileNotFoundError: the files are not there; the message says which, where to get and where to
        put them.
      ValueError: they are truncated, damaged or others; or there is no such split.
    """
    registry.check_choice("EMNIST split", split, EMNIST_NAMES)
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
            where = file_checks.find_file("emnist", data_dir, [*places, *archives], how)
            blob = (
                file_checks.read_zip_member(where, f"gzip/{file}.gz")
                if where.suffix == ".zip"
                else file_checks.read_unpacked(where)
            )
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
