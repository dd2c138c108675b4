"""Commands and notebooks of the documentation run from an installed wheel."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest

from fedjax_core.storage.json_files import read_json
from tests import quick

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


NOTEBOOKS = sorted((ROOT / "colab").glob("*.ipynb"))
PACKAGED = ("pyproject.toml", "README.md", "LICENSE", "fedjax_core", "methods", "configs")
SHORTER = {  # by notebook: what takes long, and what the test runs instead
    "privacy_audit": {"iterations=300": "iterations=3", "= 20, 200, 4, 1.0": "= 2, 40, 4, 1.0"},
    "private_and_robust": {'"rounds": 50, "evaluation.every": 10': '"rounds": 4, "evaluation.every": 2'},
    "time": {"make_config(300, 10,": "make_config(30, 10,"},
}
ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:tmp|home|root|usr|work|Users|var|mnt)/")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Returns an environment with the wheel and the packages of the running environment."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"  # a build writes into its source
    source.mkdir()
    for place in (ROOT / name for name in PACKAGED):
        if place.is_dir():
            shutil.copytree(place, source / place.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, source], check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([*pip, f"--python={python}", "install", "--no-deps", "--no-index", wheel], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    others = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    (site / "running.pth").write_text("\n".join(others))  # only a path: editable installs there have no effect
    return folder / "venv"


def alone(**variables: str) -> dict[str, str]:
    """Returns environment variables without a path to this checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return kept | {"JAX_PLATFORMS": "cpu"} | variables


def test_the_commands_run_from_a_wheel_beside_other_packages_of_their_names(installed, tmp_path):
    """The folder has only a config and the user's own packages `methods` and `configs`."""

    def command(*arguments: str, status: int = 0) -> str:
        done = subprocess.run(arguments, cwd=tmp_path, env=alone(), capture_output=True, text=True, timeout=500)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    for name in ("methods", "configs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the package of the user was imported')")
    (tmp_path / "methods" / "mine.py").write_text("from configs import fedavg\nget_config = fedavg.get_config\n")
    fedjax_core, cache = str(installed / "bin" / "fedjax-core"), f"--compilation_cache={tmp_path / 'programs'}"
    said = command(fedjax_core, "run", "fedavg:smoke", "--workdir=runs/fedavg", "--config.rounds=2", cache)
    assert "test/global/accuracy" in said
    assert read_json(tmp_path / "runs" / "fedavg" / "environment.json")["commit"] == {"version": PROJECT["project"]["version"]}
    mine = command(fedjax_core, "run", "methods/mine.py:smoke", "--workdir=runs/mine", "--config.rounds=0", status=1)
    assert "rounds=0" in mine
    listed = command(str(installed / "bin" / "python"), "-m", "fedjax_core", "list", "methods")
    assert {line.split()[0] for line in listed.splitlines()} >= {"fedavg", "scaffold", "fedskc"}
    command(fedjax_core, "export", "runs/fedavg", "--out=model.safetensors")
    np.save(tmp_path / "images.npy", np.zeros((3, 8, 8, 1), np.uint8))
    assert "predictions.csv: 3 predictions" in command(fedjax_core, "predict", "model.safetensors", "images.npy")
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 4


def test_the_wheel_has_what_it_should(installed):
    (site,) = (installed / "lib").glob("python*/site-packages")
    assert (site / "fedjax_core" / "py.typed").is_file()
    assert {entry.name for entry in site.iterdir() if entry.is_dir() and "." not in entry.name and entry.name != "__pycache__"} == {
        "fedjax_core",
        "methods",
        "configs",
    }


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore")  # Jupyter's own
def test_notebook_runs_where_the_wheel_is(notebook, installed, data_folder, monkeypatch, tmp_path):
    """In an empty folder; text data and the encoder are used if they exist."""
    if notebook.stem == "fedoa":
        monkeypatch.setenv("FEDJAX_DATA", str(data_folder))
    kernel = tmp_path / "jupyter" / "kernels" / "wheel"
    kernel.mkdir(parents=True)
    argv = [str(installed / "bin" / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "wheel", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name, value in ({"XLA_FLAGS": quick.flags({})} | quick.cache_variables()).items():  # most of a notebook's time is compiling
        monkeypatch.setenv(name, value)
    read = nbformat.read(notebook, as_version=4)
    for written, shorter in SHORTER.get(notebook.stem, {}).items():
        assert sum(cell.source.count(written) for cell in read.cells) == 1
        for cell in read.cells:
            cell.source = cell.source.replace(written, shorter)
    place = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(read, timeout=900, startup_timeout=300, kernel_name="wheel", resources=place)
    client.execute()
    shown = [output for cell in read.cells for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})]
    assert len(shown) >= 2


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_starts_where_it_is_opened_and_shows_small_outputs(notebook):
    read = nbformat.read(notebook, as_version=4)
    assert "colab-badge.svg" in read.cells[0].source
    code = [cell for cell in read.cells if cell.cell_type == "code"]
    assert code[0].source.startswith("SOURCE = ")
    assert "%pip install -q $SOURCE" in code[0].source
    outputs = [output for cell in code for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2, "python colab/save.py runs and saves it"
    assert not [output for output in outputs if output.get("name") == "stderr" or output.output_type == "error"]
    texts = [
        output.get("text", "") + json.dumps({k: v for k, v in output.get("data", {}).items() if "image" not in k})
        for output in outputs
    ]
    plain = [output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs]
    assert max(len(line) for text in plain for line in text.splitlines()) <= 140  # columns, which a page of Jupyter shows
    assert not [text for text in texts if ABSOLUTE.search(text)], "places of one machine"
    assert notebook.stat().st_size < 300_000
