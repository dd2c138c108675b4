import hashlib
import string
from typing import Any

import numpy as np
import pytest
import scipy.io

from fedjax_core.data import sources
from fedjax_core.data.sources import svhn_mat
from tests.fedjax_core.data.sources.written import assert_same, images


def write_svhn(folder, rows=7, **other):
    """Both files in their published layout, and their md5; {part: (images, digits)}."""
    made, md5 = {}, {}
    for seed, part in enumerate(("train", "test")):
        x, label = images(rows, seed=seed), np.random.default_rng(seed).integers(1, 11, (rows, 1), np.uint8)
        made[part] = x, label.reshape(-1) % 10
        where = folder / f"{part}_32x32.mat"
        scipy.io.savemat(where, {"X": x.transpose(1, 2, 3, 0), "y": label} | other, do_compression=True)
        md5[where.name] = hashlib.md5(where.read_bytes(), usedforsecurity=False).hexdigest()
    return made, md5


def test_svhn_round_trip(tmp_path):
    """Label 10 is digit 0."""
    (tmp_path / "svhn").mkdir()
    made, md5 = write_svhn(tmp_path / "svhn", rows=40)
    data = svhn_mat.read_svhn(tmp_path, md5)
    assert_same(data, *made["train"], *made["test"])
    assert 0 in data.train.y
    assert data.class_names == tuple(string.digits)


def test_svhn_files_that_are_not_it_are_refused(tmp_path):
    write_svhn(tmp_path)
    with pytest.raises(ValueError, match=r"train_32x32.mat: .* bytes with md5 .*, published is e26dedcc434d2e4c54c9b2d4a06d8373"):
        sources.load("svhn", tmp_path)
    others: list[tuple[dict[str, Any], str]] = [
        ({"y": np.full((7, 1), 11)}, r"y from 11 to 11, must be \(32, 32, 3, 7\), 1 to 10"),
        ({"X": np.zeros((32, 32, 7), np.uint8)}, r"X \(32, 32, 7\)"),
    ]
    for other, said in others:
        _, md5 = write_svhn(tmp_path, **other)
        with pytest.raises(ValueError, match=said):
            svhn_mat.read_svhn(tmp_path, md5)
    scipy.io.savemat(tmp_path / "train_32x32.mat", {"X": np.zeros(3)})
    md5 = {"train_32x32.mat": hashlib.md5((tmp_path / "train_32x32.mat").read_bytes(), usedforsecurity=False).hexdigest()}
    with pytest.raises(ValueError, match="has no array y"):
        svhn_mat.read_svhn(tmp_path, md5)
