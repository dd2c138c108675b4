"""The last handler: what a command does not know ends in one line, and its traceback in a file."""

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from fedjax_core.commands import main

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
UNFORESEEN = [MemoryError(), KeyError("a"), ZeroDivisionError("by\nzero"), RuntimeError("x" * 10_000)]


@pytest.fixture
def command(monkeypatch):
    """(what the command does, arguments) -> the status."""

    def run(act, *arguments: str) -> int:
        module = types.ModuleType("made_up_command")
        module.main = act  # pyright: ignore[reportAttributeAccessIssue]
        monkeypatch.setitem(sys.modules, "made_up_command", module)
        return main.run_command("made_up_command", arguments)

    return run


def raises(error: BaseException):
    def act(arguments):
        raise error

    return act


@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda error: type(error).__name__)
def test_whatever_gets_through_is_one_line_and_a_file(command, tmp_path, capsys, error):
    (tmp_path / "config.json").write_text("{}")
    assert command(raises(error), f"--workdir={tmp_path}") == 1
    said = capsys.readouterr().err
    assert re.fullmatch(rf"error: {type(error).__name__}.*; the traceback is in {tmp_path}/error.txt\n", said)
    assert len(said) < 600
    text = (tmp_path / "error.txt").read_text()
    assert "Traceback (most recent call last)" in text
    assert f"--workdir={tmp_path}" in text
    assert sorted(os.listdir(tmp_path)) == ["config.json", "error.txt"]


def test_without_a_run_the_traceback_is_a_temporary_file(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = tmp_path / "thesis"
    other.mkdir()
    too_long = "a" * 300  # for a name of the file system
    for arguments in ([], ["--workdir", str(other)], ["--workdir"], [f"--workdir={tmp_path / 'none'}"], [f"--workdir={too_long}"]):
        assert command(raises(KeyError("a")), *arguments) == 1
        file = Path(re.findall(r"the traceback is in (\S+)\n", capsys.readouterr().err)[0])
        assert file.parent == tmp_path
        assert "KeyError" in file.read_text()
    assert os.listdir(other) == []


@pytest.mark.parametrize("arguments", [["--workdir"], ["--workdir="], ["-workdir", ""]])
def test_a_work_directory_without_a_value_is_not_the_current_folder(command, tmp_path, capsys, monkeypatch, arguments):
    """In a folder that holds runs, as a clone does after the README's first command."""
    here, elsewhere = tmp_path / "clone", tmp_path / "temporary"
    (here / "runs").mkdir(parents=True)
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    assert command(raises(KeyError("a")), *arguments) == 1
    assert str(elsewhere) in capsys.readouterr().err
    assert os.listdir(here) == ["runs"]
    assert command(raises(KeyError("a")), "--workdir=.") == 1
    assert "error.txt" in os.listdir(here)


def test_a_module_that_cannot_be_imported_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main.run_command("fedjax_core.commands.nothing", []) == 1
    assert capsys.readouterr().err.startswith("error: ModuleNotFoundError: No module named")


def test_an_interruption_is_one_line(command, capsys):
    assert command(raises(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "stopped: interrupted\n"
    assert command(lambda arguments: 2) == 2


def test_an_interruption_during_imports_ends_at_once(tmp_path):
    """In an interpreter of its own, in which a module that is imported is interrupted and would go on."""
    (tmp_path / "slow.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    import json\nexcept BaseException:\n    pass\n"
    )
    heard = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # the tests themselves may ignore it
    code = heard + "from fedjax_core.commands import main\nwith main._exit_if_interrupted():\n    import slow\nprint('went on')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "stopped: interrupted before it began\n"
