"""Arrays in .npz files, and in folders of .npy files."""

import zipfile

import numpy as np
import pytest

from fedjax_core.data import row_readers, sources
from tests.fedjax_core.data.sources.written import assert_same, images, pacs, png, savez


def test_npz_arrays(tmp_path):
    x, y = images(6, 5, 4), np.array([0, 1, 2, 0, 1, 2])
    arrays = {"train_images": x, "train_labels": y, "test_images": x[:2], "test_labels": y[:2], "train_clients": y // 2}
    savez(tmp_path / "mine.npz", class_names=np.array(["a", "b", "c"]), **arrays)
    data = sources.load("npz:mine", tmp_path)
    assert_same(data, x, y, x[:2], y[:2])
    assert (data.name, data.class_names) == ("mine", ("a", "b", "c"))
    assert data.train_clients is not None
    assert data.train_clients.tolist() == (y // 2).tolist()
    assert data.test_clients is None
    same = sources.load("npz", path=str(tmp_path / "mine.npz"))
    assert_same(same, x, y, x[:2], y[:2])


def encoded(arrays):
    files = [png(array) for array in arrays]
    return np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *(len(file) for file in files)])


def test_npz_encoded_in_one_part_with_domains(tmp_path):
    x, y, domains = images(20, 6, 7), np.arange(20) % 2, np.arange(20) // 10
    blob, offsets = encoded(x)
    is_test = np.arange(20) % 10 >= 6
    savez(
        tmp_path / "mine.npz",
        **{"bytes": blob},
        offsets=offsets,
        labels=y,
        domains=domains,
        is_test=is_test,
        domain_names=np.array(["photo", "sketch"]),
    )
    data = sources.load("npz:mine.npz", tmp_path)
    assert_same(data, x[~is_test], y[~is_test], x[is_test], y[is_test])
    assert data.domain_names == ("photo", "sketch")
    assert data.train_domains is not None
    assert data.train_domains.tolist() == domains[~is_test].tolist()
    other = sources.load("npz:mine.npz", tmp_path, test_fraction=0.2, size=5, channels=1)
    assert other.test.x.shape == (4, 5, 5, 1)
    assert other.test_domains is not None
    assert sorted(zip(other.test_domains.tolist(), other.test.y.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_npz_pickles_are_never_loaded(tmp_path):
    savez(tmp_path / "bad.npz", train_images=np.array([{"a": 1}], object), train_labels=np.array([0]))
    with pytest.raises(ValueError, match=r"bad.npz: `train_images` holds pickled objects, which are never loaded"):
        sources.load("npz:bad.npz", tmp_path)


def test_npz_errors(tmp_path):
    x, y = images(4, 5, 4), np.array([0, 1, 0, 1])
    blob, offsets = encoded(x)
    savez(tmp_path / "other.npz", data=x)
    with pytest.raises(ValueError, match=r"none of the known keys, .*; it has data"):
        sources.load("npz:other.npz", tmp_path)
    savez(tmp_path / "half.npz", train_images=x, train_labels=y)
    with pytest.raises(ValueError, match=r"has no `test_labels`, but: train_images, train_labels"):
        sources.load("npz:half.npz", tmp_path)
    savez(tmp_path / "nosplit.npz", images=x, labels=y)
    with pytest.raises(ValueError, match=r"has neither `is_test` nor a test part; pass test_fraction"):
        sources.load("npz:nosplit.npz", tmp_path)
    savez(tmp_path / "cut.npz", **{"bytes": blob[:-3]}, offsets=offsets, labels=y, is_test=y > 0)
    with pytest.raises(ValueError, match="`offsets` must be 5 increasing numbers from 0 to"):
        sources.load("npz:cut.npz", tmp_path)
    broken = blob.copy()
    broken[offsets[2] : offsets[2] + 8] = 0
    savez(tmp_path / "broken.npz", **{"bytes": broken}, offsets=offsets, labels=y, is_test=y > 0)
    with pytest.raises(ValueError, match=r"broken\.npz: image 2 of `bytes` cannot be decoded"):
        sources.load("npz:broken.npz", tmp_path)
    whole = (tmp_path / "half.npz").read_bytes()
    (tmp_path / "truncated.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"truncated.npz: is not a .npz archive, or is truncated"):
        sources.load("npz:truncated.npz", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"npz:nowhere is not in .*looked for .*nowhere, .*nowhere.npz"):
        sources.load("npz:nowhere", tmp_path)


def test_npz_reads_pacs(shared_data):
    data = pacs(shared_data)
    assert data.train.x.shape == (7993, 64, 64, 3)
    assert data.test.x.shape == (1998, 64, 64, 3)
    assert data.class_names == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert data.domain_names == ("art_painting", "cartoon", "photo", "sketch")
    assert data.train_domains is not None
    assert data.test_domains is not None
    both = np.bincount(data.train_domains) + np.bincount(data.test_domains)
    assert both.tolist() == [2048, 2344, 1670, 3929]
    spread = [data.train.x[data.train_domains == d].std(-1).mean() for d in range(4)]  # over the colours
    assert spread[3] < 1 < min(spread[:3])  # sketches are grey


def test_npz_of_features_keeps_them(tmp_path):
    tokens, series = np.arange(12).reshape(4, 3), np.ones((4, 2, 3))
    for features, kept in ((tokens, np.int32), (series, np.float32)):
        savez(tmp_path / "mine.npz", features=features, labels=np.array([0, 1, 0, 1]), is_test=np.array([0, 0, 1, 1]))
        data = sources.load("npz:mine", tmp_path)
        np.testing.assert_array_equal(np.concatenate([data.train.x, data.test.x]), features)
        assert data.train.x.dtype == kept


Y = np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"is_test": np.array([True, False])}, r"`is_test` has 2 values of bool: must be 4 times True or False"),
        ({"is_test": np.array([0, 1, 2, 1])}, r"`is_test` has 4 values of int64: must be 4 times True or False"),
        ({"images": images(3, 2, 2)}, r"`images` has 3 examples for 4 `labels`"),
        ({"images": np.zeros((4, 0, 2, 3), np.uint8)}, r"train_x has shape \(2, 0, 2, 3\): .* no empty axis"),
        ({"labels": Y[None]}, r"`labels` has shape \(1, 4\): must have one axis"),
        ({"class_names": np.array("cat")}, r"`class_names` has shape \(\): must have one axis"),
        ({"labels": np.array([0, 1, 0, 2**31 - 2])}, r"test_y has the value 2147483646"),
        ({"domains": Y[:2]}, r"`domains` has 2 examples for 4 `labels`"),
        ({"labels": Y / 2}, r"`labels` has type float64: must be classes, integers.*; other targets need csv, parquet or a source"),
    ],
)
def test_npz_arrays_fit_together(tmp_path, change, said):
    savez(tmp_path / "bad.npz", **{"images": images(4, 2, 2), "labels": Y, "is_test": Y > 0} | change)
    with pytest.raises(ValueError, match=rf"bad\.npz: {said}"):
        sources.load("npz:bad.npz", tmp_path)


def member(shape, dtype="<f4", body=b"", magic=b"\x93NUMPY\x01\x00"):
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return magic + len(header).to_bytes(2, "little") + header + body


@pytest.mark.parametrize(
    ("blob", "said"),
    [
        (b"no array at all", r"is no .npy array, or is damaged \(it is too short, or its header cannot be read\)"),
        (b"", "is no .npy array, or is damaged"),
        (member((2**44,)), r"has shape \[17592186044416\] of float32 in its header, which takes 64.0 TiB; must be at most the 0 "),
        (member((-1,), body=b"1234"), r"has shape \[-1\] of float32 in its header"),
        (member((4,), body=b"123"), r"has shape \[4\] .* takes 16 bytes; must be at most the 3 bytes that follow: truncated"),
        (member((1,), body=b"12345"), r"has bytes behind its array: damaged"),
        (member((4,), magic=b"\x93NUMPY\x09\x00"), "is no .npy array, or is damaged"),
    ],
)
def test_npz_members_that_are_no_arrays(tmp_path, blob, said):
    with zipfile.ZipFile(tmp_path / "bad.npz", "w") as archive:
        archive.writestr("labels.npy", blob)
    with pytest.raises(ValueError, match=rf"bad\.npz: `labels`:? {said}"):
        sources.load("npz:bad.npz", tmp_path)


@pytest.mark.parametrize("form", ["{what}_{part}", "{part}_{what}", "{What}_{part}"])
def test_npz_with_the_names_of_keras(tmp_path, form):
    """Images are uint8 [n, H, W], labels may be [n, 1]."""
    x, y = images(6, 5, 4), np.array([0, 1, 2, 0, 1, 2])
    named = {}
    for part in ("train", "test"):
        for what, array in (("x", x[..., 0]), ("y", y[:, None])):
            named[form.format(what=what, What=what.upper(), part=part)] = array
    savez(tmp_path / "keras.npz", **named)
    assert_same(sources.load("npz:keras", tmp_path), x[..., :1], y, x[..., :1], y)
    series = {name: array / 2 if array.ndim == 3 else array for name, array in named.items()}
    savez(tmp_path / "series.npz", **series)
    assert sources.load("npz:series", tmp_path).train.x.shape == (6, 5, 4)


def test_npz_names_columns_that_belong_to_no_part(tmp_path, caplog):
    parts = {f"{what}_{part}": array for part in ("train", "test") for what, array in (("x", np.ones((4, 2))), ("y", Y))}
    savez(tmp_path / "mine.npz", clients=Y, **parts)
    assert sources.load("npz:mine", tmp_path).train_clients is None
    assert "not read: clients; name them such as train_clients and test_clients" in caplog.text


def test_npz_says_which_keys_are_known(tmp_path):
    savez(tmp_path / "other.npz", data=np.zeros(3), target=np.zeros(3))
    with pytest.raises(
        ValueError, match=r"known keys, x_train, y_train, .* images, features, .* client_names; it has data, target"
    ):
        sources.load("npz:other", tmp_path)
    savez(tmp_path / "twice.npz", x_train=np.zeros((3, 2)), train_x=np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"has 'train_x' twice, also as '\w+': give one of them"):
        sources.load("npz:twice", tmp_path)


@pytest.mark.parametrize("part", ["train_features", "train_labels"])
def test_a_shape_that_the_file_does_not_hold(tmp_path, part):
    arrays = {"train_features": np.zeros((4, 2), np.float32), "train_labels": np.arange(4) % 2}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        np.save(tmp_path / f"{name.replace('train', 'test')}.npy", array)
    (tmp_path / f"{part}.npy").write_bytes(member((2**40, 2), body=bytes(64)))
    said = (
        rf"{part}\.npy has shape \[1099511627776, 2\] of float32 in its header, which takes 8.0 TiB; must be at most the 64 bytes"
    )
    with pytest.raises(ValueError, match=said):
        sources.load(f"npy:{tmp_path}")


def test_an_array_that_no_memory_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(row_readers, "machine_memory", lambda: 40)
    savez(tmp_path / "mine.npz", labels=np.arange(6), features=np.zeros((6, 2)), is_test=np.arange(6) % 2)
    with pytest.raises(ValueError, match=r"`\w+`: an array \[6\] of int64 takes 48 bytes, this machine has 40 bytes"):
        sources.load("npz:mine", tmp_path)


HEADERS = {
    r"has shape \[10{30}, 2\] of float32 in its header": f"(({10**30}), 2)",
    "longer than the 10,000 characters": "(4, 2)" + " " * 20_000,
}


@pytest.mark.parametrize("why", HEADERS)
def test_a_header_that_claims_too_much(tmp_path, why):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {HEADERS[why]}, }}\n".encode()
    blob = b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header + bytes(64)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("train_features", "train_labels", "test_features", "test_labels"):
        np.save(folder / f"{name}.npy", np.zeros((4, 2), np.float32) if "features" in name else np.arange(4) % 2)
    (folder / "train_features.npy").write_bytes(blob)
    with pytest.raises(ValueError, match=f"train_features.npy .*{why}") as found:
        sources.load("npy:folder", tmp_path)
    assert "pickle" not in str(found.value)
    with zipfile.ZipFile(tmp_path / "z.npz", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, file.name)
    with pytest.raises(ValueError, match=r"z.npz: `train_features`") as found:
        sources.load("npz:z", tmp_path)
    assert "pickle" not in str(found.value)


FEATURES, LABELS = np.arange(48, dtype=np.float32).reshape(8, 6), np.array([0, 1, 0, 1, 2, 2, 0, 1])


def write_folder(folder, **changed):
    arrays = {
        "train_features": FEATURES,
        "train_labels": LABELS,
        "test_features": FEATURES[:2],
        "test_labels": LABELS[:2],
        "train_clients": LABELS,
    } | changed
    for name, array in arrays.items():
        if array is not None:
            np.save(folder / f"{name}.npy", array)
    return folder


def test_features_stay_in_their_files(tmp_path, caplog):
    (tmp_path / "mine").mkdir()
    names = {"client_names": np.array(["x", "y", "z"]), "class_names": np.array([b"a", b"b", b"c"])}
    write_folder(tmp_path / "mine", **names, train_domain=LABELS)
    data = sources.load("npy:mine", tmp_path)
    assert row_readers.locate_in_file(data.train.x) == (tmp_path / "mine" / "train_features.npy", 128)
    np.testing.assert_array_equal(data.train.x, FEATURES)
    np.testing.assert_array_equal(data.train.y, LABELS)
    assert (data.class_names, data.client_names) == (("a", "b", "c"), ("x", "y", "z"))
    assert data.train_clients is not None
    assert data.train_clients.tolist() == LABELS.tolist()
    assert "mine: files with unknown names are not read: train_domain.npy" in caplog.text


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"test_labels": None}, FileNotFoundError, r"there is no .*test_labels\.npy; a folder needs train_features, train_labels"),
        (
            {"train_features": FEATURES.astype(np.float64)},
            ValueError,
            r"train_features\.npy has type float64: must be uint8, float32 or int32",
        ),
        ({"train_labels": LABELS[:3]}, ValueError, "train_x has 8 examples and train_y 3"),
        (
            {"train_labels": np.eye(8, 3), "test_labels": np.eye(2, 3)},
            ValueError,
            r"train_labels\.npy has shape \(8, 3\) and type float64: must be classes, \[n\] integers",
        ),
        ({"class_names": np.array(["a", None], object)}, ValueError, r"class_names\.npy holds pickled objects"),
    ],
)
def test_what_is_wrong_with_a_folder(tmp_path, changed, error, message):
    write_folder(tmp_path, **changed)
    with pytest.raises(error, match=message):
        sources.load(f"npy:{tmp_path}")
