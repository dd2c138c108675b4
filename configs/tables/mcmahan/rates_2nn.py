"""The grid of learning rates behind `table1_2nn.py`.

Command:  fedjax-core table mcmahan/rates_2nn --workdir=runs/rates --set=data.dir=DIR --only="rate 0.1/IID - B 10 - C 0.1"
Variants: see `table1_2nn.py`. With --set=normalise=data, the rates behind
          `table1_2nn_normalised.py`.

A row has one rate (of ratio 10^(1/3)), a column one cell; the best rate is bold. The whole grid
takes days on two cores; --only selects cells of a few rates, coarse ones first. A best rate at the
edge of the grid, or beside rates that were not run, is not final.
"""

import math
from collections.abc import Mapping
from typing import Any

from configs.tables.base import Column, Row, Table
from configs.tables.mcmahan import table1_2nn as half

GRID = tuple(float(f"{10 ** (power / 3):.3g}") for power in range(-6, 4))  # 0.01, 0.0215, 0.0464, 0.1 ... 10


def table(
    title: str, variant: str, changes: dict[str, Any], published: Mapping[float, tuple[int | None, ...]], target: float
) -> Table:
    """Returns the grid of a half of Table 1; arguments as in `half.table`."""
    places = [(split, batch, fraction) for split, batch in half.COLUMNS for fraction in half.FRACTIONS]
    numbers = {(*place, c): published[c][i] for i, place in enumerate(half.COLUMNS) for c in half.FRACTIONS}
    columns = []
    for split, batch, fraction in places:
        length = {} if variant == "smoke" else half.rounds(numbers[split, batch, fraction])
        column_changes = half.data(split, batch) | half.clients(fraction) | length
        columns.append(Column(f"{split} - {batch} - {half.label(fraction)}", column_changes))
    known = {c.label: math.inf if (n := numbers[p]) is None else n for c, p in zip(columns, places, strict=True)}
    rows = tuple(Row(f"rate {rate:g}", half.get_base_config(variant), {"optimizer.lr": rate}) for rate in GRID)
    return Table(
        title=title,
        rows=rows,
        columns=tuple(columns),
        measures=(half.measure(target),),
        seeds=(0,),
        changes=changes,
        paper={row.label: dict(known) for row in rows},
        source=half.SOURCE,
        note="The published number, of the paper's best rate, stands in every row of its column. All is selected on test data.",
        differ=("optimizer",),
    )


def get_table(variant: str = "small") -> Table:
    return table("Rates of FedAvg on MNIST, 2NN", variant, half.shared(variant), half.PUBLISHED, half.TARGET)
