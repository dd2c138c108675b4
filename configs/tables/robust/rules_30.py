"""Robust rules against attacks by three of ten clients on MNIST; see `rules_10.py`.

Command:  fedjax-core table robust/rules_30 --workdir=runs/robust --set=data.dir=DIR
Expect:   see configs/RESULTS.md; on two cores some seconds a cell, 168 of them. Bulyan tolerates
          fewer than a quarter.
Variants: as `rules_10.py`.
"""

from configs.tables.base import Table
from configs.tables.robust import rules_10


def get_table(variant: str = "small") -> Table:
    return rules_10.table(variant, 0.3)
