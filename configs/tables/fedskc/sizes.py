"""FedSKC's discrepancy aggregation for clients of different and of equal sizes.

Command:  fedjax-core table --table=configs/tables/fedskc/sizes.py --workdir=runs/fedskc_sizes --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: see `all_methods.py`.

The paper's split divides each class over the clients, so their sizes differ; its released code then
cuts them to one size. Here, "equal sizes" are 500 examples per client, with one label distribution
each; clients may share examples.
"""

import dataclasses

from configs import fedavg
from configs.tables.base import Column, Row
from configs.tables.fedskc import all_methods as fedskc
from configs.tables.fedskc import table5 as fedskc_table5


def get_table(variant: str = "small"):
    whole = fedskc_table5.get_table(variant)
    chosen = ("FedAvg", "LCL", "LCL + GDA", "LCL + GPR", "LCL + GDA + GPR", "GDA")
    rows = [row for row in whole.rows if row.label in chosen]
    rows.insert(1, Row("FedAvg (uniform)", fedavg.get_config, {"method.weights": "uniform"}))
    divided = fedskc.column("sizes differ", variant)
    examples = 20 if variant == "smoke" else 500
    drawn = f"dirichlet_clients(alpha=0.2, train_examples={examples}, test_examples=10, replace=True)"
    columns = (divided, Column("equal sizes", {**divided.changes, "data.partition": drawn}))
    return dataclasses.replace(
        whole, title="FedSKC and the sizes of clients", rows=tuple(rows), columns=columns, paper={}, source=""
    )
