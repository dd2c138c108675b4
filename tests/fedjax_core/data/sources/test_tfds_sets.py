import errno
import json
import os
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fedjax_core.data import sources
from fedjax_core.data.sources import image_cache, image_folder, tfds_sets
from fedjax_core.data.subsample import subsample
from tests.fedjax_core.data.sources.written import assert_same


def test_tfds_is_read_without_importing_tensorflow(shared_data):
    program = (
        "import sys; from fedjax_core.data import sources; assert 'tensorflow_datasets' not in sys.modules; "
        "data = sources.load('tfds:cifar10', sys.argv[1], train='train[:20]', test='test[:5]'); "
        "sys.exit(sorted(name for name in sys.modules if name in ('tensorflow', 'torch', 'keras')) or len(data.test.y))"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(shared_data)], capture_output=True, text=True, check=False)
    assert ended.returncode == 5, ended.stderr


def test_tfds_reads_a_prepared_set(shared_data):
    data = sources.load("tfds:cifar10", shared_data, train="train[:400]", test="test[:200]")
    assert data.train.x.shape == (400, 32, 32, 3)
    assert data.test.x.shape == (200, 32, 32, 3)
    assert data.name == "cifar10"
    assert data.class_names[:2] == ("airplane", "automobile")
    assert np.bincount(data.train.y, minlength=10).min() > 20
    assert 100 < data.train.x.mean() < 140
    same = sources.load("tfds:cifar10:3.0.2", shared_data / "tfds", train="train[:400]", test="test[:200]")
    assert_same(same, data.train.x, data.train.y, data.test.x, data.test.y)


def test_tfds_pixels_and_labels_are_those_of_its_own_decoder(shared_data):
    import tensorflow_datasets

    data = sources.load("tfds:cifar10", shared_data, train="train[:3]", test="test[:20]")
    rows: Any = tensorflow_datasets.data_source("cifar10", split="test[:20]", data_dir=shared_data / "tfds")
    np.testing.assert_array_equal(data.test.x, [row["image"] for row in rows])
    assert data.test.y.tolist() == [row["label"] for row in rows]
    small = sources.load("tfds:cifar10", shared_data, train="train[:3]", test="test[:3]", size=16)
    assert small.train.x.shape == (3, 16, 16, 3)


def test_tfds_errors_name_what_is_there(shared_data, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tfds:cifar100 is not prepared in .*fedjax-core\[prepare\].*array_record"):
        sources.load("tfds:cifar100", shared_data)
    with pytest.raises(FileNotFoundError, match=r"cifar10/9.9.9/dataset_info.json"):
        sources.load("tfds:cifar10:9.9.9", shared_data)
    with pytest.raises(ValueError, match="split 'tset': the set has train, test"):
        sources.load("tfds:cifar10", shared_data, train="train[:3]", test="tset")
    with pytest.raises(ValueError, match=r"option label='id': must be one of its ClassLabel features, \['label'\]"):
        sources.load("tfds:cifar10", shared_data, label="id")
    nested = tmp_path / "cifar10" / "my_config"
    nested.mkdir(parents=True)
    copied = shutil.copytree(shared_data / "tfds/cifar10/3.0.2", nested / "3.0.2", copy_function=shutil.copyfile)
    copied.chmod(0o755)
    with pytest.raises(FileNotFoundError, match="It has cifar10/my_config: name one"):
        sources.load("tfds:cifar10", tmp_path)
    shard = next(copied.glob("*test*"))
    shard.write_bytes(shard.read_bytes()[: 2**20])
    with pytest.raises(ValueError, match="split 'test' is missing, truncated or damaged"):
        sources.load("tfds:cifar10/my_config", tmp_path, train="train[:3]")


def test_tfds_of_another_file_format_is_explained(shared_data, tmp_path):
    root = tmp_path / "cifar10" / "3.0.2"
    root.mkdir(parents=True)
    for file in (shared_data / "tfds/cifar10/3.0.2").glob("*.json"):
        (root / file.name).write_bytes(file.read_bytes())
    info = json.loads((root / "dataset_info.json").read_text())
    (root / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
    with pytest.raises(ValueError, match=r"prepared as tfrecord, which has no random access; .*file_format='array_record'"):
        sources.load("tfds:cifar10", tmp_path)


def test_a_feature_that_is_called_label_is_the_label():
    """CIFAR-100 has the superclass beside it."""
    features = {"coarse_label": 0, "id": "", "label": 0}
    assert tfds_sets.find_feature("cifar100", features, int, "label", None) == "label"
    assert tfds_sets.find_feature("cifar100", features, int, "label", "coarse_label") == "coarse_label"
    assert tfds_sets.find_feature("other", {"digit": 0, "id": ""}, int, "label", None) == "digit"
    with pytest.raises(ValueError, match=r"tfds:other: option label=None: must be one of its int features, \['a', 'b'\]"):
        tfds_sets.find_feature("other", {"a": 0, "b": 0}, int, "label", None)


def spied(monkeypatch):
    """A list that grows by the number of images of each call of the decoder."""
    calls = []
    decode = image_folder.decode_images
    monkeypatch.setattr(tfds_sets.image_folder, "decode_images", lambda *given: calls.append(given[2]) or decode(*given))
    return calls


def test_tfds_decodes_only_the_examples_that_are_used(shared_data, monkeypatch):
    found = sources.find_reader("tfds:cifar10", {"train": "train[:400]", "test": "test[:20]"})
    whole = subsample(sources.read_dataset(found, shared_data), examples=50)
    calls = spied(monkeypatch)
    some = subsample(sources.read_dataset(found, shared_data, 50), examples=50)
    assert calls == [50, 20]
    assert_same(some, whole.train.x, whole.train.y, whole.test.x, whole.test.y)
    with pytest.raises(ValueError, match="examples=500 must be an integer from 1 to the 400 training examples"):
        subsample(sources.read_dataset(found, shared_data, 500), examples=500)


def test_decoded_sets_are_kept(shared_data, tmp_path, monkeypatch):
    monkeypatch.setenv(image_cache.CACHE_VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(image_cache, "CACHED", 2**17)  # of 60 images
    found = sources.find_reader("tfds:cifar10", {"train": "train[:60]", "test": "test[:20]"})
    calls = spied(monkeypatch)
    first = sources.read_dataset(found, shared_data)
    assert calls == [60, 20]
    for number in (None, 30):
        again = subsample(sources.read_dataset(found, shared_data, number), examples=number)
        wanted = subsample(first, examples=number)
        assert_same(again, wanted.train.x, wanted.train.y, wanted.test.x, wanted.test.y)
        assert not isinstance(again.train.x, np.memmap)
    assert calls == [60, 20, 20, 20]  # the test set is small
    (tmp_path / "kept" / next(name for name in os.listdir(tmp_path / "kept") if "labels" not in name)).write_bytes(b"no array")
    assert_same(sources.read_dataset(found, shared_data), first.train.x, first.train.y, first.test.x, first.test.y)
    assert calls[4:] == [60, 20]
    sources.read_dataset(sources.find_reader("tfds:cifar10", {"train": "train[:60]", "test": "test[:20]", "size": 40}), shared_data)
    assert calls[6:] == [60, 20]


@pytest.mark.parametrize("is_full", [True, False])
def test_a_cache_that_cannot_be_written_is_done_without(shared_data, tmp_path, monkeypatch, is_full):
    """On a full disk (its files are synced, as all others), or below a file."""

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "file").write_text("")
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv(image_cache.CACHE_VARIABLE, str(tmp_path / "cache" if is_full else tmp_path / "file" / "cache"))
    monkeypatch.setattr(image_cache, "CACHED", 0)
    if is_full:
        monkeypatch.setattr(os, "fsync", full)
    assert len(sources.load("tfds:cifar10", shared_data, train="train[:3]", test="test[:2]").train.y) == 3
    assert not [*(tmp_path / "cache").iterdir()]
