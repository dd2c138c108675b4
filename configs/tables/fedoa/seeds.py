"""FedOA against three methods on all four unseen tasks of Table 2: three seeds, with intervals.

Command:  fedjax-core table fedoa/seeds --workdir=runs/fedoa_seeds --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: see `all_methods.py`; small has all 200 test examples of each data set.

The four methods train LoRA with equal steps. FedIT has one adapter for all clients; FedLoRA
fine-tunes it at each client; PerAda and FedOA have personal adapters with a proximal term towards
the common one, PerAda on weights, FedOA on features. Differences are to FedOA.
"""

import dataclasses

from configs.tables.fedoa import all_methods as fedoa

ROWS = (fedoa.FEDIT, fedoa.FEDLORA, fedoa.PERADA, fedoa.FEDOA)


def get_table(variant: str = "small"):
    columns = fedoa.columns(variant, tests=200)
    numbers = {row.label: fedoa.TABLE2[row.label] for row in ROWS}
    paper = fedoa.published(numbers, "Table 2", columns, fedoa.MEASURES[variant])
    table = fedoa.table("FedOA beside three others, all tasks", variant, ROWS, columns, paper=paper, note=fedoa.NOTE)
    return dataclasses.replace(table, seeds=(0, 1, 2), against="FedOA")
