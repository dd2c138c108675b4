"""FedPFT: what gives its gain, with the rate 0.1 in all rows and no search; see `alternation.py`.

Command:  fedjax-core table fedpft/alternation_untuned --workdir=runs/fedpft_alternation_untuned --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: as in `alternation.py`, whose searches triple the time of a row. On ten clients all rows
          chose 0.1 at alpha 0.1.
"""

import dataclasses

from configs.tables.base import Table
from configs.tables.fedpft import alternation


def get_table(variant: str = "small") -> Table:
    searched = alternation.get_table(variant)
    rows = tuple(dataclasses.replace(row, space={}, changes={**row.changes, "optimizer.lr": 0.1}) for row in searched.rows)
    return dataclasses.replace(searched, rows=rows, search=None)
