import pytest

from fedjax_core.data import sources
from fedjax_core.data.sources import cifar
from tests.fedjax_core.data.sources.written import assert_same, cifar_files, write_archive, write_folder

SMALL10 = cifar.CIFAR10._replace(parts=dict.fromkeys(cifar.CIFAR10.parts, 4))
SMALL100 = cifar.CIFAR100._replace(parts={"train.bin": 20, "test.bin": 6})


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("spec", "labels", "column"), [(SMALL10, "fine", 0), (SMALL100, "fine", 1), (SMALL100, "coarse", 0)])
def test_cifar_round_trip(tmp_path, spec, labels, column, packed):
    files, (train_x, train_y), (test_x, test_y) = cifar_files(spec)
    if packed:
        spec = write_archive(tmp_path, spec, files)
    else:
        write_folder(tmp_path, spec, files)
    data = cifar.read_cifar("cifar", spec, tmp_path, labels)
    assert_same(data, train_x, train_y[:, column], test_x, test_y[:, column])
    assert data.class_names == tuple(f"class_{i}" for i in range(spec.labels[labels][1]))


def test_cifar_specs_are_the_published_ones():
    for spec, train in ((cifar.CIFAR10, 50_000), (cifar.CIFAR100, 50_000)):
        *parts, test = spec.parts.values()
        assert (sum(parts), test) == (train, 10_000)
    assert cifar.CIFAR10.md5 == "c32a1d4ab5d03f1284b67883e8d87530"
    assert cifar.CIFAR100.md5 == "03b5dce01913d631647c71ecec9e9cb8"


def test_cifar_archive_is_checked_by_md5(tmp_path):
    files, *_ = cifar_files(SMALL10)
    spec = write_archive(tmp_path, SMALL10, files)
    archive = tmp_path / spec.archive
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz: \d+ bytes with md5 .* published is c32a1d4a"):
        sources.load("cifar10", tmp_path)
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(ValueError, match="truncated, damaged or another file"):
        cifar.read_cifar("cifar10", spec, tmp_path, "fine")


def test_cifar_files_are_checked_by_exact_size(tmp_path):
    files, *_ = cifar_files(SMALL10)
    write_folder(tmp_path, SMALL10, files)
    with pytest.raises(ValueError, match=r"data_batch_1.bin has 12292 bytes, 10000 records of 3073 are 30730000"):
        sources.load("cifar10", tmp_path)
    file = tmp_path / SMALL10.folder / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_3.bin has 12291 bytes, 4 records of 3073 are 12292"):
        cifar.read_cifar("cifar10", SMALL10, tmp_path, "fine")
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3.bin"):
        cifar.read_cifar("cifar10", SMALL10, tmp_path, "fine")


def test_cifar_labels_beyond_the_names_are_refused(tmp_path):
    files, *_ = cifar_files(SMALL10)
    files["test_batch.bin"] = bytes([10]) + files["test_batch.bin"][1:]
    write_folder(tmp_path, SMALL10, files)
    with pytest.raises(ValueError, match="test_y has the value 10, class_names has 10 names"):
        cifar.read_cifar("cifar10", SMALL10, tmp_path, "fine")
