"""Runs a federated experiment, or resumes it.

  fedjax-core run fedavg --workdir=runs/fedavg
  fedjax-core run fedavg:smoke --workdir=runs/smoke --config.rounds=10
  fedjax-core run mine/config.py --workdir=runs/mine
  python -m methods.main --config=configs/fedavg.py --workdir=runs/fedavg

A config is named by its bare name (`fedjax-core list configs`) or by a file of your own, a variant stands behind a colon.
The same command again resumes an interrupted run. On several processes give each --distributed where a cluster has started them,
else --coordinator, --processes and --process.
"""

import ast
import functools
import logging
import re
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from fedjax_core import experiment
from fedjax_core.commands import ending, processes, shipped
from fedjax_core.reporting import report

MORE = "--help tells more"
_METHOD = "--config.method."
HELP = {"--help", "-h", "-help", "--helpshort", "--helpfull"}


def _flags(arguments: Sequence[str]) -> Any:
    """What the command takes, not yet parsed."""
    values = flags.FlagValues()
    at: dict[str, Any] = {"flag_values": values}
    listed = list(arguments)
    config_flags.DEFINE_config_file("config", None, "config, with its variant behind a colon; see configs/", sys_argv=listed, **at)
    flags.DEFINE_string("workdir", None, "directory of the run: metrics, checkpoints, plots", **at)
    flags.DEFINE_string("compilation_cache", experiment.PROGRAMS, "where compiled programs are kept; '' for nowhere", **at)
    flags.DEFINE_boolean("distributed", False, "join the processes that Slurm, Open MPI, Cloud TPU or Kubernetes has started", **at)
    flags.DEFINE_string("coordinator", None, "host:port of process 0, for a run on several processes", **at)
    flags.DEFINE_integer("processes", None, "how many processes run together", **at)
    flags.DEFINE_integer("process", None, "which of them this is", **at)
    return values


def usage() -> str:
    """What --help says: how to call it, which methods there are, and the flags."""
    listed = experiment.names()
    width = max(map(len, listed))
    methods = "\n".join(f"  {name:{width}}  {text}" for name, text in listed.items())
    return f"{__doc__}\nMethods (config.method.name):\n{methods}\n\nFlags:\n{_flags([]).get_help(include_special_flags=False)}\n"


def main(arguments: Sequence[str]) -> int:
    """Parses, builds, runs.

    Args:
      arguments: the command line without the program's name.

    Returns:
      The exit status: 0; 1 for an error, told in one line; 2 for a wrong command line; 130 after an interruption.
    """
    if HELP & set(arguments):
        sys.stdout.write(usage())
        return 0
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        asked, rest = _parted(arguments)
        name, colon, variant = asked.partition(":")
        line = ["run", f"--config={shipped.file('config', name)}{colon}{variant}", *rest]  # first: what follows changes it
        line, other = _other_method(line)
        given = _flags(line)
        given(line)
        if given.workdir is None:
            raise ValueError(f"give --workdir=DIR, the directory of the run; {MORE}")
        processes.check(given.distributed, given.coordinator, given.processes, given.process)
    except (flags.Error, ValueError, KeyError, AttributeError, TypeError, OSError, ImportError, SyntaxError) as error:
        return report.fail(_misused(error, arguments), 2)
    try:
        if other and (dropped := experiment.switch(given.config, other)):
            report.say(f"method {other['name']!r} has no options {', '.join(dropped)}: those of the config are dropped")
        experiment.keep_programs(given.compilation_cache)
        if given.distributed or given.coordinator:
            processes.join(given.coordinator, given.processes, given.process)
        else:
            experiment.use_all_cores()
        experiment.execute(given.config, given.workdir)
    except KeyboardInterrupt as error:
        return report.fail(error if str(error) else "interrupted before a checkpoint was due", 130)
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        return report.fail(error, 1)
    return 0


def _parted(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The config that is named, by --config or without dashes, and the arguments but for it.

    Raises:
      ValueError: there is none, or more than one.
    """
    words, found, rest = list(arguments), [], []
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in ("--config", "-config"):
            found.append(value if equals or not words else words.pop(0))
        elif not word.startswith("-"):
            found.append(word)
        else:
            rest.append(word)
            if not equals and words and not words[0].startswith("-"):
                rest.append(words.pop(0))
    if len(found) != 1 or not found[0]:
        named = f"found {', '.join(map(repr, found))}" if found else "found no config"
        raise ValueError(f"give --config=configs/X.py, or a bare name such as fedavg, once, and --workdir=DIR; {named}; {MORE}")
    return found[0], rest


def _other_method(line: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """(the line without its flags of config.method, what they say) where they name a method, which may be another one than the
    config's, with other options; else the line as it is."""
    of = [word for word in line if word.startswith(_METHOD) and "=" in word]
    said: dict[str, Any] = {}
    for word in of:
        *above, last = word.removeprefix(_METHOD).partition("=")[0].split(".")
        place = functools.reduce(lambda at, key: at.setdefault(key, {}), above, said)
        place[last] = _literal(word.partition("=")[2])
    return ([word for word in line if word not in of], said) if "name" in said else (list(line), {})


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


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
    if number := re.fullmatch(
        r"(flag --\S+?)=.*: (?:invalid literal for int|could not convert string to float).*: (.+)", text, re.S
    ):
        return f"{number[1]}={number[2]} must be a {'whole ' if 'literal' in text else ''}number"
    return error


if __name__ == "__main__":
    ending.end("fedjax_core.commands.run", sys.argv[1:])
