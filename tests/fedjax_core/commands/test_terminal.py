"""Commands in a terminal of 80 columns: no line is longer; what is piped has neither folds nor colours."""

import contextlib
import importlib
import io
import re
import warnings
from collections.abc import Iterator

import pytest

from fedjax_core.commands import list_names, main, run

COLUMNS = 80


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("NO_COLOR", "1")  # argparse has colors from Python 3.14


@contextlib.contextmanager
def terminal() -> Iterator[Terminal]:
    """Yields a terminal that receives both outputs."""
    stream = Terminal()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        yield stream


def long_lines(text: str) -> list[str]:
    """Returns lines that are too long, but for single words such as addresses."""
    return [line for line in re.split(r"[\r\n]", text) if len(line) > COLUMNS and len(line.split()) > 1]


@pytest.mark.parametrize("command", ["", *main.COMMANDS])
def test_help_fits(command):
    module = importlib.import_module(main.MODULES.get(command, f"fedjax_core.commands.{command or 'main'}"))
    with terminal() as stream, contextlib.suppress(SystemExit):
        module.main(["--help"])
    text = stream.getvalue()
    assert len(text.splitlines()) > 5
    assert not long_lines(text)
    assert "\x1b" not in text


@pytest.mark.parametrize("kind", ["", list_names.FIELDS_KIND, *list_names.SECTIONS, *list_names.FILES])
def test_lists_fit(kind):
    with terminal() as stream:
        assert list_names.main([kind] if kind else []) == 0
        for name in list_names.SECTIONS[kind].builders() if kind in list_names.SECTIONS else ():
            assert list_names.main([kind, name]) == 0
    assert stream.getvalue()
    assert not long_lines(stream.getvalue())


def test_a_run_fits_with_its_bar_and_tables(tmp_path):
    warnings.filterwarnings("ignore", "the load_module", DeprecationWarning)  # ml_collections loads files the old way
    arguments = ["fedavg:smoke", f"--workdir={tmp_path}", "--config.rounds=2", "--compilation_cache="]
    with terminal() as stream:
        assert run.main(arguments) == 0
    text = stream.getvalue()
    assert "round/s" in text
    assert "traffic" in text
    assert not long_lines(text)
    assert "\x1b" not in text


def test_what_is_piped_stays_as_it_is(capsys):
    assert list_names.main(["methods"]) == 0
    text = capsys.readouterr().out
    assert text == f"{list_names.describe_kind('methods')}\n"
    assert long_lines(text)
    assert "\x1b" not in text
