"""A run goes on with the inputs and targets that it began with, or not at all."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from configs import fedavg
from fedjax_core import experiment
from fedjax_core.commands.export import export
from fedjax_core.data import contents, federated, sources
from fedjax_core.storage.json_files import read_json


def divided(sign=1, y_of=2):
    """Two classes apart in the first feature; class names and lists of rows are always the same."""
    x = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
    y = np.arange(90) % 2
    x[:, 0] += sign * 2 * (2 * y - 1)
    of = sources.from_arrays(x[:60], y[:60], x[60:], np.arange(30) % y_of, class_names=("no", "yes"))
    return federated.from_index(of, np.arange(60).reshape(4, 15), np.arange(28).reshape(4, 7))


def small(rounds=1):
    config = fedavg.get_config("smoke")
    config.rounds, config.models, config.evaluation.every = rounds, ("mlp(widths=(2,))",), 1
    return config


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun") / "run"
    experiment.execute(small(), str(folder), progress=False, console=lambda text: None, data=divided())
    return folder


def test_a_run_is_not_resumed_or_read_on_other_inputs_or_targets(begun):
    recorded = read_json(begun / "run.json")["data"]
    assert recorded == {"digest": contents.digest_data(divided()).digest, "sampled": {}}
    before = {path: path.read_bytes() for path in begun.iterdir() if path.is_file()}
    others = {"inputs": divided(sign=-1), "targets": divided(y_of=1)}
    for other in others.values():
        assert other.class_names == divided().class_names
    assert others["inputs"].partition_hash == divided().partition_hash
    for data in others.values():
        with pytest.raises(ValueError, match="holds a run on other data: the digest of its inputs or targets is"):
            experiment.execute(small(2), str(begun), progress=False, console=lambda text: None, data=data)
        with pytest.raises(ValueError, match="holds a run on other data"):
            experiment.load(begun, data=data)
    assert {path: path.read_bytes() for path in begun.iterdir() if path.is_file()} == before
    assert int(experiment.load(begun, data=divided())[2].round) == 1


def test_a_directory_without_a_digest_goes_on_and_has_one_then(begun, tmp_path):
    """As earlier versions left it."""
    folder = Path(shutil.copytree(begun, tmp_path / "run"))
    said = read_json(folder / "run.json")
    (folder / "run.json").write_text(json.dumps({name: value for name, value in said.items() if name != "data"}))
    assert int(experiment.load(folder, data=divided(sign=-1))[2].round) == 1
    experiment.execute(small(2), str(folder), progress=False, console=lambda text: None, data=divided())
    assert read_json(folder / "run.json")["data"] == said["data"]
    with pytest.raises(ValueError, match="other data"):
        experiment.execute(small(3), str(folder), progress=False, console=lambda text: None, data=divided(sign=-1))


def test_a_file_made_anew_under_its_name_is_other_data(tmp_path):
    """Neither the config nor a list of rows has changed; nor are they when what a config names is given in Python."""
    config, folder = small(), tmp_path / "run"
    config.data.source, config.data.clients, config.data.partition = f"npz:{tmp_path / 'x.npz'}", 4, "iid"
    rng = np.random.default_rng(0)
    arrays = {"train_features": rng.normal(size=(60, 4)), "test_features": rng.normal(size=(20, 4))}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    arrays |= {"train_labels": np.arange(60) % 2, "test_labels": np.arange(20) % 2}
    np.savez(tmp_path / "x.npz", **arrays)
    experiment.execute(config, str(folder), progress=False, console=lambda text: None)
    assert experiment.load(folder, data=experiment.dataset(config))[2].round == 1
    np.savez(tmp_path / "x.npz", **arrays | {"train_features": -arrays["train_features"]})
    with pytest.raises(ValueError, match="holds a run on other data"):
        export(folder, tmp_path / "model.safetensors")
