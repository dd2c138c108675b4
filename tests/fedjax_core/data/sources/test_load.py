"""What all sources share: names, options, and where files are looked for."""

import numpy as np
import pytest

from fedjax_core.data import sources
from tests.fedjax_core.data.sources.written import images, savez


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("cifar10", ("cifar-10-binary.tar.gz", "cifar-10-batches-bin/", "https://www.cs.toronto.edu")),
        ("cifar100", ("cifar-100-binary.tar.gz", "cifar-100-binary/")),
        ("mnist", ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz", "https://")),
        ("emnist", ("emnist-balanced-train-images-idx3-ubyte.gz", "gzip.zip", "https://biometrics.nist.gov")),
        ("svhn", ("train_32x32.mat", "svhn/train_32x32.mat", "http://ufldl.stanford.edu")),
        ("tfds:cifar10", ("cifar10/VERSION/dataset_info.json", "pip install 'fedjax-core[prepare]'")),
    ],
)
def test_missing_files_are_named(tmp_path, name, files):
    with pytest.raises(FileNotFoundError) as error:
        sources.load(name, tmp_path)
    for text in (*files, str(tmp_path)):
        assert text in str(error.value)


def test_the_variable_says_where_data_lie(tmp_path, monkeypatch):
    savez(tmp_path / "a.npz", images=images(4, 2, 2), labels=np.array([0, 1, 0, 1]), is_test=np.array([0, 0, 1, 1]))
    monkeypatch.setenv(sources.DATA_VARIABLE, str(tmp_path))
    assert sources.load("npz:a.npz").train.x.shape == (2, 2, 2, 3)
    with pytest.raises(FileNotFoundError):
        sources.load("npz:a.npz", tmp_path / "elsewhere")
    monkeypatch.delenv(sources.DATA_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(FileNotFoundError, match=r"is not in .*home/fedjax_data"):
        sources.load("npz:a.npz")


def test_unknown_names_and_options_are_explained():
    with pytest.raises(ValueError, match=r"unknown data set 'cifar-10'; allowed: digits, cifar10, .*Did you mean 'cifar10'\?"):
        sources.load("cifar-10")
    with pytest.raises(ValueError, match=r"unknown data set 'tfds:'.*Did you mean 'tfds:NAME'\?"):
        sources.load("tfds:")
    with pytest.raises(TypeError, match="data set 'tfds' needs the option 'path'"):
        sources.load("tfds")
    with pytest.raises(ValueError, match=r"'npz:a\.npz' has a path of its own beside path='b\.npz'"):
        sources.load("npz:a.npz", path="b.npz")
    with pytest.raises(ValueError, match="unknown data set 'digits:5'"):
        sources.load("digits:5")
    with pytest.raises(TypeError, match=r"data set 'cifar100' has no option 'lables'; it takes: labels\. Did you mean 'labels'\?"):
        sources.load("cifar100", lables="coarse")
    with pytest.raises(ValueError, match="unknown label set 'finest'; allowed: coarse, fine"):
        sources.load("cifar100", labels="finest")
    with pytest.raises(ValueError, match=r"unknown EMNIST split 'merge'.*Did you mean 'bymerge'"):
        sources.load("emnist", split="merge")
