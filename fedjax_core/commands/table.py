"""Runs what is missing of a table of methods over data, and writes it as Markdown, CSV and LaTeX.

  fedjax-core table first --workdir=runs/first
  fedjax-core table first --workdir=runs/first --only=scaffold,local/iid --seeds=0
  fedjax-core table fedskc/all_methods --workdir=runs/fedskc --set="/cifar-10-*:data.source=tfds:cifar10"
  fedjax-core table --table=mine/table.py --workdir=runs/mine

A table is named by its bare name (`fedjax-core list tables`) or by a file of your own. The same
command again goes on where it was stopped, and runs what has changed in the definition.
"""

import sys
from collections.abc import Sequence

from fedjax_core import experiment
from fedjax_core.commands import config_flags, tables
from fedjax_core.commands.main import run_and_exit
from fedjax_core.reporting import console


def _parser() -> console.Parser:
    parser = console.Parser("table", __doc__)
    parser.add_argument("name", nargs="?", help="definition, by its bare name or as a file")
    parser.add_argument("--table", help="the same, such as a file like those in configs/tables/")
    parser.add_argument("--workdir", required=True, help="directory of the runs and of table.md, table.csv, table.tex")
    parser.add_argument("--variant", default="small", help="smoke (seconds), small (the default), paper")
    places = "ROW, ROW/COLUMN or /COLUMN, with commas between, * for any characters; the table still shows all"
    parser.add_argument("--only", action="append", default=[], help=f"{places}; may be repeated")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="FIELD=VALUE of all runs, PLACE:FIELD=VALUE of those that PLACE means, as in --only; after the definition's changes; "
        "may be repeated",
    )
    parser.add_argument("--seeds", help="with commas between, in place of the definition's")
    parser.add_argument(
        "--compilation_cache", default=experiment.COMPILATION_CACHE, help="where compiled programs are kept; '' for nowhere"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Parses, runs.

    Returns:
      The exit status: 0; 1 if runs failed or the tables could not be written; 2 for a wrong command
      line or definition; 130 after an interruption.
    """
    console.send_warnings_to_stderr()
    try:
        given = _parser().parse_args(arguments)
        seeds = None if given.seeds is None else config_flags.parse_seeds(given.seeds)
        if not given.workdir:
            raise ValueError("--workdir='' names no directory; . is this folder")
        if (given.table is None) == (given.name is None):
            raise ValueError("give one table, by name (fedjax-core list tables) or as --table=FILE.py; see --help")
        definition = config_flags.find_file("table", given.table if given.name is None else given.name)
        table = tables.apply_settings(tables.read_definition(definition, given.variant), given.set)
        every = tables.build_cells(table, given.variant, seeds)
        only = tables.split_cell_selectors(every, ",".join(given.only))
        if given.only and not only:
            raise ValueError(f"--only={','.join(given.only)} names no row; leave it out for all of them")
        tables.select_cells(every, only)
        tables.plan_searches(table, given.variant)
    except (ValueError, TypeError) as error:
        return console.fail(error, 2)
    try:
        experiment.cache_compiled_programs(given.compilation_cache)
        experiment.use_all_cores()
        outcome = tables.run(table, given.workdir, given.variant, only=only, seeds=seeds)
    except KeyboardInterrupt as error:
        return console.fail(error if str(error) else "interrupted; the same command goes on from there", 130)
    except (ValueError, TypeError, OSError) as error:
        return console.fail(error, 1)
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    run_and_exit("fedjax_core.commands.table", sys.argv[1:])
