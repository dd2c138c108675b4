"""Runs a federated experiment, or resumes it.

  fedjax-core run fedavg --workdir=runs/fedavg
  fedjax-core run fedavg:smoke --workdir=runs/smoke --config.rounds=10
  fedjax-core run mine/config.py --workdir=runs/mine
  fedjax-core run fedavg --workdir=runs/fedavg --seeds=0,1,2 --config.plan.lanes=3
  python -m methods.main --config=configs/fedavg.py --workdir=runs/fedavg

A config is named by its bare name (`fedjax-core list configs`) or by a file of your own; a variant
follows a colon. Its fields are flags, --config.FIELD=VALUE; `fedjax-core list fields` shows
them, and what they may hold. The same command again resumes an interrupted run. With --fresh
the old run in the directory is deleted first. A directory without a checkpoint may be reused, unless
its run is finished.
For several processes: --distributed under Slurm, Open MPI, Cloud TPU or Kubernetes; otherwise
--coordinator, --processes and --process. With --seeds there is a run of each, in WORKDIR/seed0 and so on, that
--config.seed resumes alone. config.plan.lanes of them train at once, in one program.
"""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from fedjax_core import distributed, experiment, option_types
from fedjax_core.commands import config_flags as config_line
from fedjax_core.commands.config_flags import HELP, MORE
from fedjax_core.commands.main import run_and_exit
from fedjax_core.reporting import console
from fedjax_core.reporting.terminal import write_text
from fedjax_core.run import CallbackFailed, Interrupted
from fedjax_core.storage.workdir import DirectoryInUse

KNOWN = (ValueError, TypeError, OSError, FloatingPointError)  # errors that say what is wrong in one line


def _flags(arguments: Sequence[str]) -> Any:
    values = flags.FlagValues()
    at: dict[str, Any] = {"flag_values": values}
    listed = list(arguments)
    config_flags.DEFINE_config_file("config", None, "config, with its variant behind a colon; see configs/", sys_argv=listed, **at)
    flags.DEFINE_string("workdir", None, "directory of the run: metrics, checkpoints, plots", **at)
    flags.DEFINE_boolean("fresh", False, "delete what the directory holds of a run, and begin there", **at)
    flags.DEFINE_string("seeds", None, "with commas between: a run of each, in a directory of its own in that of --workdir", **at)
    flags.DEFINE_string("compilation_cache", experiment.COMPILATION_CACHE, "where compiled programs are kept; '' for nowhere", **at)
    flags.DEFINE_boolean("distributed", False, "join the processes that Slurm, Open MPI, Cloud TPU or Kubernetes has started", **at)
    flags.DEFINE_string("coordinator", None, "host:port of process 0, for a run on several processes", **at)
    flags.DEFINE_integer("processes", None, "how many processes run together", **at)
    flags.DEFINE_integer("process", None, "which of them this is", **at)
    return values


def usage() -> str:
    """Returns the text of --help: usage, methods, and flags."""
    summaries = experiment.method_summaries()
    width = max(map(len, summaries))
    methods = "\n".join(f"  {name:{width}}  {text}" for name, text in summaries.items())
    return f"{__doc__}\nMethods (config.method.name):\n{methods}\n\nFlags:\n{_flags([]).get_help(include_special_flags=False)}\n"


def _parse_seeds(text: str) -> list[int]:
    seeds = config_line.parse_seeds(text)
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds={text} must have each seed once")
    return [option_types.check_value("--seeds", seed, option_types.Seed) for seed in seeds]


def _run_seeds(config: Any, workdir: str, seeds: Sequence[int], fresh: bool) -> int:
    """Runs each seed in a directory of its own, and returns the exit status.

    Raises:
      Exception: an unexpected one (not of `KNOWN`), of the first run that had one.
      Interrupted: some runs were interrupted; the message says after which rounds.
    """
    runs, has_labels = [], experiment.seeds_at_once(config) > 1
    for seed in seeds:
        seed_config = config.copy_and_resolve_references()
        seed_config.seed = seed
        say_labelled = functools.partial(_say_labelled, f"seed {seed}") if has_labels else None
        runs.append(experiment.Run(seed_config, str(Path(workdir) / f"seed{seed}"), say_labelled, fresh))
    outcomes = dict(zip(seeds, experiment.execute_all(runs, say=console.say), strict=True))
    failed = {seed: outcome for seed, outcome in outcomes.items() if isinstance(outcome, Exception)}
    for seed, error in failed.items():
        console.fail(f"seed {seed}: {console.one_line(error)}{_advise(error)}", 1)
    for error in failed.values():
        if not isinstance(error, KNOWN):
            raise error
    stopped = [f"seed {seed} {outcome}" for seed, outcome in outcomes.items() if isinstance(outcome, KeyboardInterrupt)]
    if stopped:
        raise Interrupted("; ".join(stopped))
    return 1 if failed else 0


def _advise(error: Exception) -> str:
    return distributed.advise_joining() if isinstance(error, DirectoryInUse) else ""


def _say_labelled(label: str, text: str) -> None:
    console.say("\n".join(f"{label}  {line}" for line in text.splitlines()))


def main(arguments: Sequence[str]) -> int:
    """Parses, builds, runs.

    Returns:
      The exit status: 0; 1 for an error, reported in one line; 2 for a wrong command line; 130
      after an interruption.
    """
    if HELP & set(arguments):
        write_text(usage())
        return 0
    console.send_warnings_to_stderr()
    try:
        given, method_fields = config_line.parse_flags(arguments, "run", _flags)
        if not given.workdir:
            raise ValueError(f"give --workdir=DIR, the directory of the run; {MORE}")
        seeds = None if given.seeds is None else _parse_seeds(given.seeds)
        if seeds is not None and config_line.sets_field(arguments, "seed"):
            raise ValueError(f"--seeds={given.seeds} and --config.seed={given.config.seed} choose seeds; give one of them")
        distributed.check_process_flags(given.distributed, given.coordinator, given.processes, given.process)
    except config_line.ERRORS as error:
        return console.fail(config_line.describe_flag_error(error, arguments), 2)
    try:
        if method_fields and (message := experiment.switch_method(given.config, method_fields)):
            console.say(message)
        experiment.cache_compiled_programs(given.compilation_cache)
        if given.distributed or given.coordinator:
            distributed.join_processes(given.coordinator, given.processes, given.process)
        else:
            experiment.use_all_cores()
        if seeds is not None:
            return _run_seeds(given.config, given.workdir, seeds, given.fresh)
        if (at_once := experiment.seeds_at_once(given.config)) > 1:
            experiment.check_config(given.config)
            console.say(f"plan.lanes={at_once} is for several seeds, such as --seeds=0,1,2; this is one run")
        experiment.execute(given.config, given.workdir, fresh=given.fresh)
    except KeyboardInterrupt as error:
        status = console.fail(error if str(error) else "interrupted before a checkpoint was due", 130)
        if not isinstance(error, Interrupted):  # which all processes raise together
            distributed.exit_if_joined(status)
        return status
    except KNOWN as error:
        return console.fail(distributed.explain_lost_process(error) or f"{console.one_line(error)}{_advise(error)}", 1)
    except CallbackFailed as error:
        if error.__cause__ is not None:
            raise
        return console.fail(error, 1)  # of process 0, whose traceback stays, or an answer that is not allowed
    except RuntimeError as error:
        if lost := distributed.explain_lost_process(error):
            return console.fail(lost, 1)
        raise
    return 0


if __name__ == "__main__":
    run_and_exit("fedjax_core.commands.run", sys.argv[1:])
