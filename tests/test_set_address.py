"""One variable sets the repository's address in a copy of the files that name it."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = ("pyproject.toml", "CITATION.cff", "README.md")


def set_address(folder, url):
    """Runs the command."""
    command = [sys.executable, str(ROOT / ".ci" / "set_address.py"), str(folder)]
    return subprocess.run(command, env=os.environ | {"REPOSITORY_URL": url}, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path):
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "colab", tmp_path / "colab")
    return tmp_path


def read_texts(folder):
    return {
        str(file.relative_to(folder)): file.read_text()
        for file in sorted(folder.rglob("*"))
        if file.suffix != ".pyc" and file.is_file()
    }


def test_the_address_is_set_everywhere_and_replaced(copy):
    before = read_texts(copy)
    first = "https://github.com/owner/first"
    assert set_address(copy, first).returncode == 0
    once = read_texts(copy)
    assert tomllib.loads(once["pyproject.toml"])["project"]["urls"]["Issues"] == f"{first}/issues"
    assert f"\nrepository-code: {first}\n" in once["CITATION.cff"]
    assert once["README.md"].splitlines()[2].startswith(f"[![ci]({first}/actions/")
    notebooks = [name for name in once if name.endswith(".ipynb")]
    assert len(notebooks) >= 10
    for name in notebooks:
        cells = json.loads(once[name])["cells"]
        assert f"github/owner/first/blob/main/{name})" in "".join(cells[0]["source"])
        assert f'SOURCE = "git+{first}"' in "".join(cells[1]["source"])
    for name in FILES:  # the rest stays
        lines = set(once[name].splitlines())
        assert all(line in lines for line in before[name].splitlines())
    assert set_address(copy, "https://github.com/owner/second").returncode == 0
    assert read_texts(copy) == {name: text.replace("owner/first", "owner/second") for name, text in once.items()}


def test_an_address_that_is_none_is_refused(copy):
    before = read_texts(copy)
    done = set_address(copy, "example.org")
    assert done.returncode == 1
    assert "REPOSITORY_URL='example.org' must be https://github.com/OWNER/NAME" in done.stderr
    assert read_texts(copy) == before
