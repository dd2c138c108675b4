import os
import struct
import zlib

import numpy as np
import pytest

from fedjax_core.data import sources
from fedjax_core.data.smaller import smaller
from fedjax_core.data.sources import images as folders
from tests.fedjax_core.data.sources.written import assert_same, images, png


def write_images(root, number, seed=0, side=5):
    root.mkdir(parents=True)
    x = images(number, side, side, seed=seed)
    for i, array in enumerate(x):
        (root / f"{i:03}.png").write_bytes(png(array))
    (root / "notes.txt").write_text("not an image")
    return x


def test_folder_with_train_and_test(tmp_path):
    cat, dog = (write_images(tmp_path / "pets/train" / name, 3, seed) for seed, name in enumerate(("cat", "dog")))
    test = write_images(tmp_path / "pets/test/dog", 2, 7)
    data = sources.load("folder:pets", tmp_path)
    assert_same(data, np.concatenate([cat, dog]), [0, 0, 0, 1, 1, 1], test, [1, 1])
    assert (data.name, data.class_names) == ("pets", ("cat", "dog"))
    with pytest.raises(ValueError, match=r"test_fraction=0.5, but the folder has train/ and test/"):
        sources.load("folder:pets", tmp_path, test_fraction=0.5)


def test_folder_of_domains_is_split_by_class_and_domain(tmp_path):
    for seed, place in enumerate(("photo/cat", "photo/dog", "sketch/cat", "sketch/dog")):
        write_images(tmp_path / place, 10, seed)
    data = sources.load(f"folder:{tmp_path}", domains=True, test_fraction=0.2)
    assert data.domain_names == ("photo", "sketch")
    assert data.test_domains is not None
    assert np.bincount(2 * data.test_domains + data.test.y).tolist() == [2, 2, 2, 2]
    again = sources.load(f"folder:{tmp_path}", domains=True, test_fraction=0.2)
    assert_same(again, data.train.x, data.train.y, data.test.x, data.test.y)
    rows = {row.tobytes() for row in np.concatenate([data.train.x, data.test.x])}
    assert len(rows) == 40


@pytest.mark.parametrize("parts", [("",), ("train", "test")])
def test_folder_reads_only_the_examples_that_are_used(tmp_path, parts, monkeypatch):
    for seed, name in enumerate(("cat", "dog")):
        for part in parts:
            write_images(tmp_path / part / name, 10, seed)
    found = sources.find("folder", {"path": str(tmp_path), **({} if len(parts) == 2 else {"test_fraction": 0.2})})
    whole = smaller(sources.read(found), examples=6)
    calls, decode = [], folders.decode
    monkeypatch.setattr(folders, "decode", lambda *given: calls.append(given[2]) or decode(*given))
    some = smaller(sources.read(found, None, 6), examples=6)
    assert calls == [6, len(whole.test.y)]
    assert_same(some, whole.train.x, whole.train.y, whole.test.x, whole.test.y)


def test_folder_with_several_shapes_needs_a_size(tmp_path):
    write_images(tmp_path / "cat", 4, side=5)
    write_images(tmp_path / "dog", 4, side=6)
    with pytest.raises(ValueError, match=r"dog/000\.png is 6x6 and the first, .*cat/000\.png, 5x5; pass size to resize all"):
        sources.load(f"folder:{tmp_path}", test_fraction=0.5)
    assert sources.load(f"folder:{tmp_path}", test_fraction=0.5, size=8).train.x.shape == (4, 8, 8, 3)


def test_folder_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"folder:nope: there is no folder .*nope"):
        sources.load("folder:nope", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no train/ and test/; pass test_fraction"):
        sources.load("folder:empty", tmp_path)
    with pytest.raises(ValueError, match=r"no images; looked for CLASS/\* ending in .png"):
        sources.load("folder:empty", tmp_path, test_fraction=0.5)
    write_images(tmp_path / "one" / "cat", 4)
    with pytest.raises(ValueError, match=r"test_fraction=1.5 must be between 0 and 1"):
        sources.load("folder:one", tmp_path, test_fraction=1.5)


@pytest.fixture
def pets(tmp_path):
    for seed, name in enumerate(("cat", "dog")):
        write_images(tmp_path / name, 4, seed)
    return tmp_path


def bomb(side):
    """A PNG whose header says side x side."""
    header = struct.pack(">II5B", side, side, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + b"\0\0\0\0IDAT"


@pytest.mark.parametrize(("blob", "said"), [(b"no image", "it is no image that Pillow knows"), (bomb(20_000), "exceeds limit")])
def test_a_broken_image_is_named(pets, blob, said):
    (pets / "dog" / "002.png").write_bytes(blob)
    with pytest.raises(ValueError, match=rf"{pets}/dog/002\.png cannot be decoded \(.*{said}"):
        sources.load(f"folder:{pets}", test_fraction=0.5)


def test_a_pipe_does_not_hang(pets):
    os.mkfifo(pets / "dog" / "pipe.png")
    with pytest.raises(ValueError, match=r"dog/pipe\.png: is no regular file"):
        sources.load(f"folder:{pets}", test_fraction=0.5)
    (pets / "dog" / "pipe.png").unlink()
    (pets / "cat" / "link.png").symlink_to(pets / "nowhere")
    with pytest.raises(ValueError, match=r"cat/link\.png: is no regular file"):
        sources.load(f"folder:{pets}", test_fraction=0.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 10_000_000}, r"size=10000000 for 8 images: an array .* takes 2,182.8 TB, this machine has"),
        ({"size": 0}, "size=0 must be at least 1"),
        ({"channels": 4}, "channels=4 must be one of 1, 3"),
        ({"test_fraction": 0.01}, "test_fraction=0.01 of 8 rows leaves 8 to train and 0 to test on"),
    ],
)
def test_images_that_cannot_be(pets, options, said):
    with pytest.raises(ValueError, match=said):
        sources.load("folder", path=str(pets), **{"test_fraction": 0.5} | options)
