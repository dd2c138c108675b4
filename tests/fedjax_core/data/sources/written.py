"""Arrays, and files in their published byte layout."""

import functools
import hashlib
import io
import tarfile
from typing import Any

import numpy as np
from PIL import Image

from fedjax_core.data import sources


def images(rows, height=32, width=32, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, height, width, channels), np.uint8)


@functools.cache
def pacs(shared_data):
    """PACS, decoded once for all tests."""
    return sources.load("npz:pacs64.npz", shared_data)


def savez(file, **arrays: Any):
    np.savez(file, **arrays)


def png(array):
    file = io.BytesIO()
    Image.fromarray(array.squeeze()).save(file, "PNG")
    return file.getvalue()


def assert_same(dataset, train_x, train_y, test_x, test_y):
    for examples, x, y in ((dataset.train, train_x, train_y), (dataset.test, test_x, test_y)):
        np.testing.assert_array_equal(examples.x, x)
        np.testing.assert_array_equal(examples.y, y)
        assert examples.x.dtype == np.uint8
        assert examples.y.dtype == np.int32


def cifar_files(spec, seed=0):
    """{file: bytes} in the layout of the binary version: label bytes, then the red, green and blue
    planes, row by row.
    """
    rng = np.random.default_rng(seed)
    files, kept = {}, []
    for file, rows in spec.parts.items():
        x = images(rows, seed=int(rng.integers(1000)))
        y = np.stack([rng.integers(0, classes, rows) for _, classes in spec.labels.values()], 1)
        kept.append((x, y))
        files[file] = b"".join(bytes(y[i].tolist()) + b"".join(x[i, :, :, c].tobytes() for c in range(3)) for i in range(rows))
    for file, classes in spec.labels.values():
        files[file] = ("\n".join(f"class_{i}" for i in range(classes)) + "\n\n").encode()
    train = [np.concatenate(part) for part in zip(*kept[:-1], strict=True)]
    return files, train, kept[-1]


def write_folder(root, spec, files):
    (root / spec.folder).mkdir(parents=True)
    for file, blob in files.items():
        (root / spec.folder / file).write_bytes(blob)


def write_archive(root, spec, files):
    """Returns the spec with this archive's md5."""
    with tarfile.open(root / spec.archive, "w:gz") as archive:
        for file, blob in files.items():
            info = tarfile.TarInfo(f"{spec.folder}/{file}")
            info.size = len(blob)
            archive.addfile(info, io.BytesIO(blob))
    return spec._replace(md5=hashlib.md5((root / spec.archive).read_bytes(), usedforsecurity=False).hexdigest())
