"""Tables of methods over data: a definition (`configs/tables/base.py`) becomes runs, and these Markdown, CSV and LaTeX.

A cell and a seed are one ordinary run directory, named by the cell and by a hash of its resolved config:

    DIR/runs/fedavg-samples--iid--seed0--1f0c77ab/
    DIR/table.md, table.csv, table.tex

A changed setting of one method therefore makes another directory, and all other runs are kept. The
tables are made from the directories alone, and written between runs, for at most a twentieth of the time.

  definition         reads, changes and checks a definition; cell selectors ("ROW/COLUMN")
  definition_checks  types of its parts               measures           what its numbers are, whether runs have them
  table_cells        runs with resolved configs       comparability      settings in which its rows differ
  runner             runs what is missing             progress           how far runs are
  search             trials, and which is chosen      search_spaces      settings that a search tries
  trials             what trials' directories hold    search_report      what a search chose
  results            data and results of runs         client_statistics  numbers of single clients
  formatting         numbers as text                  bootstrap_comparison  ranks and differences with intervals
  writers            Markdown, CSV and LaTeX          difference_figure  differences as a figure
"""

from fedjax_core.commands.tables.definition import apply_settings, read_definition
from fedjax_core.commands.tables.results import Contents, Result
from fedjax_core.commands.tables.runner import Outcome, run
from fedjax_core.commands.tables.search import plan_searches
from fedjax_core.commands.tables.table_cells import Cell, build_cells, select_cells, split_cell_selectors
from fedjax_core.commands.tables.writers import render_markdown

__all__ = [
    "Cell",
    "Contents",
    "Outcome",
    "Result",
    "apply_settings",
    "build_cells",
    "plan_searches",
    "read_definition",
    "render_markdown",
    "run",
    "select_cells",
    "split_cell_selectors",
]
