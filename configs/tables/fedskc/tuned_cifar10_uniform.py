"""FedSKC's GDA against uniform weights on CIFAR-10, from the runs of `tuned_cifar10.py`.

Command:  fedjax-core table fedskc/tuned_cifar10_uniform --workdir=runs/fedskc_tuned_cifar10 --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: see `tuned.py`.

With the same workdir and settings it trains nothing new. Differences are to LCL with uniform
weights, so that the row LCL + GDA shows what GDA adds to these. In the last column of
`tuned_cifar10.py`, omitted here, clients have one size, so LCL itself has uniform weights.
"""

import dataclasses

from configs.tables.base import Table
from configs.tables.fedskc import tuned_cifar10

ROWS = ("FedAvg (uniform)", "GDA alone", "LCL + uniform", "LCL + GDA")


def get_table(variant: str = "small") -> Table:
    table = tuned_cifar10.get_table(variant)
    rows = tuple(row for row in table.rows if row.label in ROWS)
    return dataclasses.replace(
        table,
        title="FedSKC's GDA against uniform weights, tuned with equal budgets",
        rows=rows,
        columns=table.columns[:2],
        against="LCL + uniform",
    )
