"""The command `fedjax-core`: its parts are the modules of this folder that have a `main`.

fedjax-core run fedavg --workdir=runs/fedavg
fedjax-core run fedavg:smoke --workdir=runs/smoke --config.rounds=10
fedjax-core table fedskc/table1 --workdir=runs/fedskc
fedjax-core COMMAND --help
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

from fedjax_core.commands import ending

COMMANDS = {
    "run": "runs an experiment, or resumes it",
    "table": "runs what is missing of a table of methods over data, and writes it",
    "analyse": "draws figures and tables of finished runs",
    "predict": "classifies images with a saved model",
    "plan": "says whether a run fits devices that need not be here, before they are rented",
    "export": "writes a run's model into one file",
    "list": "shows methods, models, data sources and what else a config may name, with their options",
}
MODULES = {"list": "fedjax_core.commands.list_names"}  # of the others: the module of that name


def usage() -> str:
    """What --help says."""
    width = max(map(len, COMMANDS))
    return f"{__doc__}\nCommands:\n" + "".join(f"  {name:{width}}  {text}\n" for name, text in COMMANDS.items())


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command that the first argument names, and ends the process with its exit status.

    Args:
      arguments: the command line without the program's name; None: the process's.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("--help", "-h", "help"):
        sys.stdout.write(usage())
        sys.exit(0 if given else 2)
    if given[0] == "--version":
        from fedjax_core import __version__

        sys.stdout.write(f"fedjax-core {__version__}\n")
        sys.exit(0)
    if given[0] not in COMMANDS:
        ending.tell(f"error: there is no command {given[0]!r}; there are {', '.join(COMMANDS)}")
        sys.exit(2)
    ending.end(MODULES.get(given[0], f"fedjax_core.commands.{given[0]}"), given[1:])
