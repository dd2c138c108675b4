"""Folders that `fedjax-core new` writes work at once, and names that cannot work are refused."""

import importlib
import subprocess
import sys
import tomllib

import jax
import pytest

from fedjax_core import experiment, registry
from fedjax_core.commands import new, tables

WITH_CONFIG = ("method", "model", "data")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes a project of a kind and enters its folder; returns it."""

    def write(kind: str):
        folder = tmp_path / f"my_{kind}"
        assert new.main([kind, f"my_{kind}", f"--folder={folder}"]) == 0
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        for name in ("config", f"my_{kind}", f"test_my_{kind}"):
            sys.modules.pop(name, None)
        return folder

    yield write
    for name in ("config", *(f"{prefix}my_{kind}" for kind in new.KINDS for prefix in ("", "test_"))):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("kind", list(new.KINDS))
def test_a_folder_is_whole_and_clean(project, kind):
    folder = project(kind)
    names = {path.name for path in folder.iterdir()}
    assert names == {"pyproject.toml", f"my_{kind}.py", f"test_my_{kind}.py", "README.md"} | (
        {"config.py"} if kind in WITH_CONFIG else set()
    )
    description = tomllib.loads((folder / "pyproject.toml").read_text())
    group = new.KINDS[kind]
    announced = {registry.ENTRY_POINT_GROUPS[group]: {f"my_{kind}": f"my_{kind}:my_{kind}"}} if group else None
    assert description["project"].get("entry-points") == announced
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select=E,F,W,B", "--line-length=132", "."],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("kind", [kind for kind in new.KINDS if kind != "method"])
def test_its_own_tests_pass(project, kind):
    project(kind)
    tests = importlib.import_module(f"test_my_{kind}")
    names = [name for name in vars(tests) if name.startswith("test_")]
    assert names
    for name in names:
        getattr(tests, name)()


def test_a_method_of_a_folder_runs_and_its_limit_case_holds(project, monkeypatch):
    project("method")
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)  # the devices of these tests are there already
    config = importlib.import_module("config").get_config("smoke")
    config.method.weights = "uniform"  # as the rows of a table may set
    simulator = experiment.build(config)
    assert [group.task.classes for group in simulator.spec.groups] == [10]
    importlib.import_module("test_my_method").test_without_its_term_it_is_fedavg()


def test_a_table_of_a_folder_is_one_of_the_command(project):
    folder = project("table")
    definition = tables.read_definition(str(folder / "my_table.py"), "smoke")
    assert [row.label for row in definition.rows] == ["FedAvg", "Ditto"]


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("method", "my-method", "'my-method' must be one of a Python module"),
        ("model", "class", "'class' must be one of a Python module"),
        ("data", "json", "'json' is that of another module"),
        ("method", "optax", "'optax' is that of another module"),
        ("table", "config", "'config' is that of another module"),
        ("method", "scaffold", "there is a method 'scaffold' already"),
        ("data", "digits", "there is a built-in data source 'digits' already, which a config would get"),
        ("model", "cnn", "there is a built-in model 'cnn' already"),
    ],
)
def test_names_that_cannot_work_are_refused(tmp_path, monkeypatch, capsys, kind, name, says):
    monkeypatch.chdir(tmp_path)
    assert new.main([kind, name]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_left_alone(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert new.main(["model", "my_model", f"--folder={tmp_path}"]) == 2
    assert "exists already, and is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_tilde_is_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert new.main(["method", "my_method", "--folder=~/mine"]) == 0
    assert (tmp_path / "mine" / "my_method.py").exists()
