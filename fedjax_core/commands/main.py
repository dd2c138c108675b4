"""The command `fedjax-core`: its parts are the modules of this folder that have a `main`.

fedjax-core run fedavg --workdir=runs/fedavg
fedjax-core run fedavg:smoke --workdir=runs/smoke --config.rounds=10
fedjax-core table fedskc/table1 --workdir=runs/fedskc
fedjax-core COMMAND --help
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
from fedjax_core.option_types import escape_controls

# Nothing heavy is imported above, so that --help is quick and an interruption of the imports below ends in one line.

COMMANDS = {
    "run": "runs an experiment, or resumes it",
    "table": "runs what is missing of a table of methods over data, and writes it",
    "analyse": "draws figures and tables of finished runs",
    "audit": "attacks a run: membership, a bound of epsilon, images from an uplink",
    "predict": "classifies images with a saved model",
    "plan": "says whether a run fits devices that need not be here, before they are rented",
    "export": "writes a run's model into one file",
    "new": "writes a folder with a working method, network, data set or table, to change into your own",
    "list": "shows methods, models, data sources and what else a config may name, with their options",
}
MODULES = {  # of commands whose module has another name
    "analyse": "fedjax_core.commands.analyze",
    "list": "fedjax_core.commands.list_names",
}
TRACEBACK = "error.txt"
LONGEST = 400  # characters of the message of an unexpected error


def usage() -> str:
    """Returns the text of --help."""
    width = max(map(len, COMMANDS))
    return f"{__doc__}\nCommands:\n" + "".join(f"  {name:{width}}  {text}\n" for name, text in COMMANDS.items())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command that the first argument names, and ends the process with its exit status."""
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or [""]
    if name in ("", "--help", "-h", "help"):
        from fedjax_core.reporting.terminal import write_text

        write_text(usage())
        sys.exit(0 if name else 2)
    if name == "--version":
        from fedjax_core import __version__

        sys.stdout.write(f"fedjax-core {__version__}\n")
        sys.exit(0)
    if name not in COMMANDS:
        write_error(f"error: there is no command {name!r}; there are {', '.join(COMMANDS)}")
        sys.exit(2)
    run_and_exit(MODULES.get(name, f"fedjax_core.commands.{name}"), rest)


def run_and_exit(module: str, arguments: Sequence[str]) -> NoReturn:
    """Runs a command, and ends the process with its exit status."""
    status = run_command(module, arguments)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if status == 1 and (distributed := sys.modules.get("fedjax_core.distributed")) is not None:
        distributed.exit_if_joined(status)
    sys.exit(status)


def run_command(module: str, arguments: Sequence[str]) -> int:
    """Runs a command; returns its status, 1 for an unexpected error, 130 if interrupted."""
    try:
        with _exit_if_interrupted():
            importlib.import_module("fedjax_core.own_packages").import_bundled_packages()
            command: Callable[[Sequence[str]], int] = importlib.import_module(module).main
            code_fingerprint = importlib.import_module("fedjax_core.code_fingerprint")
        with code_fingerprint.contain_exits():
            return command(arguments)
    except KeyboardInterrupt as error:
        write_error(f"stopped: {str(error) or 'interrupted'}")
        return 130
    except Exception as error:
        if type(error).__name__ == "CodeExited":  # the user's own code called sys.exit()
            write_error(f"error: {error}")
        else:
            write_error(f"error: {_describe_error(error)}; {_keep_traceback(error, arguments)}")
        return 1


@contextlib.contextmanager
def _exit_if_interrupted() -> Iterator[None]:
    """Lets Ctrl-C end the process at once while modules are imported: an exception would be raised
    inside of what is imported."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if is_main_thread else None
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


def write_error(line: str) -> None:
    """Writes a line to standard error, if it is still open."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{escape_controls(line)}\n")
        sys.stderr.flush()


def _describe_error(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    code_fingerprint = sys.modules.get("fedjax_core.code_fingerprint")  # None if nothing could be imported
    place = code_fingerprint.describe_origin(error) if code_fingerprint is not None else ""
    return message if not place or place in message else f"{message} (in {place})"


def _keep_traceback(error: BaseException, arguments: Sequence[str]) -> str:
    """Writes the traceback to a file, and returns a sentence that names it."""
    text = "".join(traceback.format_exception(error))
    text = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}  {' '.join(arguments)}\n\n{text}"
    for find_folder in (lambda: _find_workdir(arguments), lambda: None):
        with contextlib.suppress(OSError):
            return f"the traceback is in {_write_traceback(text, find_folder())}"
    return f"the traceback could not be written ({traceback.extract_tb(error.__traceback__)[-1]})"


def _write_traceback(text: str, folder: Path | None) -> Path:
    """Writes to error.txt in the directory of a run or a table; None: to a temporary file. Returns
    the file."""
    data = text.encode(errors="replace")
    if folder is not None:
        write_bytes(folder / TRACEBACK, data)
        return folder / TRACEBACK
    descriptor, name = tempfile.mkstemp(".txt", "fedjax_core-")
    with open(descriptor, "wb") as file:
        file.write(data)
    return Path(name)


def _find_workdir(arguments: Sequence[str]) -> Path | None:
    """Returns the directory that --workdir names, if it holds a run or a table; OSError if it cannot be looked into."""
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in ("--workdir", "-workdir"):
            value = value if equals else next(iter(arguments[index + 1 :]), "")
            if not value:  # which as a path would be the current folder
                return None
            folder = Path(os.path.expanduser(value))
            return folder if any((folder / name).exists() for name in ("config.json", "runs")) else None
    return None
