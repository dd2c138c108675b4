"""Lists of users with their images, small ones written here in the published form."""

import errno
import json
import os

import numpy as np
import pytest
from PIL import Image

from fedjax_core.data import federated_data, row_readers, sources
from fedjax_core.data.sources import image_cache


def image(file, value):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (value, 0, 0)).save(file, quality=100)


def flair(folder):
    rows = [
        ("a", "u2", "train", ["dog", "sky"]),
        ("b", "u1", "train", []),
        ("c", "u2", "train", ["sky"]),
        ("d", "u9", "test", ["dog"]),
    ]
    rows += [("e", "u5", "val", ["tree"])]
    for i, (name, *_) in enumerate(rows):
        image(folder / "small_images" / f"{name}.jpg", 40 * i)
    keys = ("image_id", "user_id", "partition", "labels")
    listed = [dict(zip(keys, row, strict=True)) | {"fine_grained_labels": [f"{label}_x" for label in row[3]]} for row in rows]
    (folder / "labels_and_metadata.json").write_text(json.dumps(listed))


def test_flair_has_several_labels_by_user(tmp_path):
    flair(tmp_path / "flair")
    data = sources.load("flair(size=4)", tmp_path)
    assert data.class_names == ("dog", "sky", "tree")
    assert data.train.y.tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0]]
    assert data.test.y.tolist() == [[1, 0, 0]]
    assert data.train.x.shape == (3, 4, 4, 3)
    assert abs(int(data.train.x[2, 0, 0, 0]) - 80) < 4
    assert data.train_clients.tolist() == [1, 0, 1]
    divided = federated_data.federate(data, {"name": "natural"}, 2, 0)
    assert divided.label_table.tolist() == [[0, 0, 0], [1, 2, 0]]
    assert len(sources.load("flair(size=4, users=1, most=1)", tmp_path).train.y) == 1
    assert sources.load("flair(size=4, fine=True)", tmp_path).class_names[0] == "dog_x"
    (tmp_path / "flair" / "small_images" / "c.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"c\.jpg is missing, and the list names it"):
        sources.load("flair(size=4)", tmp_path)
    (tmp_path / "flair" / "labels_and_metadata.json").write_text('[{"image_id": "a"}]')
    with pytest.raises(ValueError, match=r"must be a list of objects with image_id, user_id, partition and labels \('labels'\)"):
        sources.load("flair", tmp_path)


def test_images_that_no_memory_holds_are_decoded_once_into_files(tmp_path, monkeypatch, caplog):
    """Train and test together are what memory must hold."""
    place = tmp_path / "flair"
    flair(place)
    whole = sources.load("flair(size=4)", tmp_path)
    monkeypatch.setattr(
        row_readers, "machine_memory", lambda: 2 * (3 * 4 * 4 * 3) + 1
    )  # half of it holds the training images alone
    monkeypatch.setattr(image_cache, "_BLOCK", 2 * 4 * 4 * 3)
    for _ in range(2):
        data = sources.load("flair(size=4)", tmp_path)
        for part, same in ((data.train, whole.train), (data.test, whole.test)):
            np.testing.assert_array_equal(part.x, same.x)
            assert row_readers.locate_in_file(part.x) is not None
        assert len([line for line in caplog.messages if line.startswith("decoding ")]) == 2  # a file each, and never again
        (place / "small_images" / "a.jpg").unlink(missing_ok=True)
    (kept,) = [file for file in place.glob("decoded-4-*.npy") if len(np.load(file)) == 3]
    np.save(kept, np.zeros(3))
    with pytest.raises(ValueError, match=r"decoded-4-\w+\.npy: has \(3,\) float64, not \(3, 4, 4, 3\) uint8; remove it"):
        sources.load("flair(size=4)", tmp_path)
    kept.unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.jpg is missing, and the list names it"):
        sources.load("flair(size=4)", tmp_path)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    image(place / "small_images" / "a.jpg", 0)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"cannot write .*: No space left on device; these are 3 decoded images, .*: give a smaller size"
    ):
        sources.load("flair(size=4)", tmp_path)
    assert not [*place.glob(".writing-*")]


def test_images_that_changed_are_decoded_again(tmp_path, monkeypatch):
    flair(tmp_path / "flair")
    monkeypatch.setattr(row_readers, "machine_memory", lambda: 2 * (3 * 4 * 4 * 3) + 1)
    before = np.array(sources.load("flair(size=4)", tmp_path).train.x)
    image(tmp_path / "flair" / "small_images" / "a.jpg", 200)
    changed = tmp_path / "flair" / "small_images" / "a.jpg"
    os.utime(changed, ns=(0, changed.stat().st_mtime_ns + 10**9))
    after = np.array(sources.load("flair(size=4)", tmp_path).train.x)
    assert abs(int(after[0, 0, 0, 0]) - 200) < 4
    np.testing.assert_array_equal(after[1:], before[1:])
    changed.unlink()
    np.testing.assert_array_equal(sources.load("flair(size=4)", tmp_path).train.x, after)


@pytest.mark.parametrize(
    ("name", "file", "below"),
    [
        ("landmarks", "landmarks-user-160k/federated_train.csv", "images/a/b"),
        ("inaturalist", "inaturalist-user-120k/federated_train_user_120k.csv", "train_val_images/Aves/Corvus"),
    ],
)
def test_lists_of_users(tmp_path, name, file, below):
    root = (tmp_path / file).parent
    for i, one in enumerate("abc"):
        image(root / below / f"{one}.jpg", 100 * i)
    (tmp_path / file).write_text("user_id,image_id,class\n17,b,10\n4,a,9\n17,a,9\n")
    (root / "test.csv").write_text("image_id,class\nc,9\n")
    data = sources.load(f"{name}(size=4)", tmp_path)
    assert data.class_names == ("9", "10")
    assert (data.train.y.tolist(), data.test.y.tolist(), data.train_clients.tolist()) == ([1, 0, 0], [0], [0, 1, 0])
    np.testing.assert_array_equal(data.train.x[1], data.train.x[2])
    (root / "test.csv").write_text("image_id,class\nq,9\n")
    with pytest.raises(FileNotFoundError, match=r"1 images are not under .*such as q; get "):
        sources.load(f"{name}(size=4)", tmp_path)
    (tmp_path / file).write_text("user,image_id,class\n17,b,10\n")
    with pytest.raises(ValueError, match="has columns user, image_id, class; must have user_id, image_id, class, and rows"):
        sources.load(f"{name}(size=4)", tmp_path)


@pytest.mark.parametrize("name", ["flair", "landmarks", "inaturalist"])
def test_sets_that_are_not_there_say_where_to_get_them(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=r"looked for .*; get .* and put (it|them) there"):
        sources.load(name, tmp_path)
