"""Runs a federated experiment, or resumes it.

  python -m methods.main --config=configs/fedavg.py --workdir=runs/fedavg
  python -m methods.main --config=configs/fedavg.py:smoke --workdir=runs/smoke --config.rounds=10

The same command again resumes an interrupted run. On several processes give each --coordinator, --processes and --process.
"""

import itertools
import logging
import os
import re
import sys
from collections.abc import Sequence

import jax
from absl import flags
from ml_collections import config_flags

from fedjax_core import experiment
from fedjax_core.reporting import report

_CONFIG = config_flags.DEFINE_config_file("config", None, "config file, with its variant behind a colon; see configs/")
_WORKDIR = flags.DEFINE_string("workdir", None, "directory of the run: metrics, checkpoints, plots")
_CACHE = flags.DEFINE_string("compilation_cache", experiment.PROGRAMS, "where compiled programs are kept; '' for nowhere")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0, for a run on several processes")
_PROCESSES = flags.DEFINE_integer("processes", None, "how many processes run together")
_PROCESS = flags.DEFINE_integer("process", None, "which of them this is")


def usage() -> str:
    """What --help says first: how to call it, and which methods there are."""
    listed = experiment.names()
    width = max(map(len, listed))
    return f"{__doc__}\nMethods (config.method.name):\n" + "\n".join(f"  {n:{width}}  {text}" for n, text in listed.items())


def main(arguments: Sequence[str]) -> int:
    """Parses, builds, runs.

    Args:
      arguments: the command line, the program's name first.

    Returns:
      The exit status: 0; 1 for an error, told in one line; 2 for a wrong command line; 130 after an interruption.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        file = _config_file(arguments)
        if file is not None and not os.path.isfile(file):
            raise ValueError(f"there is no config file {file!r}")
        sys.argv = list(arguments)  # where config_flags looks for overrides
        rest = flags.FLAGS(list(arguments), known_only=False)
        if _CONFIG.value is None or _WORKDIR.value is None or len(rest) > 1:
            raise ValueError("give --config=configs/X.py and --workdir=DIR, and nothing without dashes; --help tells more")
        if len({flag.value is None for flag in (_COORDINATOR, _PROCESSES, _PROCESS)}) > 1:
            raise ValueError("give --coordinator, --processes and --process together, or none of them")
    except (flags.Error, ValueError, KeyError, AttributeError, TypeError, OSError, ImportError, SyntaxError) as error:
        return report.fail(_misused(error, arguments), 2)
    try:
        experiment.keep_programs(_CACHE.value)
        if _COORDINATOR.value:
            jax.distributed.initialize(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value)
        else:
            experiment.use_all_cores()
        experiment.execute(_CONFIG.value, _WORKDIR.value)
    except KeyboardInterrupt as error:
        return report.fail(error if str(error) else "interrupted before a checkpoint was due", 130)
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        return report.fail(error, 1)
    return 0


def _config_file(arguments: Sequence[str]) -> str | None:
    """The file that --config names, without its variant."""
    for flag, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = flag.partition("=")
        if name in ("--config", "-config"):
            return (value if equals else following).partition(":")[0]
    return None


def _misused(error: Exception, arguments: Sequence[str]) -> Exception | str:
    """What absl and ml_collections say about flags, as one would say it."""
    text = str(error)
    if isinstance(error, (AttributeError, KeyError)):
        field = next(iter(re.findall(r"\w+", text)), "")
        given = next((flag for flag in (a.partition("=")[0] for a in arguments) if field in flag.split(".")[1:]), None)
        close = re.search(r"Did you mean \W*(\w+)", text)
        return f"the config has no field {given}" + (f"; did you mean {close[1]}?" if close else "") if given else text
    if "Traceback (most recent call last)" in text:  # raised inside the config file
        flag, _, trace = text.partition(": ")
        return f"{flag}: {trace.strip().splitlines()[-1].partition(': ')[2]}"
    return error


if __name__ == "__main__":
    if {"--help", "-h", "-help", "--helpshort", "--helpfull"} & set(sys.argv):
        sys.modules["__main__"].__doc__ = usage()
        flags.FLAGS.mark_as_parsed()
        print(f"{usage()}\n\nFlags:\n{flags.FLAGS.main_module_help()}")  # noqa: T201
        sys.exit(0)
    exit_status = main(sys.argv)
    if exit_status == 1 and _COORDINATOR.value:  # the others may wait for this process: leave without waiting for them
        sys.stderr.flush()
        os._exit(exit_status)
    sys.exit(exit_status)
