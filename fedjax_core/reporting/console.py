"""Output of commands on standard error, one-line errors, and readable times and sizes."""

import argparse
import contextlib
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from fedjax_core import code_fingerprint
from fedjax_core.option_types import escape_controls
from fedjax_core.reporting.terminal import find_columns, fit_lines, write_text

with warnings.catch_warnings():  # without ipywidgets a notebook gets the bar of text, and a warning that it could be nicer
    warnings.simplefilter("ignore")
    from tqdm.auto import tqdm


def say(text: str) -> None:
    """Writes a line to standard error, above a progress bar if there is one; nothing if it is closed.

    Terminal escapes, such as in the name of a class, are escaped as in Python.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        tqdm.write(fit_lines(escape_controls(text), find_columns(sys.stderr)), file=sys.stderr)


def fail(error: BaseException | str, status: int) -> int:
    """Prints in one line why a command ends, and returns its exit status; 130: interrupted."""
    kind, text = "stopped" if status == 130 else "error", one_line(error)
    say(text if text.startswith(f"{kind} ") else f"{kind}: {text}")
    return status


def run_command(command: Callable[[], None]) -> int:
    """Runs what a command does; returns 0, or 1 (error, in one line), or 130 (interrupted)."""
    try:
        command()
    except KeyboardInterrupt:
        return fail("interrupted", 130)
    except (ValueError, TypeError, OSError) as error:
        return fail(error, 1)
    return 0


class _SafeFormatter(logging.Formatter):
    """Escapes terminal escapes in log records, such as in the name of a class."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record))


def send_warnings_to_stderr() -> None:
    """Sends the warnings of a command to standard error, one line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(_SafeFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


class Parser(argparse.ArgumentParser):
    """The parser of a command, which raises a one-line ValueError for a wrong command line."""

    def __init__(self, command: str, description: str | None) -> None:
        """Takes the command's name, and the docstring of its module, which --help shows as it is."""
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(f"fedjax-core {command}", description=description, formatter_class=formatter)

    def print_help(self, file: Any = None) -> None:
        """Prints the help, on standard output folded for a terminal."""
        if file is None:
            write_text(self.format_help())
        else:
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; --help tells more")


def one_line(error: BaseException | str) -> str:
    """Returns an error's message as one line, with file and function if the user's code raised it."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror + (f": {error.filename}" if error.filename else "")
    line = " ".join(text.split()) or type(error).__name__
    where = code_fingerprint.describe_origin(error) if isinstance(error, BaseException) else ""
    return line if not where or where in line else f"{line} (in {where})"


def readable_time(seconds: float) -> str:
    """Returns a time such as "12.5 s" or "3 h 05 min"."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def readable_size(count: float) -> str:
    """Returns a number of bytes with three digits.

    >>> readable_size(999), readable_size(999_600), readable_size(1_200_000)
    ('999 bytes', '1 MB', '1.2 MB')
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 999.5:  # which has three digits
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
