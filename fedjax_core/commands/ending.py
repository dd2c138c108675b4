"""How commands begin and end: imports that may be interrupted, and one last handler for whatever gets through a command.

Imports nothing of weight, so that it stands before everything else that a command needs.
"""

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from fedjax_core.atomic_files import write_bytes
from fedjax_core.option_types import without_escapes

TRACEBACK = "error.txt"
LONGEST = 400  # characters of an error that was not foreseen


def end(module: str, arguments: Sequence[str]) -> NoReturn:
    """Runs a command, and ends the process with its exit status.

    Args:
      module: the command's, with a `main` that takes the arguments and returns the status.
      arguments: the command line without the program's name.
    """
    status = command(module, arguments)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    jax = sys.modules.get("jax")
    if status == 1 and jax is not None and jax.distributed.is_initialized():
        os._exit(status)  # the other processes may wait for this one: it leaves without waiting for them
    sys.exit(status)


def command(module: str, arguments: Sequence[str]) -> int:
    """Imports a command and runs it.

    Args:
      module: the command's.
      arguments: the command line without the program's name.

    Returns:
      The exit status: the command's own; 1 for an error that it does not know, told in one line that names the file with the
      traceback; 130 after an interruption.
    """
    try:
        with _interruptible():
            importlib.import_module("fedjax_core.own_packages").take_ours()
            main: Callable[[Sequence[str]], int] = importlib.import_module(module).main
            own_code = importlib.import_module("fedjax_core.code_fingerprint")
        with own_code.contained():
            return main(arguments)
    except KeyboardInterrupt as error:
        tell(f"stopped: {str(error) or 'interrupted'}")
        return 130
    except Exception as error:
        foreign = type(error).__name__ == "CodeExited"  # the user's own code asked for the end: there is nothing to look for
        tell(f"error: {error}" if foreign else f"error: {_said(error)}; {_kept(error, arguments)}")
        return 1


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """While modules are imported, Ctrl-C ends the process at once: an exception would surface inside of what is imported."""
    mine = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if mine else None
    if before is not signal.default_int_handler:  # it is ignored, or somebody else's
        yield
        return

    def leave(number: int, frame: object) -> None:
        del number, frame
        os.write(2, b"stopped: interrupted before it began\n")
        os._exit(130)

    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def tell(line: str) -> None:
    """Writes a line to standard error, if there still is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{without_escapes(line)}\n")
        sys.stderr.flush()


def _said(error: BaseException) -> str:
    """The error with its kind, in one line."""
    text = " ".join(str(error).split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    kind = f"{type(error).__name__}: {text}" if text else type(error).__name__
    own_code = sys.modules.get("fedjax_core.code_fingerprint")  # which is not there if nothing could be imported
    where = own_code.raised_in(error) if own_code is not None else ""
    return kind if not where or where in kind else f"{kind} (in {where})"


def _kept(error: BaseException, arguments: Sequence[str]) -> str:
    """Writes the traceback, and says where it is."""
    text = "".join(traceback.format_exception(error))
    text = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}  {' '.join(arguments)}\n\n{text}"
    for place in (_workdir(arguments), None):
        try:
            file = _written(text, place)
        except OSError:
            continue
        return f"the traceback is in {file}"
    return f"the traceback could not be written ({traceback.extract_tb(error.__traceback__)[-1]})"


def _written(text: str, folder: Path | None) -> Path:
    """Into error.txt of a run's or a table's directory; None: a temporary file. Whole or not at all."""
    data = text.encode(errors="replace")
    if folder is not None:
        write_bytes(folder / TRACEBACK, data)
        return folder / TRACEBACK
    descriptor, name = tempfile.mkstemp(".txt", "fedjax_core-")
    with open(descriptor, "wb") as file:
        file.write(data)
    return Path(name)


def _workdir(arguments: Sequence[str]) -> Path | None:
    """What --workdir names, if a run or a table lies there."""
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in ("--workdir", "-workdir"):
            value = value if equals else next(iter(arguments[place + 1 :]), "")
            if not value:  # which as a path would be the current folder
                return None
            folder = Path(os.path.expanduser(value))
            return folder if any((folder / name).exists() for name in ("config.json", "runs")) else None
    return None
