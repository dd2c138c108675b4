"""Folders of .npy files."""

import numpy as np
import pytest

from fedjax_core.data import row_readers, sources

X, Y = np.arange(48, dtype=np.float32).reshape(8, 6), np.array([0, 1, 0, 1, 2, 2, 0, 1])


def written(folder, **changed):
    arrays = {"train_features": X, "train_labels": Y, "test_features": X[:2], "test_labels": Y[:2], "train_clients": Y} | changed
    for name, array in arrays.items():
        if array is not None:
            np.save(folder / f"{name}.npy", array)
    return folder


def test_features_stay_in_their_files(tmp_path):
    (tmp_path / "mine").mkdir()
    written(tmp_path / "mine", class_names=np.array(["a", "b", "c"]))
    data = sources.load("npy:mine", tmp_path)
    assert row_readers.in_file(data.train.x) == (tmp_path / "mine" / "train_features.npy", 128)
    np.testing.assert_array_equal(data.train.x, X)
    np.testing.assert_array_equal(data.train.y, Y)
    assert data.class_names == ("a", "b", "c")
    assert data.train_clients is not None
    assert data.train_clients.tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"test_labels": None}, FileNotFoundError, r"there is no .*test_labels\.npy; a folder needs train_features, train_labels"),
        (
            {"train_features": X.astype(np.float64)},
            ValueError,
            r"train_features\.npy has type float64: must be uint8, float32 or int32",
        ),
        ({"train_labels": Y[:3]}, ValueError, "train_x has 8 rows and train_y 3"),
        (
            {"train_labels": np.eye(8, 3), "test_labels": np.eye(2, 3)},
            ValueError,
            r"train_labels\.npy has shape \(8, 3\) and type float64: must be classes, \[rows\] integers",
        ),
        ({"class_names": np.array(["a", None], object)}, ValueError, r"class_names\.npy holds pickled objects"),
    ],
)
def test_what_is_wrong_with_a_folder(tmp_path, changed, error, message):
    written(tmp_path, **changed)
    with pytest.raises(error, match=message):
        sources.load(f"npy:{tmp_path}")
