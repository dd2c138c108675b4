import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedjax_core.data import sources
from fedjax_core.data.sources import toy


def test_digits_are_split_by_class_and_always_alike():
    data = sources.load("digits")
    assert data.train.x.shape == (1437, 8, 8, 1)
    assert data.test.x.shape == (360, 8, 8, 1)
    assert (data.train.x.dtype, data.train.x.max(), data.train.x.min()) == (np.uint8, 255, 0)
    share = np.bincount(data.test.y) / (np.bincount(data.test.y) + np.bincount(data.train.y))
    np.testing.assert_allclose(share, 360 / 1797, atol=0.005)
    found = hashlib.sha256(data.train.y.tobytes() + data.train.x.tobytes() + data.test.x.tobytes()).hexdigest()
    assert (
        found == "f27d2f94cab22fb2223aba4c5799f6757ad945c0bd0bd5aecf649fac69b1f8a8"
    )  # of the first run; a change moves every result on digits
    assert len({row.tobytes() for row in np.concatenate([data.train.x, data.test.x])}) == 1797  # no example in both


def test_digits_are_read_from_scikit_learns_file_or_by_it(monkeypatch):
    import sklearn.datasets

    ours = toy._digits()
    bunch: Any = sklearn.datasets.load_digits()
    np.testing.assert_array_equal(ours, np.column_stack([bunch["data"], bunch["target"]]))
    monkeypatch.setattr(toy, "Path", lambda *parts: Path(*parts, "not_there"))  # another version may have it elsewhere
    np.testing.assert_array_equal(toy._digits(), ours)


def test_blank_images_have_the_shape_and_the_classes_asked_for():
    data = sources.load("blank", shape=(8, 6, 1), classes=100, rows=200)
    assert data.train.x.shape == (200, 8, 6, 1)
    assert not data.train.x.any()
    assert np.bincount(data.train.y).tolist() == [2] * 100
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"shape": (8, 8)}, r"blank: shape=\(8, 8\) must be \(H, W, C\), each at least 1"),
        ({"classes": 1}, "blank: classes=1 must be at least 2"),
        ({"classes": 10, "rows": 9}, "blank: rows=9 must be at least as many as the 10 classes"),
    ]
    for wrong, said in wrongs:
        with pytest.raises(ValueError, match=said):
            sources.load("blank", **wrong)


def test_blank_images_fit_into_memory():
    with pytest.raises(
        ValueError, match=r"blank: shape=\(1000000, 1000000, 3\), rows=100: an array .* takes 272.8 TiB, this machine"
    ):
        sources.load("blank", shape=(1_000_000, 1_000_000, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("labels=100, classes=2", "labels=100, classes=2: an example's labels must be at most the classes"),
        (f"rows={10**9}, features={10**6}", f"rows={10**9}, tests=500, features={10**6}: an array .* takes"),
        (f"features={2**31 - 1}, tests=10000", f"features={2**31 - 1}: an array .* takes"),
    ],
)
def test_rows_that_cannot_be_drawn_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sources.load(f"multilabel({options})")
