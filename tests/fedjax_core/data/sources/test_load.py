"""What all sources share: names, options, and where files are looked for."""

import numpy as np
import pytest

from fedjax_core.data import sources
from fedjax_core.data.sources import file_checks
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
    with pytest.raises(ValueError, match=r"data set 'tfds:' has nothing after the colon: must be tfds:NAME"):
        sources.load("tfds:")
    with pytest.raises(TypeError, match="data set 'tfds' needs the option 'path'"):
        sources.load("tfds")
    with pytest.raises(ValueError, match=r"'npz:a\.npz' is also given path='b\.npz'"):
        sources.load("npz:a.npz", path="b.npz")
    with pytest.raises(ValueError, match="unknown data set 'digits:5'"):
        sources.load("digits:5")
    with pytest.raises(TypeError, match=r"data set 'cifar100' has no option 'lables'; it takes: labels\. Did you mean 'labels'\?"):
        sources.load("cifar100", lables="coarse")
    with pytest.raises(ValueError, match="unknown label set 'finest'; allowed: coarse, fine"):
        sources.load("cifar100", labels="finest")
    with pytest.raises(ValueError, match=r"unknown EMNIST split 'merge'.*Did you mean 'bymerge'"):
        sources.load("emnist", split="merge")
    with pytest.raises(ValueError, match=r"unknown data set 'digts'; .*fedjax_core\.sources.*'package\.module:name'"):
        sources.load("digts")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("blank(shape=8)", "data set 'blank': shape=8 must be a tuple"),
        ("rotated(of='digits', degrees=30)", "data set 'rotated': degrees=30 must be a tuple, each a finite number"),
        ("only(of=3, classes=(1,))", "data set 'only': of=3 must be a string"),
        ("only(of='digits', classes=('a',))", r"data set 'only': classes=\('a',\) must be a tuple, each an int"),
        ("resplit(of='digits', test_fraction='x')", "test_fraction='x' must be a finite number"),
        ("resplit(of='digits', test_fraction=1.0)", "test_fraction=1.0 must be between 0 and 1"),
        ("npz(path='a', channels=2)", "channels=2 must be one of 1, 3"),
        ("folder(path='a', size=0)", "size=0 must be at least 1"),
    ],
)
def test_values_of_options_are_checked_before_anything_is_read(spec, said):
    with pytest.raises(ValueError, match=said):
        sources.find_reader(spec)


OUTSIDE = """
import numpy as np
from fedjax_core.data import sources
from fedjax_core.data.sources import file_checks

def waves(*, length: int = 5, returns="dict"):
    x, y = np.ones((6, length, 2)), np.arange(6) % 3
    if returns == "dict":
        return dict(train_x=x, train_y=y, test_x=x[:2], test_y=y[:2], class_names=("a", "b", "c"))
    if returns == "tuple":
        return x, y, x[:2], y[:2]
    if returns == "wrong labels":
        return x, y - 1, x[:2], y[:2]
    return returns

def whole(load, of):
    return load(of)

def fewer(load, data_dir, of):
    data = load(of)
    return data._replace(name=data_dir.name, train=type(data.train)(data.train.x[:10], data.train.y[:10]))
"""


def test_a_source_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(OUTSIDE)
    mine = f"{tmp_path}/mine.py:waves"
    data = sources.load(f"{mine}(length=7)", tmp_path)
    assert (data.name, data.train.x.shape, data.train.x.dtype, data.class_names) == (
        "waves",
        (6, 7, 2),
        np.float32,
        ("a", "b", "c"),
    )
    assert sources.load(mine, returns="tuple").test.y.tolist() == [0, 1]
    few = sources.load(f"{tmp_path}/mine.py:fewer(of='digits')", tmp_path)
    assert (few.name, len(few.train.y), len(few.test.y)) == (tmp_path.name, 10, 360)
    with pytest.raises(ValueError, match=r"data set '.*mine\.py:waves': length='x' must be an int"):
        sources.find_reader(f"{mine}(length='x')")
    with pytest.raises(ValueError, match=r"data set '.*mine\.py:waves': train_y has values from -1 to 1"):
        sources.load(mine, returns="wrong labels")
    with pytest.raises(TypeError, match=r"mine\.py:waves' returned int: must be a Dataset, a mapping"):
        sources.load(mine, returns=5)
    with pytest.raises(TypeError, match=r"returned has no option 'train'; it takes: train_x"):
        sources.load(mine, returns={"train": 1})


@pytest.mark.parametrize("of", ["multilabel", "diabetes", "text(length=40, most=2)"])
def test_a_source_of_ones_own_may_have_other_targets(tmp_path, of):
    (tmp_path / "mine.py").write_text(OUTSIDE)
    found, wanted = sources.load(f"{tmp_path}/mine.py:whole", of=of), sources.load(of)
    assert (found.train.y.dtype, found.class_names) == (wanted.train.y.dtype, wanted.class_names)
    for part in ("train", "test"):
        np.testing.assert_array_equal(getattr(found, part).y, getattr(wanted, part).y)


def test_parts_are_of_a_file():
    with pytest.raises(ValueError, match="text: parts=5 without a path: Python's manual is divided by its topics"):
        sources.load("text(parts=5)")


def test_nothing_is_given_as_a_source():
    with pytest.raises(ValueError, match=r"data set 'given:x': 'given:' stands for methods, models, scores and losses .* data=..."):
        sources.find_reader("given:x")


def test_small_strata_are_tested_in_turn():
    """A hundred clients with two examples of each of ten classes: 40 tests of each class, 4 of each client."""
    y, clients = np.repeat(np.arange(10), 200), np.tile(np.arange(100), 20)
    is_test = file_checks.stratified_fraction_mask([y, clients], 0.2)
    assert np.bincount(y[is_test]).tolist() == [40] * 10
    assert np.bincount(clients[is_test]).tolist() == [4] * 100
    alone = file_checks.stratified_fraction_mask([y], 0.2)
    assert np.array_equal(alone, file_checks.stratified_fraction_mask([y, np.zeros_like(y)], 0.2))
    assert np.array_equal(alone, file_checks.stratified_mask(y, 400))
