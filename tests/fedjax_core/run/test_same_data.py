"""A run goes on with the inputs and targets that it began with, or not at all; or it begins anew."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs import fedavg
from fedjax_core import experiment, registry
from fedjax_core.commands import run
from fedjax_core.commands.export import export
from fedjax_core.data import digest, federated_data, sources
from fedjax_core.storage.json_files import read_json, read_jsonl
from fedjax_core.storage.workdir import WRITTEN


def divided(sign=1, y_of=2):
    """Two classes apart in the first feature; class names and lists of rows are always the same."""
    x = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
    y = np.arange(90) % 2
    x[:, 0] += sign * 2 * (2 * y - 1)
    of = sources.from_arrays(x[:60], y[:60], x[60:], np.arange(30) % y_of, class_names=("no", "yes"))
    return federated_data.from_index(of, [*np.arange(60).reshape(4, 15)], [*np.arange(28).reshape(4, 7)])


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
    assert recorded == {"digest": digest.digest_data(divided()).digest, "sampled": {}}
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


def test_a_finished_run_that_lost_its_checkpoints_is_not_cut_short(begun, tmp_path):
    folder = Path(shutil.copytree(begun, tmp_path / "run"))
    say: list[str] = []
    execute = lambda rounds: experiment.execute(small(rounds), str(folder), progress=False, console=say.append, data=divided())
    execute(3)
    records = read_jsonl(folder / "metrics.jsonl")
    shutil.rmtree(folder / "checkpoints")
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(ValueError, match=r"rounds=2, but .* holds a run of 3 rounds already"):
        execute(2)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    execute(3)
    assert any("has no checkpoint any more: its 3 rounds are trained again" in line for line in say)
    scores = [record["test/global/accuracy"] for record in read_jsonl(folder / "metrics.jsonl")]
    assert scores == [record["test/global/accuracy"] for record in records]


@pytest.mark.filterwarnings("ignore")
def test_the_digest_tells_inputs_that_differ_by_a_constant():
    """Of inputs far from 0 a median is taken off, so that what is left may be the same."""

    def centred(by):
        x = np.random.default_rng(0).integers(0, 60, (90, 1)).astype(np.float64) + by
        of = sources.from_arrays(x[:60], np.arange(60) % 2, x[60:], np.arange(30) % 2)
        return federated_data.center_features(federated_data.federate(of, "iid", 3, seed=0))

    one, other = centred(1.7e9), centred(1.6e9)
    np.testing.assert_array_equal(one.train.x, other.train.x)
    assert digest.digest_data(one).digest != digest.digest_data(other).digest


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
    arrays: dict[str, Any] = {name: array.astype(np.float32) for name, array in arrays.items()}
    arrays |= {"train_labels": np.arange(60) % 2, "test_labels": np.arange(20) % 2}
    np.savez(tmp_path / "x.npz", **arrays)
    experiment.execute(config, str(folder), progress=False, console=lambda text: None)
    assert experiment.load(folder, data=experiment.dataset(config))[2].round == 1
    np.savez(tmp_path / "x.npz", **arrays | {"train_features": -arrays["train_features"]})
    with pytest.raises(ValueError, match="holds a run on other data"):
        export(folder, tmp_path / "model.safetensors")


def test_code_that_has_changed_is_another_run(tmp_path):
    mine, config = tmp_path / "own_loss.py", small()
    mean = "jnp.sum(mask * logits[:, 0] ** 2) / jnp.maximum(jnp.sum(mask), 1)"
    text = f"import jax.numpy as jnp\n\ndef loss(logits, y, mask):\n    return {{}} * {mean}\n"
    mine.write_text(text.format(1))
    config.loss = f"{mine}:loss"
    ran(tmp_path / "run", config, data=divided())
    (recorded,) = read_json(tmp_path / "run" / "run.json")["code"].items()
    assert recorded[0] == "own_loss.py"
    config.rounds = 2
    mine.write_text(text.format(2))
    with pytest.raises(ValueError, match=r"holds a run with other code \(code.*own_loss.py: .* take another directory"):
        ran(tmp_path / "run", config, data=divided())
    mine.write_text(text.format(1))
    assert ran(tmp_path / "run", config, data=divided())[0].state.round == 2
    ran(tmp_path / "plain", small(), data=divided())
    assert "code" not in read_json(tmp_path / "plain" / "run.json")


@pytest.mark.parametrize("is_in_name", [False, True])
def test_a_file_of_the_method_that_has_changed_is_another_run(is_in_name, tmp_path):
    file, config = tmp_path / "links.csv", small()
    ring = np.eye(4, k=1) + np.eye(4, k=-1) + np.eye(4, k=3) + np.eye(4, k=-3)
    np.savetxt(file, ring, delimiter=",")
    options = {"topology": "graph", "matrix": str(file)}
    in_name, beside = (options, {}) if is_in_name else ({}, options)
    experiment.switch_method(config, {"name": registry.spell("dfedavg", in_name), **beside})
    ran(tmp_path / "run", config, data=divided())
    assert read_json(tmp_path / "run" / "run.json")["method_files"].keys() == {"method.matrix"}
    config.rounds = 2
    np.savetxt(file, 1 - np.eye(4), delimiter=",")
    with pytest.raises(ValueError, match=r"holds a run with other method_files \(method_files.method.matrix: .* another directory"):
        ran(tmp_path / "run", config, data=divided())
    np.savetxt(file, ring, delimiter=",")
    assert ran(tmp_path / "run", config, data=divided())[0].state.round == 2


def ran(folder, config, **given):
    said: list[str] = []
    found = experiment.execute(config, str(folder), progress=False, console=said.append, **given)
    return found, said, [line for line in said if "begun anew" in line or "resuming" in line]


def test_fresh_begins_a_directory_anew(begun, tmp_path):
    """Whatever it holds: another config, other data, more rounds. Nothing of it is left, nor is anything lost that is no run's."""
    folder = Path(shutil.copytree(begun, tmp_path / "run"))
    for name in (*WRITTEN, "mine.txt"):
        if not (folder / name).exists():
            (folder / name).write_text("{}")
    config = small(2)
    config.seed = 7
    with pytest.raises(ValueError, match=r"another config \(seed: 0 in the directory, 7 now\); .* begin it anew \(--fresh\)"):
        ran(folder, config, data=divided(sign=-1))
    _, _, said = ran(folder, config, data=divided(sign=-1), fresh=True)
    assert said == [f"{folder} is begun anew: what it held of another run is deleted"]
    alone, _, said = ran(tmp_path / "alone", config, data=divided(sign=-1), fresh=True)
    assert not said
    assert {path.name for path in folder.iterdir()} - {"mine.txt"} == {path.name for path in (tmp_path / "alone").iterdir()}
    for key, series in alone.history.items():
        if not key.startswith(("seconds", "compile")):
            found = [record[key] for record in read_jsonl(folder / "metrics.jsonl") if key in record]
            np.testing.assert_array_equal(series.values, found, err_msg=key)
    assert read_json(folder / "config.json") == read_json(tmp_path / "alone" / "config.json")
    _, _, said = ran(folder, config, data=divided(sign=-1))
    assert said == [f"resuming {folder} after round 2"]


def test_what_a_run_writes_is_known(begun):
    """`--fresh` deletes nothing else."""
    assert {path.name for path in begun.iterdir()} <= {".lock", "config.json", "environment.json", *WRITTEN}


@pytest.mark.parametrize("other", ["config", "data", "setting", "damaged"])
def test_a_directory_without_a_checkpoint_is_free(begun, tmp_path, other):
    """As one is whose run was killed in its first seconds."""
    folder = Path(shutil.copytree(begun, tmp_path / "run"))
    shutil.rmtree(folder / "checkpoints")
    config = small(1)
    config.seed = int(other == "config")
    if other == "setting":
        (folder / "run.json").write_text(json.dumps(read_json(folder / "run.json") | {"convolution": {"form": "other"}}))
    if other == "damaged":
        (folder / "config.json").write_text("{")
    data = divided(sign=-1 if other == "data" else 1)
    with pytest.raises(ValueError, match=r"other|is not JSON"):  # the numbers of a run that is over are not deleted unasked
        ran(folder, config, data=data)
    (folder / "summary.json").unlink()
    found, _, said = ran(folder, config, data=data)
    assert said == [f"{folder} is begun anew: what it held of another run is deleted"]
    assert int(found.state.round) == 1
    assert read_json(folder / "config.json")["seed"] == config.seed
    assert int(experiment.load(folder, data=data)[2].round) == 1


def test_without_a_checkpoint_the_same_run_keeps_what_it_chose(begun, tmp_path):
    folder = Path(shutil.copytree(begun, tmp_path / "run"))
    shutil.rmtree(folder / "checkpoints")
    (folder / "summary.json").unlink()
    before = read_json(folder / "run.json") | {"placement": {"data": "device", "hold": "device"}, "mark": {"of": "the first"}}
    (folder / "run.json").write_text(json.dumps(before))
    assert not ran(folder, small(1), data=divided())[2]
    assert read_json(folder / "run.json")["mark"] == {"of": "the first"}


def test_the_command_takes_fresh(begun, tmp_path, monkeypatch):
    taken: list[bool] = []
    monkeypatch.setattr(experiment, "execute", lambda config, workdir, **given: taken.append(given["fresh"]))
    monkeypatch.setattr(experiment, "cache_compiled_programs", lambda directory: None)
    warnings.filterwarnings("ignore", "the load_module", DeprecationWarning)  # of ml_collections
    for flag in ([], ["--fresh"]):
        assert run.main(["fedavg:smoke", f"--workdir={tmp_path}", *flag]) == 0
    assert taken == [False, True]


def test_a_tilde_is_the_users_home(begun, tmp_path, monkeypatch):
    """A shell does not expand it behind `--workdir=`."""
    shutil.copytree(begun, tmp_path / "run")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert int(experiment.load("~/run", data=divided())[2].round) == 1
    said: list[str] = []
    (found,) = experiment.execute_all([experiment.Run(small(1), "~/run", said.append)], False, data=divided())
    assert not isinstance(found, BaseException)
    assert [line for line in said if "resuming" in line] == [f"resuming {tmp_path}/run after round 1"]
    assert not (tmp_path / "~").exists()
    config = small()
    config.weights = "~/none.safetensors"
    assert [network.file for network in experiment.resolve(config).networks] == [f"{tmp_path}/none.safetensors"]
