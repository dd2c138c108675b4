"""Which files of the user's own stand behind a function."""

import importlib
import math
import sys
from pathlib import Path

import optax
import pytest

from fedjax_core import outside, own_code
from methods.fedavg import fedavg

CODE = {
    "mine.py": "import math\nimport own_helpers\nfrom own_package.deep import thing\n\ndef loss():\n    import own_late\n",
    "own_helpers.py": "from configs import fedavg\nfrom fedjax_core import values\nimport mine_too\nSIZE = 3\n",
    "mine_too.py": "import own_helpers\n",
    "own_late.py": "",
    "own_never.py": "",
    "own_package/__init__.py": "",
    "own_package/deep.py": "from . import beside\nfrom .below import inner\n\ndef thing():\n    pass\n",
    "own_package/beside.py": "",
    "own_package/below/__init__.py": "",
    "own_package/below/inner.py": "def late():\n    from ..beside import it\n    from .... import beyond\n",
}
NAMES = ("own_helpers", "mine_too", "own_late", "own_never", "own_package")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files above, on Python's path; their modules are gone afterwards."""
    for name, code in CODE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in NAMES]:
        del sys.modules[name]


def names(folder, found):
    return {str(file.relative_to(folder.resolve())) for file in found}


def test_a_file_and_what_it_imports_wherever_it_does(folder):
    loss, _ = outside.member("loss", f"{folder}/mine.py:loss")
    assert names(folder, own_code.files([loss])) == set(CODE) - {"own_never.py"}


def test_a_module_of_a_package(folder):
    thing, _ = outside.member("loss", "own_package.deep:thing")
    assert names(folder, own_code.files([thing])) == {name for name in CODE if name.startswith("own_package/")}


def test_what_is_installed_or_ships_with_us_is_not_the_users(folder):
    (folder / "alone.py").write_text(
        "from configs import fedavg\nfrom methods import fedavg as too\nimport jax, json\n\ndef f():\n    pass\n"
    )
    alone, _ = outside.member("loss", f"{folder}/alone.py:f")
    assert own_code.files([optax.sgd, math.exp, fedavg, alone]) == [Path(folder / "alone.py").resolve()]
