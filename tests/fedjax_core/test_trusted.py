"""A directory from somebody else imports no code, unless it is trusted."""

import contextlib
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from configs import fedavg
from fedjax_core import experiment, registry
from fedjax_core.commands import analyze, export
from fedjax_core.storage import signature as origin
from fedjax_core.storage.json_files import read_json

EVIL = """
from pathlib import Path
Path({mark!r}).write_text("imported")
from fedjax_core.training.losses import cross_entropy
def loss(logits, y, mask):
    return cross_entropy(logits, y, mask)
def member(*arguments, **options):
    raise RuntimeError("called")
"""
FIELDS: dict[str, Any] = {  # each as it names code
    "method.name": "{}",
    "models": ["{}"],
    "data.source": "{}",
    "data.partition": "{}",
    "optimizer.name": "{}",
    "augment": "flip|{}",
    "loss": "{}",
    "evaluation.scores": ["{}"],
    "aggregation.rule": "{}",
    "adversary.attack": "{}",
    "compression.uplink": "{}",
    "public": "{}",
}


def small():
    config = fedavg.get_config("smoke")
    config.rounds, config.models = 1, ("mlp(widths=(2,))",)
    return config


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run whose config names no code, and is not signed."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    experiment.execute(small(), str(folder), progress=False, console=lambda text: None)
    assert "begun_here" not in read_json(folder / "run.json")
    return folder


def filled(form, text):
    return [one.format(text) for one in form] if isinstance(form, list) else form.format(text)


def written(folder, fields):
    config = json.loads((folder / "config.json").read_text())
    for field, value in fields.items():
        *above, last = field.split(".")
        place = config
        for name in above:
            place[name] = place[name] if isinstance(place.get(name), dict) else {}
            place = place[name]
        place[last] = value
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_a_directory_from_elsewhere_imports(begun, tmp_path, field):
    folder, mark = Path(shutil.copytree(begun, tmp_path / "run")), tmp_path / "mark"
    (tmp_path / "evil.py").write_text(EVIL.format(mark=str(mark)))
    more = {"adversary.fraction": 0.1} if field == "adversary.attack" else {}
    written(folder, {field: filled(FIELDS[field], f"{tmp_path}/evil.py:member"), **more})
    said = rf"evil.py:member' is code from outside: {folder}/config.json names it, and nothing says that you began this run here"
    with pytest.raises((ValueError, TypeError), match=said):
        experiment.load(folder)
    assert not mark.exists()
    with contextlib.suppress(Exception):  # it is no such code, which most fields need
        experiment.load(folder, trust=True)
    assert mark.exists()


def test_a_run_with_own_code_is_read_where_it_was_begun_and_elsewhere_with_trust(tmp_path, monkeypatch, capsys):
    folder, mark, config = tmp_path / "run", tmp_path / "mark", small()
    (tmp_path / "own.py").write_text(EVIL.format(mark=str(mark)))
    config.loss = f"{tmp_path}/own.py:loss"
    experiment.execute(config, str(folder), progress=False, console=lambda text: None)
    key = origin.key_path()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    assert export.export(moved, tmp_path / "model.safetensors")["method"] == "fedavg"

    def is_read(run, *flags):
        (tmp_path / "model.safetensors").unlink(missing_ok=True)
        for name in [name for name in registry.sys.modules if name.startswith("fedjax_core_file_")]:
            del registry.sys.modules[name]
        mark.unlink()
        commands = [
            (export, [f"--out={tmp_path / 'model.safetensors'}"]),
            (analyze, ["--what=clients", f"--out={tmp_path / 'out'}"]),
        ]
        status = {command.main([str(run), *arguments, *flags]) for command, arguments in commands}
        assert mark.exists() == (status == {0})
        mark.touch()
        return status == {0}

    assert is_read(moved)
    written(moved, {"seed": 1})  # somebody has changed it
    assert not is_read(moved)
    assert "--trust" in capsys.readouterr().err
    assert is_read(moved, "--trust")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    assert not is_read(folder)
    assert not origin.key_path().exists()  # to read makes none
    config.rounds = 2
    experiment.execute(config, str(folder), progress=False, console=lambda text: None)  # whoever runs it vouches for it
    assert is_read(folder)


def test_a_user_without_a_home_signs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert origin.sign_config({"seed": 0}) is None
    assert not origin.is_signed_here({"seed": 0}, "")
    assert not list(tmp_path.iterdir())


def test_without_a_home_a_run_is_not_signed(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert origin.sign_config({"seed": 0}) is None
    assert not origin.is_signed_here({"seed": 0}, "")


def test_a_signature_is_of_what_is_signed_under_one_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    config = {"seed": 0, "models": ("a", "b"), "rate": float("nan")}
    signature = origin.sign_config(config)
    assert signature == origin.sign_config(config)
    assert origin.is_signed_here({**config, "models": ["a", "b"]}, signature or "")
    assert not origin.is_signed_here({**config, "seed": 1}, signature or "")
    origin.key_path().unlink()
    assert origin.sign_config(config) != signature
