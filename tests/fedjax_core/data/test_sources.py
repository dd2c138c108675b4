"""Files are written here in their published byte layout, and read back."""

import gzip
import hashlib
import io
import json
import shutil
import string
import struct
import subprocess
import sys
import tarfile
import zipfile
from typing import Any

import numpy as np
import pytest
import scipy.io
from PIL import Image

from fedjax_core.data import federated, sources


def images(rows, height=32, width=32, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, height, width, channels), np.uint8)


def savez(file, **arrays: Any):
    np.savez(file, **arrays)


def png(array):
    file = io.BytesIO()
    Image.fromarray(array.squeeze()).save(file, "PNG")
    return file.getvalue()


def assert_same(dataset, train_x, train_y, test_x, test_y):
    for examples, x, y in ((dataset.train, train_x, train_y), (dataset.test, test_x, test_y)):
        np.testing.assert_array_equal(examples.x, x)
        np.testing.assert_array_equal(examples.y, y)
        assert examples.x.dtype == np.uint8
        assert examples.y.dtype == np.int32


# -- digits


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
    assert len({row.tobytes() for row in np.concatenate([data.train.x, data.test.x])}) == 1797  # no row in both


# -- CIFAR


SMALL10 = sources.CIFAR10._replace(parts=dict.fromkeys(sources.CIFAR10.parts, 4))
SMALL100 = sources.CIFAR100._replace(parts={"train.bin": 20, "test.bin": 6})


def cifar_files(spec, seed=0):
    """{file: bytes} in the layout of the binary version: label bytes, then the red, green and blue planes, row by row."""
    rng = np.random.default_rng(seed)
    files, kept = {}, []
    for file, rows in spec.parts.items():
        x = images(rows, seed=int(rng.integers(1000)))
        y = np.stack([rng.integers(0, classes, rows) for _, classes in spec.labels.values()], 1)
        kept.append((x, y))
        files[file] = b"".join(bytes(y[i].tolist()) + b"".join(x[i, :, :, c].tobytes() for c in range(3)) for i in range(rows))
    for file, classes in spec.labels.values():
        files[file] = ("\n".join(f"class_{i}" for i in range(classes)) + "\n\n").encode()
    train = [np.concatenate(part) for part in zip(*kept[:-1], strict=True)]
    return files, train, kept[-1]


def write_folder(root, spec, files):
    (root / spec.folder).mkdir(parents=True)
    for file, blob in files.items():
        (root / spec.folder / file).write_bytes(blob)


def write_archive(root, spec, files):
    """Returns the spec with this archive's md5."""
    with tarfile.open(root / spec.archive, "w:gz") as archive:
        for file, blob in files.items():
            info = tarfile.TarInfo(f"{spec.folder}/{file}")
            info.size = len(blob)
            archive.addfile(info, io.BytesIO(blob))
    return spec._replace(md5=hashlib.md5((root / spec.archive).read_bytes(), usedforsecurity=False).hexdigest())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("spec", "labels", "column"), [(SMALL10, "fine", 0), (SMALL100, "fine", 1), (SMALL100, "coarse", 0)])
def test_cifar_round_trip(tmp_path, spec, labels, column, packed):
    files, (train_x, train_y), (test_x, test_y) = cifar_files(spec)
    if packed:
        spec = write_archive(tmp_path, spec, files)
    else:
        write_folder(tmp_path, spec, files)
    data = sources.read_cifar("cifar", spec, tmp_path, labels)
    assert_same(data, train_x, train_y[:, column], test_x, test_y[:, column])
    assert data.class_names == tuple(f"class_{i}" for i in range(spec.labels[labels][1]))


def test_cifar_specs_are_the_published_ones():
    for spec, train in ((sources.CIFAR10, 50_000), (sources.CIFAR100, 50_000)):
        *parts, test = spec.parts.values()
        assert (sum(parts), test) == (train, 10_000)
    assert sources.CIFAR10.md5 == "c32a1d4ab5d03f1284b67883e8d87530"
    assert sources.CIFAR100.md5 == "03b5dce01913d631647c71ecec9e9cb8"


def test_cifar_archive_is_checked_by_md5(tmp_path):
    files, *_ = cifar_files(SMALL10)
    spec = write_archive(tmp_path, SMALL10, files)
    archive = tmp_path / spec.archive
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz: \d+ bytes with md5 .* published is c32a1d4a"):
        sources.load("cifar10", tmp_path)
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated, damaged or another file"):
        sources.read_cifar("cifar10", spec, tmp_path, "fine")


def test_cifar_files_are_checked_by_exact_size(tmp_path):
    files, *_ = cifar_files(SMALL10)
    write_folder(tmp_path, SMALL10, files)
    with pytest.raises(ValueError, match=r"data_batch_1.bin has 12292 bytes, 10000 records of 3073 are 30730000"):
        sources.load("cifar10", tmp_path)
    file = tmp_path / SMALL10.folder / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_3.bin has 12291 bytes, 4 records of 3073 are 12292"):
        sources.read_cifar("cifar10", SMALL10, tmp_path, "fine")
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3.bin"):
        sources.read_cifar("cifar10", SMALL10, tmp_path, "fine")


def test_cifar_labels_beyond_the_names_are_refused(tmp_path):
    files, *_ = cifar_files(SMALL10)
    files["test_batch.bin"] = bytes([10]) + files["test_batch.bin"][1:]
    write_folder(tmp_path, SMALL10, files)
    with pytest.raises(ValueError, match="test_y has the value 10, class_names has 10 names"):
        sources.read_cifar("cifar10", SMALL10, tmp_path, "fine")


# -- classes that are not trained on

CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
    forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
    mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
    wolf woman worm
"""
FC100_TEST = """
    beaver dolphin otter seal whale    bee beetle butterfly caterpillar cockroach    fox porcupine possum raccoon skunk
    baby boy girl man woman
"""  # aquatic mammals, insects, medium mammals, people
FC100_VALIDATION = """
    bear leopard lion tiger wolf    camel cattle chimpanzee elephant kangaroo    crab lobster snail spider worm
    hamster mouse rabbit shrew squirrel
"""  # large carnivores, large omnivores and herbivores, invertebrates but insects, small mammals


@pytest.mark.parametrize(("test", "unseen"), [("test", FC100_TEST), ("validation", FC100_VALIDATION)])
def test_fc100_divides_the_classes_by_superclass(tmp_path, monkeypatch, test, unseen):
    spec = sources.CIFAR100._replace(parts={"train.bin": 300, "test.bin": 100})
    monkeypatch.setattr(sources, "CIFAR100", spec)
    files, *parts = cifar_files(spec)
    files["fine_label_names.txt"] = "\n".join(CIFAR100.split()).encode()
    write_folder(tmp_path, spec, files)
    x = np.concatenate([part[0] for part in parts])
    names = [CIFAR100.split()[c] for part in parts for c in part[1][:, 1]]
    data = sources.load("fc100", tmp_path, test=test)
    others = {*FC100_TEST.split(), *FC100_VALIDATION.split()}
    assert data.class_names == (*(n for n in CIFAR100.split() if n not in others), *sorted(unseen.split()))
    assert len(data.class_names) == 80
    rows = [[i for i, n in enumerate(names) if n not in others], [i for i, n in enumerate(names) if n in unseen.split()]]
    y = [[data.class_names.index(names[i]) for i in part] for part in rows]
    assert max(y[0]) < 60 <= min(y[1])
    assert_same(data, x[rows[0]], y[0], x[rows[1]], y[1])


def test_fc100_wants_all_of_cifar100_in_its_order(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"fc100: of='digits' has 10 classes, 0, 1, 2 \.\.\.: must have the 100 of CIFAR-100"):
        sources.load("fc100", of="digits")
    with pytest.raises(ValueError, match="unknown FC100 test 'train'; allowed: test, validation"):
        sources.load("fc100", test="train")
    with pytest.raises(FileNotFoundError, match=r"cifar-100-binary\.tar\.gz"):
        sources.load("fc100", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"tfds:cifar100 is not prepared"):
        sources.load("fc100", tmp_path, of="tfds:cifar100")
    asked = {}
    monkeypatch.setattr(sources, "load", lambda *args, **options: asked.update(options) or sources.digits())
    with pytest.raises(ValueError, match="has 10 classes"):
        sources.fc100(tmp_path, of="tfds:cifar100")
    assert asked == {"label": "label"}  # not the superclass


def test_unseen_classes_are_in_the_test_set_alone():
    whole = sources.digits()
    data = sources.load("unseen", of="digits", classes=(7, 0))
    assert data.class_names == tuple("12345689" + "07")
    assert data.name == "digits_unseen"
    x, y = np.concatenate([whole.train.x, whole.test.x]), np.concatenate([whole.train.y, whole.test.y])
    seen, rest = np.flatnonzero((y != 0) & (y != 7)), np.flatnonzero((y == 0) | (y == 7))
    assert_same(data, x[seen], ["12345689".index(str(c)) for c in y[seen]], x[rest], [8 if c == 0 else 9 for c in y[rest]])


@pytest.mark.parametrize("classes", [(), (10,), (-1, 2), (3, 3), tuple(range(10))])
def test_unseen_classes_are_some_of_those_there_are(classes):
    with pytest.raises(ValueError, match=r"unseen: classes=\(.*\): must be some, not all, of the labels 0 to 9 of 'digits'"):
        sources.load("unseen", of="digits", classes=classes)


def test_an_unseen_domain_is_the_test_set():
    whole = sources.load("rotated", of="digits", degrees=(0, 90))
    data = sources.load("unseen_domain", of="rotated(of='digits', degrees=(0, 90))", domain="90")
    assert data.name == "digits_rotated_unseen_90"
    x, y = (np.concatenate(column) for column in zip(whole.train, whole.test, strict=True))
    assert whole.train_domains is not None
    assert whole.test_domains is not None
    turned = np.concatenate([whole.train_domains, whole.test_domains]) == 1
    assert_same(data, x[~turned], y[~turned], x[turned], y[turned])
    assert data.train_domains is not None
    assert not data.train_domains.any()
    with pytest.raises(ValueError, match=r"unknown domain of rotated\(.*\) '45'; allowed: 0, 30, 60, 90"):
        sources.load("unseen_domain", of="rotated(of='digits')", domain="45")
    with pytest.raises(ValueError, match="unseen_domain: of='digits' has no domains"):
        sources.load("unseen_domain", of="digits", domain="0")


def test_an_unseen_domain_of_pacs_leaves_three_clients(shared_data):
    """All 9,991 images stand on one side or the other; each client has one of the other domains, and everybody the same test."""
    spec = "npz(path='pacs64.npz')"
    data = federated.federate(
        sources.load("unseen_domain", shared_data, of=spec, domain="photo"), {"name": "by_domain"}, clients=3, seed=0
    )
    assert data.label_table.sum(1).tolist() == [2048, 2344, 3929]
    assert data.test_label_table.sum(1).tolist() == [1670] * 3


def test_turned_digits_have_an_angle_per_domain():
    whole, data = sources.digits(), sources.load("rotated", of="digits")
    assert data.domain_names == ("0", "30", "60", "90")
    assert data.train_domains is not None
    assert np.ptp(np.bincount(data.train_domains)) <= 1
    assert data.train.y.tolist() == whole.train.y.tolist()
    for domain, turn in ((0, 0), (3, 1)):
        mine = data.train_domains == domain
        np.testing.assert_array_equal(data.train.x[mine], np.rot90(whole.train.x[mine], turn, (1, 2)))
    again = sources.load("rotated", of="digits")
    np.testing.assert_array_equal(again.test.x, data.test.x)
    with pytest.raises(ValueError, match=r"rotated: degrees=\(0, 0\): must be two or more angles"):
        sources.load("rotated", of="digits", degrees=(0, 0))


def test_only_some_classes():
    whole, data = sources.digits(), sources.load("only", of="digits", classes=(7, 0))
    assert (data.name, data.class_names) == ("digits_only", ("7", "0"))
    for part, found in ((whole.train, data.train), (whole.test, data.test)):
        rows = np.flatnonzero((part.y == 0) | (part.y == 7))
        np.testing.assert_array_equal(found.x, part.x[rows])
        assert found.y.tolist() == [int(c == 0) for c in part.y[rows]]
        assert found.y.dtype == np.int32


@pytest.mark.parametrize("classes", [(), (10,), (-1, 2), (3, 3)])
def test_only_classes_that_there_are(classes):
    with pytest.raises(ValueError, match=r"only: classes=\(.*\): must be some of the labels 0 to 9 of 'digits'"):
        sources.load("only", of="digits", classes=classes)


def test_resplit_tests_on_a_part_of_the_training_rows():
    whole = sources.digits().train
    data = sources.load("resplit", of="digits", test_fraction=0.2)
    assert data.name == "digits_resplit"
    assert len(data.test.y) == round(0.2 * len(whole.y))
    both = np.concatenate([data.train.x, data.test.x])
    assert sorted(row.tobytes() for row in both) == sorted(row.tobytes() for row in whole.x)
    share = np.bincount(data.test.y) / np.bincount(whole.y)
    np.testing.assert_allclose(share, 0.2, atol=0.01)
    again = sources.load("resplit", of="digits")
    np.testing.assert_array_equal(again.test.x, data.test.x)
    with pytest.raises(ValueError, match=r"test_fraction=1: must lie between 0 and 1"):
        sources.load("resplit", of="digits", test_fraction=1)


def test_blank_images_have_the_shape_and_the_classes_asked_for():
    data = sources.load("blank", shape=(8, 6, 1), classes=100, rows=200)
    assert data.train.x.shape == (200, 8, 6, 1)
    assert not data.train.x.any()
    assert np.bincount(data.train.y).tolist() == [2] * 100
    wrongs: list[dict[str, Any]] = [{"shape": (8, 8)}, {"classes": 1}, {"classes": 10, "rows": 9}]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"blank: shape=.*must be \[H, W, C\], at least 2, and at least K"):
            sources.load("blank", **wrong)


# -- SVHN


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
    data = sources.read_svhn(tmp_path, md5)
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
            sources.read_svhn(tmp_path, md5)
    scipy.io.savemat(tmp_path / "train_32x32.mat", {"X": np.zeros(3)})
    md5 = {"train_32x32.mat": hashlib.md5((tmp_path / "train_32x32.mat").read_bytes(), usedforsecurity=False).hexdigest()}
    with pytest.raises(ValueError, match="has no array y"):
        sources.read_svhn(tmp_path, md5)


# -- MNIST and EMNIST


def idx(array):
    """An IDX file: 0, 0, 8 (unsigned bytes), axes; big-endian lengths; values."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


def test_mnist_files_give_the_same_as_its_npz(tmp_path, shared_data):
    """The real set, written as IDX files: passes the published checksums, packed and not."""
    with np.load(shared_data / "mnist.npz") as file:
        arrays = {key: file[key] for key in file.files}
    (tmp_path / "mnist").mkdir()
    train_x, train_y = arrays["train_images"], arrays["train_labels"]
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(idx(train_x))
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(train_y), 1))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(arrays["test_images"]), 1))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(arrays["test_labels"]))
    data = sources.load("mnist", tmp_path)
    assert_same(data, train_x[..., None], train_y, arrays["test_images"][..., None], arrays["test_labels"])
    same = sources.load("npz:mnist.npz", shared_data)
    assert_same(same, data.train.x, data.train.y, data.test.x, data.test.y)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(idx(255 - train_x))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte: 47040016 bytes with md5 .* published is 6bbc9ace"):
        sources.load("mnist", tmp_path)


def test_idx_round_trip(tmp_path):
    array = images(3, 5, 4, 1)[..., 0]
    np.testing.assert_array_equal(sources.read_idx(tmp_path, idx(array)), array)


@pytest.mark.parametrize("cut", [0, 3, 10, 75])
def test_truncated_idx_is_refused(tmp_path, cut):
    blob = idx(images(3, 5, 4, 1)[..., 0])
    assert len(blob) == 76
    with pytest.raises(ValueError, match=r"truncated or damaged|starts with"):
        sources.read_idx(tmp_path, blob[:cut])
    with pytest.raises(ValueError, match=r"61 values, its header says \(3, 5, 4\), which are 60"):
        sources.read_idx(tmp_path, blob + b"x")


def test_idx_of_another_type_is_refused(tmp_path):
    with pytest.raises(ValueError, match="starts with '00 00 0d 01'"):
        sources.read_idx(tmp_path, b"\x00\x00\x0d\x01" + b"\x00" * 8)


def emnist_files(split, rows=(20, 6), first=0, classes=47):
    upright = [images(number, 28, 28, 1, seed=number) for number in rows]
    labels = [np.arange(number) % classes + first for number in rows]
    files = {}
    for part, x, y in zip(("train", "test"), upright, labels, strict=True):
        files[f"emnist-{split}-{part}-images-idx3-ubyte"] = idx(x[..., 0].swapaxes(1, 2))  # transposed, as published
        files[f"emnist-{split}-{part}-labels-idx1-ubyte"] = idx(y)
    return files, upright, labels


@pytest.mark.parametrize("how", ["plain", "gz", "zip"])
def test_emnist_is_upright(tmp_path, how):
    files, x, y = emnist_files("balanced")
    if how == "zip":
        with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
            for file, blob in files.items():
                archive.writestr(f"gzip/{file}.gz", gzip.compress(blob))
    else:
        (tmp_path / "emnist" / "gzip").mkdir(parents=True)
        for file, blob in files.items():
            place = tmp_path / "emnist" / "gzip" / file
            place.with_name(file + ".gz").write_bytes(gzip.compress(blob)) if how == "gz" else place.write_bytes(blob)
    data = sources.read_emnist(tmp_path, "balanced", [(20, 6)])
    assert_same(data, x[0], y[0], x[1], y[1])
    assert len(data.class_names) == 47
    with pytest.raises(ValueError, match="emnist balanced: 20 training and 6 test rows, published are 112800 and 18800"):
        sources.load("emnist", tmp_path)


@pytest.mark.parametrize(("split", "number"), [("byclass", 62), ("bymerge", 47)])
def test_emnist_by_class_and_by_merge_on_real_characters(tmp_path, shared_data, split, number):
    """A sample of the set, written as the published files: by merge, 15 small letters count as capitals."""
    with np.load(shared_data / "emnist_byclass_sample.npz") as file:
        arrays = {key: file[key] for key in file.files}
    names = np.array([*string.digits, *string.ascii_uppercase, *string.ascii_lowercase])
    assert names.tolist() == arrays["class_names"].tolist()
    merged = {c: c.upper() for c in "cijklmopsuvwxyz"} if split == "bymerge" else {}
    order = [c for c in names if c not in merged]  # of the labels in the files
    upright, labels = [], []
    for part in ("train", "test"):
        upright.append(arrays[f"{part}_images"])
        labels.append(np.array([order.index(merged.get(c, c)) for c in names])[arrays[f"{part}_labels"]])
        (tmp_path / f"emnist-{split}-{part}-images-idx3-ubyte").write_bytes(idx(upright[-1].swapaxes(1, 2)))
        (tmp_path / f"emnist-{split}-{part}-labels-idx1-ubyte").write_bytes(idx(labels[-1]))
    data = sources.read_emnist(tmp_path, split, [(40_000, 8_000)])
    assert_same(data, upright[0][..., None], labels[0], upright[1][..., None], labels[1])
    assert data.class_names == tuple(order)
    assert np.unique(data.train.y).tolist() == list(range(number))


def test_emnist_letters_start_at_zero(tmp_path):
    files, x, y = emnist_files("letters", first=1, classes=26)
    for file, blob in files.items():
        (tmp_path / file).write_bytes(blob)
    data = sources.read_emnist(tmp_path, "letters", [(20, 6)])
    assert_same(data, x[0], y[0] - 1, x[1], y[1] - 1)
    assert data.class_names[0] == "A"


def test_emnist_names_are_as_many_as_published():
    numbers = {split: len(set(names)) for split, names in sources.EMNIST_NAMES.items()}
    assert numbers == {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def test_truncated_gz_and_zip_are_refused(tmp_path):
    files, *_ = emnist_files("balanced")
    for file, blob in files.items():
        (tmp_path / f"{file}.gz").write_bytes(gzip.compress(blob)[:-20])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz: cannot be unpacked .* truncated or damaged"):
        sources.load("emnist", tmp_path)
    for file in files:
        (tmp_path / f"{file}.gz").unlink()
    (tmp_path / "gzip.zip").write_bytes(b"PK\x03\x04 half an archive")
    with pytest.raises(ValueError, match=r"gzip.zip: cannot read gzip/emnist-balanced-train-images"):
        sources.load("emnist", tmp_path)


# -- tensorflow_datasets


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


def test_tfds_resizes(shared_data):
    data = sources.load("tfds:cifar10", shared_data, train="train[:3]", test="test[:3]", size=16)
    assert data.train.x.shape == (3, 16, 16, 3)


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


# -- npz


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
    savez(tmp_path / "other.npz", x_train=x)
    with pytest.raises(ValueError, match="none of the known keys; found x_train"):
        sources.load("npz:other.npz", tmp_path)
    savez(tmp_path / "half.npz", train_images=x, train_labels=y)
    with pytest.raises(ValueError, match=r"has no `test_labels` \(found: train_images, train_labels\)"):
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
    with pytest.raises(ValueError, match="image 2 cannot be decoded"):
        sources.load("npz:broken.npz", tmp_path)
    whole = (tmp_path / "half.npz").read_bytes()
    (tmp_path / "truncated.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"truncated.npz: is not a .npz archive, or is truncated"):
        sources.load("npz:truncated.npz", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"npz:nowhere is not in .*looked for .*nowhere, .*nowhere.npz"):
        sources.load("npz:nowhere", tmp_path)


def test_npz_reads_pacs(shared_data):
    data = sources.load("npz:pacs64.npz", shared_data)
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


def test_npz_reads_tiny_imagenet(shared_data):
    data = sources.load("npz:tiny_imagenet64_sample.npz", shared_data)
    assert data.train.x.shape == (20000, 64, 64, 3)
    assert data.test.x.shape == (5000, 64, 64, 3)
    assert np.bincount(data.train.y).tolist() == [100] * 200
    assert np.bincount(data.test.y).tolist() == [25] * 200
    assert data.class_names[0] == "Egyptian cat"


# -- folders


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


def test_folder_with_several_shapes_needs_a_size(tmp_path):
    write_images(tmp_path / "cat", 4, side=5)
    write_images(tmp_path / "dog", 4, side=6)
    with pytest.raises(ValueError, match="image 4 is 6x6 and the first 5x5; pass size to resize all"):
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
    with pytest.raises(ValueError, match=r"test_fraction=1.5: must lie between 0 and 1"):
        sources.load("folder:one", tmp_path, test_fraction=1.5)


# -- load


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
    for name in ("tfds", "tfds:"):
        with pytest.raises(ValueError, match=r"unknown data set 'tfds:?'.*Did you mean 'tfds:NAME'\?"):
            sources.load(name)
    with pytest.raises(ValueError, match="unknown data set 'digits:5'"):
        sources.load("digits:5")
    with pytest.raises(TypeError, match=r"data set 'cifar100' has no option 'lables'; it takes: labels\. Did you mean 'labels'\?"):
        sources.load("cifar100", lables="coarse")
    with pytest.raises(ValueError, match="unknown label set 'finest'; allowed: coarse, fine"):
        sources.load("cifar100", labels="finest")
    with pytest.raises(ValueError, match=r"unknown EMNIST split 'merge'.*Did you mean 'bymerge'"):
        sources.load("emnist", split="merge")


# -- arrays


GOOD = {"train_x": images(4, 2, 2), "train_y": [0, 1, 2, 0], "test_x": images(2, 2, 2), "test_y": [0, 1]}


def test_from_arrays_keeps_what_it_is_given():
    data = sources.from_arrays(**GOOD)
    assert_same(data, GOOD["train_x"], GOOD["train_y"], GOOD["test_x"], GOOD["test_y"])
    assert data.class_names == ("0", "1", "2")
    floats = sources.from_arrays(np.ones((4, 3)), [0, 1, 1, 0], np.zeros((2, 3)), [0, 1])
    assert floats.train.x.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_x": images(4, 2, 2)[..., 0]}, r"train_x has shape \(4, 2, 2\).*pass train_x\[..., None\]"),
        ({"train_x": images(4, 2, 2).astype(int)}, "train_x has type int64: must be uint8"),
        ({"train_x": np.full((4, 2, 2, 3), np.nan)}, "train_x has 48 values that are NaN"),
        ({"train_x": images(3, 2, 2)}, "train_x has 3 rows and train_y 4"),
        ({"test_x": images(2, 3, 3)}, "rows must agree in shape and type"),
        ({"test_x": images(2, 2, 2) / 255}, "rows must agree in shape and type"),
        ({"train_y": [0.0, 1.0, 2.0, 0.0]}, "train_y has shape .* float64: must be integers"),
        ({"train_y": [[0], [1], [2], [0]]}, r"train_y has shape \(4, 1\)"),
        ({"train_y": [0, 1, -1, 0]}, "train_y has values from -1 to 1: must be >= 0"),
        ({"class_names": ("a", "b")}, "train_y has the value 2, class_names has 2 names"),
        ({"train_y": [0, 0, 0, 0], "test_y": [0, 0]}, "1 class: classification needs at least 2"),
        ({"train_domains": [0, 0, 1, 1]}, "give both or neither"),
        ({"train_domains": [0, 0, 1], "test_domains": [0, 1]}, "train_domains has 3 entries for 4 rows"),
        ({"train_domains": [0, 0, 1, 1], "test_domains": [0, 2], "domain_names": ("p", "s")}, "test_domains has the value 2"),
        ({"test_clients": [0, 1]}, "test_clients without train_clients"),
        ({"train_clients": [0, 0, 1, -1]}, "train_clients has values from -1"),
    ],
)
def test_from_arrays_refuses_what_does_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        sources.from_arrays(**GOOD | change)
