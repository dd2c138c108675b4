import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fedjax_core.data import sources
from fedjax_core.data.sources import image_folder as folders
from fedjax_core.data.sources.image_folder import decode_images
from fedjax_core.data.subsample import subsample
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
    found = sources.find_reader("folder", {"path": str(tmp_path), **({} if len(parts) == 2 else {"test_fraction": 0.2})})
    whole = subsample(sources.read_dataset(found), examples=6)
    calls, decode = [], folders.decode_images
    monkeypatch.setattr(folders, "decode_images", lambda *given: calls.append(given[2]) or decode(*given))
    some = subsample(sources.read_dataset(found, None, 6), examples=6)
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


def test_what_is_beside_images_is_said(tmp_path, caplog):
    write_images(tmp_path / "cat", 4)
    write_images(tmp_path / "dog", 4)
    (tmp_path / "dog/puppies").mkdir()
    (tmp_path / "dog/.hidden").touch()
    sources.load(f"folder:{tmp_path}", test_fraction=0.5)
    assert caplog.messages == [f"{tmp_path}: 3 files or folders beside images are not read, such as {tmp_path}/cat/notes.txt"]
    write_images(tmp_path / "owl", 0)
    with pytest.raises(ValueError, match=r"owl: has no images, but 1 other files or folders, such as 'notes.txt'; looked for"):
        sources.load(f"folder:{tmp_path}", test_fraction=0.5)


def test_transparent_pixels_are_said(tmp_path, caplog):
    square = np.zeros((4, 4, 4), np.uint8)
    square[..., 3] = 255
    of_class(tmp_path, "a", {f"{i}.png": saved(square, "PNG") for i in range(2)})
    of_class(tmp_path, "b", {f"{i}.png": saved(square, "PNG") for i in range(2)})
    sources.load(f"folder:{tmp_path}", test_fraction=0.5)
    assert not caplog.messages
    square[1:3, 1:3, 3] = 0
    of_class(tmp_path, "b", {f"{i}.png": saved(square, "PNG") for i in range(2)})
    sources.load(f"folder:{tmp_path}", test_fraction=0.5)
    assert [message.split(", ")[0] for message in caplog.messages] == [
        f"{tmp_path}/b/{i}.png has transparent pixels" for i in (0, 1)
    ]


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
        ({"size": 10_000_000}, r"size=10000000 for 4 images: an array .* takes 1,091.4 TiB, this machine has"),
        ({"size": 0}, "size=0 must be at least 1"),
        ({"channels": 4}, "channels=4 must be one of 1, 3"),
        ({"test_fraction": 0.01}, "test_fraction=0.01 of 8 examples leaves 8 to train and 0 to test on"),
    ],
)
def test_images_that_cannot_be(pets, options, said):
    with pytest.raises(ValueError, match=said):
        sources.load("folder", path=str(pets), **{"test_fraction": 0.5} | options)


def tiff_of_12_bits(pixels):
    """A grey TIFF whose pixels take 12 bits each, which Pillow reads and does not write."""
    height, width = pixels.shape
    packed = np.packbits(np.unpackbits(pixels.astype(">u2").view(np.uint8)).reshape(-1, 16)[:, 4:])
    tags = {256: width, 257: height, 258: 12, 259: 1, 262: 1, 273: 8 + 2 + 12 * 9 + 4, 277: 1, 278: height, 279: len(packed)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4) + packed.tobytes()


def of_class(root, name, images_by_file):
    for file, blob in images_by_file.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / file).write_bytes(blob)


def saved(array, kind):
    blob = io.BytesIO()
    Image.fromarray(array).save(blob, kind)
    return blob.getvalue()


@pytest.mark.parametrize(("channels", "kind"), [(1, "PNG"), (3, "PNG"), (1, "TIFF"), (1, "PPM")])
def test_images_of_16_bits_are_scaled_by_their_depth(tmp_path, channels, kind, caplog):
    """Not cut at 255, which makes them plain white."""
    deep = (np.arange(64, dtype=np.uint16).reshape(8, 8) * 1040)[:, ::-1]
    blob = saved(deep, kind) if kind != "PPM" else b"P5 8 8 65535\n" + deep.astype(">u2").tobytes()
    of_class(tmp_path, "a", {f"{i}.png": blob for i in range(2)})
    of_class(tmp_path, "b", {f"{i}.png": png(images(1, 8, 8)[0]) for i in range(2)})
    data = sources.load(f"folder:{tmp_path}", channels=channels, test_fraction=0.5)
    (row,) = np.flatnonzero(data.train.y == 0)
    np.testing.assert_array_equal(data.train.x[row], np.repeat(np.round(deep / 257)[..., None], channels, -1))
    assert not caplog.messages


def test_a_tiff_of_12_bits_is_scaled_by_12(tmp_path):
    deep = np.linspace(0, 4095, 64).astype(np.uint16).reshape(8, 8)
    decoded = decode_images(str, [tiff_of_12_bits(deep)], 1, 1, None)
    np.testing.assert_array_equal(decoded[0, ..., 0], np.round(deep * (255 / 4095)))


def test_deep_images_that_use_little_of_their_depth_are_warned_of(caplog):
    """12 bits in a file that says 16."""
    decode_images(str, [saved(np.full((4, 4), 4095, np.uint16), "PNG")], 1, 1, None)
    assert "0 and the images that go with it use 17 of 256 grey levels" in caplog.text


@pytest.mark.parametrize(("array", "mode"), [(np.full((4, 4), 0.5, np.float32), "F"), (np.full((4, 4), 70000, np.int32), "I")])
def test_images_without_a_depth_are_refused(tmp_path, array, mode):
    of_class(tmp_path, "a", {f"{i}.tiff": saved(array, "TIFF") for i in range(2)})
    with pytest.raises(ValueError, match=rf"a/0\.tiff is an image of mode '{mode}' with pixels from .*: must have 8 or 16 bits"):
        sources.load(f"folder:{tmp_path}", test_fraction=0.5)
