"""Clients' files of PFLlib are read as they were written, and no code in them is run."""

import pickle

import numpy as np
import pytest

from fedjax_core.data import federated_data, sources


def write(folder, clients=3, **changed):
    """Writes the clients' files as PFLlib does: a compressed dictionary in an array of one object."""
    rng = np.random.default_rng(0)
    for part, examples in (("train", 4), ("test", 2)):
        (folder / part).mkdir(parents=True)
        for i in range(clients):
            n = examples + i
            data = {"x": rng.normal(size=(n, 2, 5, 6)).astype(np.float32), "y": np.arange(n, dtype=np.int64) % 2} | changed
            with open(folder / part / f"{i}.npz", "wb") as file:
                np.savez_compressed(file, data=data)


def test_each_client_has_its_examples(tmp_path):
    write(tmp_path / "MNIST")
    data = sources.load("pfllib:MNIST", tmp_path)
    assert (data.name, data.train.x.shape, data.test.x.shape) == ("MNIST", (15, 5, 6, 2), (9, 5, 6, 2))
    theirs = np.load(tmp_path / "MNIST" / "train" / "2.npz", allow_pickle=True)["data"].item()
    np.testing.assert_array_equal(data.train.x[9:], theirs["x"].transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(data.train.y[9:], theirs["y"])
    federated = federated_data.federate(data, "natural", seed=0)
    assert [len(rows) for rows in federated.train_index] == [4, 5, 6]
    assert [len(rows) for rows in federated.test_index] == [2, 3, 4]


def test_features_and_lists_of_labels(tmp_path):
    write(tmp_path / "har", x=np.ones((3, 7)), y=[0, 1, 1])
    data = sources.load("pfllib", tmp_path, path="har")
    assert (data.train.x.shape, data.train.y.tolist()) == ((9, 7), [0, 1, 1] * 3)


class Harmful:
    def __reduce__(self):
        return print, ("this must not be printed",)


def test_code_in_a_file_is_refused_and_not_run(tmp_path, capsys):
    write(tmp_path / "bad", x=Harmful())
    with pytest.raises(ValueError, match=r"0\.npz: .* its pickle names builtins\.print, which is not part of an array"):
        sources.load("pfllib:bad", tmp_path)
    assert capsys.readouterr().out == ""
    assert pickle.loads(pickle.dumps(Harmful())) is None  # an ordinary unpickler runs it
    assert capsys.readouterr().out == "this must not be printed\n"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"x": [([1, 2], 2), ([3, 4], 2)]}, r"x must be an array of images .* texts are not read"),
        ({"x": np.ones((4, 3, 2))}, "x must be an array of images"),
    ],
)
def test_other_contents_are_refused(tmp_path, changed, says):
    write(tmp_path / "other", **changed)
    with pytest.raises(ValueError, match=says):
        sources.load("pfllib:other", tmp_path)


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"looked for .*nowhere.*generate_"):
        sources.load("pfllib:nowhere", tmp_path)
    write(tmp_path / "gap")
    (tmp_path / "gap" / "test" / "1.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"test/1\.npz: is missing"):
        sources.load("pfllib:gap", tmp_path)
    (tmp_path / "gap" / "test" / "1.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"test/1\.npz: cannot be read as PFLlib's dictionary"):
        sources.load("pfllib:gap", tmp_path)
    (tmp_path / "gap" / "train" / "1.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"has the clients \[0, 2\]"):
        sources.load("pfllib:gap", tmp_path)


def test_clients_of_an_earlier_partition_are_refused(tmp_path):
    write(tmp_path / "MNIST", clients=4)
    config = tmp_path / "MNIST" / "config.json"
    config.write_text('{"num_clients": 4}')
    sources.load("pfllib:MNIST", tmp_path)
    config.write_text('{"num_clients": 2}')
    with pytest.raises(ValueError, match=r"train/ has 4 clients, config.json 2"):
        sources.load("pfllib:MNIST", tmp_path)
    config.unlink()
    (tmp_path / "MNIST" / "train" / "3.npz").unlink()
    with pytest.raises(ValueError, match=r"train/ has 3 clients, test/ 4"):
        sources.load("pfllib:MNIST", tmp_path)
