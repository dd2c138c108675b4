"""Tables of methods over data: a definition (`configs/tables/base.py`) becomes runs, and the runs become Markdown, CSV and LaTeX.

A cell and a seed are one ordinary run directory, named by the cell and by a hash of its resolved config:

    DIR/runs/fedavg-samples--iid--seed0--1f0c77ab/
    DIR/table.md, table.csv, table.tex

So another setting of one method is another directory, and everything else is found finished. The tables are made from what lies in
the directories alone, and written after every cell.

  definition.py   read from a file, changed on the command line, checked      measures.py   what its numbers are
  structure.py    the types of its parts                                      comparability.py  in what its rows differ
  cells.py        the runs, with resolved configs                             running.py    runs what is missing
  wanted.py       whether they can have the scores that are named
  places.py       which of them a text means
  spaces.py       what a search tries                                         search.py     trials, and which is chosen
  trials.py       what their directories say                                  progress.py   how far runs are
  results.py      what finished runs put into cells                           texts.py      numbers as text
  written.py      Markdown, CSV and the files                                 latex.py      LaTeX
  spread.py       what measures say of single clients                         compared.py   ranks and differences, with intervals
  tuned.py        what a search chose, as text                            drawn.py      differences as a figure
"""

from fedjax_core.commands.tables.definition import changed, read
from fedjax_core.commands.tables.results import Contents, Result
from fedjax_core.commands.tables.runner import Outcome, run
from fedjax_core.commands.tables.search import plan
from fedjax_core.commands.tables.table_cells import Cell, cells, choose, names
from fedjax_core.commands.tables.writers import markdown, write

__all__ = [
    "Cell",
    "Contents",
    "Outcome",
    "Result",
    "cells",
    "changed",
    "choose",
    "markdown",
    "names",
    "plan",
    "read",
    "run",
    "write",
]
