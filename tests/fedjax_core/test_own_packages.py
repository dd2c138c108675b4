"""`methods` and `configs` of ours where a user's folder has packages of these names, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedjax_core import experiment, own_packages

LIBRARY = """
import configs, methods
from fedjax_core import experiment, own_packages
config = experiment.load_config("fedavg:smoke")
assert config.method.name == "fedavg"
first, again = (experiment.method_builder("fedprox") for _ in range(2))
assert first is again and first.__module__ == "methods.fedprox"
assert "scaffold" in experiment.method_summaries() and "mine" not in experiment.method_summaries()
assert own_packages.import_bundled("configs.base").get_config("smoke").rounds
assert configs.mine and methods.mine and sys.modules["configs"] is configs
assert not hasattr(__import__("configs.base").base, "get_config"), "the user's own is left alone"
print("sound")
"""
COMMANDS = """
from fedjax_core import code_fingerprint, experiment, own_packages
from fedjax_core.commands import config_flags, run
own_packages.import_bundled_packages()
for name, wanted in (("fedavg:smoke", "fedavg"), ("configs/x.py", "fedprox"), ("elsewhere/y.py", "scaffold")):
    config = config_flags.parse_flags([name], "run", run._flags)[0].config
    assert config.method.name == wanted, name
mine = experiment.method_builder("methods.mine:mine")
assert mine() == 3
assert [file.name for file in code_fingerprint.find_own_files([(mine, "methods.mine")])] == ["mine.py", "part.py"]
print("sound")
"""


@pytest.fixture
def folder(tmp_path):
    files = {
        "configs/__init__.py": "mine = True",
        "configs/base.py": "of_another_project = True",
        "configs/helper.py": "NAME = 'fedprox'",
        "configs/x.py": """
            from configs import base, helper
            def get_config(variant=""):
                config = base.get_config("smoke")
                config.method = dict(name=helper.NAME)
                return config
            """,
        "elsewhere/y.py": """
            from configs import scaffold
            def get_config(variant=""):
                return scaffold.get_config("smoke")
            """,
        "methods/__init__.py": "mine = True",
        "methods/fedprox.py": "raise RuntimeError('of another project')",
        "methods/mine.py": "from methods import part\ndef mine():\n    return part.NUMBER",
        "methods/part.py": "NUMBER = 3",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        lines = text.strip("\n").splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        (tmp_path / name).write_text("\n".join(line[indent:] for line in lines))
    return tmp_path


def run_in(folder, code, *path):
    script = f"import sys\nsys.path[:0] = {[str(p) for p in path]}\n{code}"
    path_of_ours = {"PYTHONPATH": str(own_packages.HOME), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=folder, env=os.environ | path_of_ours, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines()[-1:] == ["sound"], done.stderr
    return done.stderr


def test_the_library_reads_its_own_beside_a_users_packages(folder):
    run_in(folder, LIBRARY, folder)


def test_commands_read_ours_and_a_users_files_their_neighbours(folder):
    said = run_in(folder, COMMANDS, folder)
    assert f"'configs.base' is the library's own, not {Path(folder).resolve() / 'configs' / 'base.py'}" in said


def test_a_config_that_there_is_not_is_named():
    assert experiment.load_config("fedavg").rounds > experiment.load_config("fedavg:smoke").rounds
    with pytest.raises(ValueError, match=r"unknown config 'fedav'.* Did you mean 'fedavg'"):
        experiment.load_config("fedav")


def test_what_is_found_as_ours_is_imported_once():
    import methods.fedavg

    assert own_packages.import_bundled("methods.fedavg") is methods.fedavg is sys.modules["methods.fedavg"]
