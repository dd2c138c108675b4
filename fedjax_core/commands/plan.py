"""Says whether a run fits devices that need not be here, what they would exchange, and how long a
round takes at least.

  fedjax-core plan fedavg_cifar10:paper --topology=v5e:2x2,v5e:16x16,v5p:8x16x16
  fedjax-core plan fedoa:paper --topology=v5e:2x2 --config.method.batch=4 --json=plan.json
  fedjax-core plan mine/config.py --rows=50000 --shape=32,32,3 --classes=10
  python -m fedjax_core.commands.plan --config=configs/fedavg.py

The config is named as for `fedjax-core run`. Neither data nor weights are read, and nothing runs.
Programs are compiled, at most --limit seconds each, and what was found is kept for the next time.
Topologies of TPUs need no TPU, but the package libtpu: pip install 'fedjax-core[plan]'. Without
--topology the plan is for the devices that are here.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from fedjax_core import experiment
from fedjax_core.commands import config_flags as config_line
from fedjax_core.commands.main import run_and_exit
from fedjax_core.commands.plans import capacity_plan, compile_pool, device_targets, plan_report
from fedjax_core.engine.aot import PARTS
from fedjax_core.experiment.mock_data import Counts
from fedjax_core.reporting import console
from fedjax_core.reporting.terminal import find_columns, fit_lines, write_text
from fedjax_core.run import signals
from fedjax_core.storage.json_files import write_json


def _flags(arguments: Sequence[str]) -> Any:
    values = flags.FlagValues()
    at: dict[str, Any] = {"flag_values": values}
    listed = list(arguments)
    config_flags.DEFINE_config_file("config", None, "config, with its variant behind a colon; see configs/", sys_argv=listed, **at)
    flags.DEFINE_string("topology", device_targets.HERE, "targets with commas between: v5e:16x16, 2*v5e:16x16 (slices), here", **at)
    flags.DEFINE_list("programs", list(PARTS), "what is compiled", **at)
    flags.DEFINE_integer(
        "search", capacity_plan.TRIES, "rounds that are compiled to find the largest chunk; 0: none", lower_bound=0, **at
    )
    flags.DEFINE_integer("limit", capacity_plan.LONGEST, "seconds that one program may take to compile", lower_bound=1, **at)
    flags.DEFINE_string("json", None, "a file for the plan as JSON", **at)
    flags.DEFINE_string("kept", compile_pool.CACHE_DIR, "where results are kept; '' for nowhere", **at)
    flags.DEFINE_boolean("fresh", False, "compile what is kept, too", **at)
    flags.DEFINE_integer("rows", None, "training examples of a set of unknown size", lower_bound=1, **at)
    flags.DEFINE_integer("test_rows", None, "its test rows", lower_bound=1, **at)
    flags.DEFINE_list("shape", None, "of a row of it, 32,32,3", **at)
    flags.DEFINE_integer("classes", None, "its classes", lower_bound=1, **at)
    flags.DEFINE_integer("users", None, "its natural clients", lower_bound=1, **at)
    flags.DEFINE_integer("clients", None, "the same as --config.data.clients", lower_bound=1, **at)
    flags.DEFINE_string("targets", None, "what its rows are labelled with: classes, labels, numbers, tokens", **at)
    flags.DEFINE_enum("dtype", None, ["uint8", "float32", "int32"], "of its rows", **at)
    flags.DEFINE_integer("answer", None, "tokens of the longest answer, where a language model writes", lower_bound=1, **at)
    return values


def usage() -> str:
    """Returns the text of --help."""
    return f"{__doc__}\nFlags:\n{_flags([]).get_help(include_special_flags=False)}\n"


def main(arguments: Sequence[str]) -> int:
    """Parses, compiles, reports.

    Returns:
      The exit status: 0; 1 if something does not fit, or for an error, reported in one line; 2 for
      a wrong command line; 130 after an interruption.
    """
    if config_line.HELP & set(arguments):
        write_text(usage())
        return 0
    console.send_warnings_to_stderr()
    try:
        given, method_fields = config_line.parse_flags(arguments, "plan", _flags)
        targets = device_targets.parse_targets(given.topology)
        if unknown := set(given.programs) - set(PARTS):
            raise ValueError(f"--programs has {sorted(unknown)[0]!r}; it may have {', '.join(PARTS)}")
        if given.clients is not None and config_line.sets_field(arguments, "data.clients"):
            raise ValueError(f"--clients={given.clients} is the same as --config.data.clients; give one of them")
        counts = _read_counts(given)
    except config_line.ERRORS as error:
        return console.fail(config_line.describe_flag_error(error, arguments), 2)
    try:
        if method_fields and (message := experiment.switch_method(given.config, method_fields)):
            console.say(message)
        if given.clients is not None:
            given.config.data.clients = given.clients
        experiment.check_config(given.config)
        if why := device_targets.explain_unavailable(targets):
            raise ValueError(why)
        with signals.raise_on_signal():
            plan = capacity_plan.make_plan(
                given.config.to_dict(),
                targets,
                parts=tuple(part for part in PARTS if part in given.programs),
                counts=counts,
                tries=given.search,
                seconds=given.limit,
                folder=given.kept or None,
                fresh=given.fresh,
                say=console.say,
            )
        sys.stdout.write(f"{fit_lines(plan_report.render_plan(plan), find_columns(sys.stdout))}\n")
        if given.json:
            write_json(os.path.expanduser(given.json), plan)
    except KeyboardInterrupt:
        return console.fail("interrupted; what was compiled is kept", 130)
    except (ValueError, TypeError, OSError) as error:
        return console.fail(error, 1)
    return 0 if capacity_plan.plan_fits(plan) else 1


def _read_counts(given: Any) -> Counts:
    shape = None
    if given.shape is not None:
        if not given.shape or not all(axis.strip().isdigit() and int(axis) for axis in given.shape):
            raise ValueError(f"--shape={','.join(given.shape)} must be integers separated by commas, such as 32,32,3")
        shape = tuple(int(axis) for axis in given.shape)
    return Counts(given.rows, given.test_rows, shape, given.classes, given.users, given.targets, given.dtype, given.answer)


if __name__ == "__main__":
    run_and_exit("fedjax_core.commands.plan", sys.argv[1:])
