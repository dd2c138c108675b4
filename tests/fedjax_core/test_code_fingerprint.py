"""Which files of the user's own stand behind a function, and behind an error."""

import importlib
import math
import sys
import warnings
from pathlib import Path

import optax
import pytest

from fedjax_core import code_fingerprint, registry
from fedjax_core.commands import main
from methods.fedavg import fedavg

CODE = {
    "mine.py": "import math\nimport own_helpers\nfrom own_package.deep import thing\n\ndef loss():\n    import own_late\n",
    "own_helpers.py": "from configs import fedavg\nfrom fedjax_core import option_types\nimport mine_too\nSIZE = 3\n",
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
    named = registry.import_member("loss", f"{folder}/mine.py:loss")
    assert names(folder, code_fingerprint.find_own_files([named])) == set(CODE) - {"own_never.py"}


def test_a_module_that_changed_after_its_import_is_refused_until_it_is_reloaded(folder):
    """The process still runs the old code."""
    named = [registry.import_member("loss", f"{folder}/mine.py:loss")]
    before = code_fingerprint.hash_own_files(named)
    helpers = folder.resolve() / "own_helpers.py"
    helpers.write_text(CODE["own_helpers.py"] + "# edited\n")
    with pytest.raises(ValueError, match=r"own_helpers\.py has changed since this process imported it; restart Python"):
        code_fingerprint.hash_own_files(named)
    helpers.write_text(CODE["own_helpers.py"])
    assert code_fingerprint.hash_own_files(named) == before
    helpers.write_text(CODE["own_helpers.py"] + "# edited\n")
    importlib.reload(sys.modules["own_helpers"])
    assert code_fingerprint.hash_own_files(named) != before
    (folder / "mine.py").write_text(CODE["mine.py"] + "# edited\n")
    assert code_fingerprint.hash_own_files([registry.import_member("loss", f"{folder}/mine.py:loss")]) != before


def test_a_module_of_a_package(folder):
    named = registry.import_member("loss", "own_package.deep:thing")
    assert names(folder, code_fingerprint.find_own_files([named])) == {name for name in CODE if name.startswith("own_package/")}


def test_what_is_installed_or_ships_with_us_is_not_the_users(folder):
    (folder / "alone.py").write_text(
        "from configs import fedavg\nfrom methods import fedavg as too\nimport jax, json\n\ndef f():\n    pass\n"
    )
    alone = registry.import_member("loss", f"{folder}/alone.py:f")
    built_in = [(optax.sgd, "optax"), (math.exp, "math"), (fedavg, "methods.fedavg")]
    assert code_fingerprint.find_own_files([*built_in, alone]) == [Path(folder / "alone.py").resolve()]


@pytest.mark.parametrize("made", ["make(2.0)", "Made()", "functools.partial(make, 2.0)", "functools.cache(make)"])
def test_the_file_that_is_named_counts_whatever_made_what_it_holds(folder, made):
    (folder / "own_never.py").write_text(
        "def make(x):\n    return lambda y: x * y\n\nclass Made:\n    def __call__(self):\n        pass\n"
    )
    (folder / "mine.py").write_text(f"import functools\nfrom own_never import Made, make\n\nloss = {made}\n")
    named = registry.import_member("loss", f"{folder}/mine.py:loss")
    assert names(folder, code_fingerprint.find_own_files([named])) == {"mine.py", "own_never.py"}
    assert {place.file.name for place in code_fingerprint.find_sources([named])} >= {"mine.py", "own_never.py"}


def test_modules_of_a_package_are_found_before_they_are_imported(folder):
    code = "def loss():\n    from own_package.below.inner import late\n    import own_package.nowhere\n    late()\n"
    (folder / "mine.py").write_text(code)
    named = registry.import_member("loss", f"{folder}/mine.py:loss")
    expected = {"mine.py", *(name for name in CODE if name.startswith("own_package/"))} - {"own_package/deep.py"}
    assert names(folder, code_fingerprint.find_own_files([named])) == expected
    assert not [name for name in sys.modules if name.startswith("own_package")]
    importlib.import_module("own_package.below.inner")
    assert names(folder, code_fingerprint.find_own_files([named])) == expected


def test_a_file_that_is_no_python_imports_nothing(folder):
    (folder / "own_never.py").write_text("print 'two'\n")
    (folder / "mine.py").write_text("if 0:\n    import own_never\n\ndef loss():\n    pass\n")
    assert names(folder, code_fingerprint.find_own_files([registry.import_member("loss", f"{folder}/mine.py:loss")])) == {
        "mine.py",
        "own_never.py",
    }


def test_what_changes_is_read_again(folder):
    (folder / "mine.py").write_text("import own_late\n\ndef loss():\n    pass\n")
    named = registry.import_member("loss", f"{folder}/mine.py:loss")
    assert names(folder, code_fingerprint.find_own_files([named])) == {"mine.py", "own_late.py"}
    (folder / "own_late.py").write_text("import own_never\n")
    assert names(folder, code_fingerprint.find_own_files([named])) == {"mine.py", "own_late.py", "own_never.py"}


def test_a_change_since_is_an_error(folder):
    before = code_fingerprint.hash_files([folder / "own_late.py"])
    code_fingerprint.check_unchanged(before)
    (folder / "own_late.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"own_late\.py has changed since this command began"):
        code_fingerprint.check_unchanged(before)
    (folder / "own_late.py").unlink()
    with pytest.raises(ValueError, match=r"own_late\.py has changed"):
        code_fingerprint.check_unchanged(before)


LOSS = """import sys
import jax.numpy as jnp

def loss(logits, y, mask):
    return inner(logits)

def inner(logits):
    {body}

def fine():
    return 1
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('first: this\\nsecond: that')", "error: first: this second: that (in inner of {file}, line 8)"),
        ("return jnp.ones(3) @ jnp.ones(4)", "(in inner of {file}, line 8)"),
        ("return {}['none']", "error: KeyError: 'none' (in inner of {file}, line 8); the traceback is in "),
        ("sys.exit(0)", "error: sys.exit(0) was called in inner of {file}, line 8"),
        ("raise BaseException('enough')", "error: BaseException: enough was raised in inner of {file}, line 8"),
    ],
    ids=["message of two lines", "library", "unforeseen", "exit", "no exception"],
)
def test_what_a_loss_raises_is_one_line_with_its_file_and_function(tmp_path, monkeypatch, capsys, body, said):
    file = tmp_path / "mine.py"
    file.write_text(LOSS.replace("{body}", body))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    flags = [f"--config.loss={file}:loss", f"--workdir={tmp_path / 'run'}", "--compilation_cache="]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # ml_collections loads files the old way
        assert main.run_command("fedjax_core.commands.run", ["fedavg:smoke", *flags]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said.replace("{file}", str(file)) in line


@pytest.mark.parametrize("code", ["import sys\nsys.exit(0)\n", "def get_table(variant):\n    raise SystemExit(0)\n"])
def test_a_table_that_exits_is_one_line_with_its_file(tmp_path, capsys, code):
    file = tmp_path / "mine.py"
    file.write_text(code)
    assert main.run_command("fedjax_core.commands.table", [f"--table={file}", f"--workdir={tmp_path / 'runs'}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: sys.exit(0) was called in ")
    assert f"{file}, line 2" in line


def test_code_that_exits_when_it_is_imported_can_be_mended(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("import sys\nsys.exit('not yet')\n")
    for _ in range(2):  # no half of it is kept
        with (
            pytest.raises(code_fingerprint.CodeExited, match=r"^sys\.exit\('not yet'\) was called in .*mine\.py, line 2$"),
            code_fingerprint.contain_exits(),
        ):
            registry.import_member("loss", f"{file}:loss")


def test_interruptions_errors_and_exits_of_ours_pass(capsys):
    for error in (KeyboardInterrupt(), ValueError("mine")):
        with pytest.raises(type(error)), code_fingerprint.contain_exits():
            raise error
    with pytest.raises(SystemExit) as ended:
        main.run_command("fedjax_core.commands.table", ["--help"])
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out
