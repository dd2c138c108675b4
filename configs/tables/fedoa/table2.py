"""FedOA, Table 2: each task left out in turn; personal models are evaluated on it.

Command:  fedjax-core table --table=configs/tables/fedoa/table2.py --workdir=runs/fedoa --variant=paper --set=data.dir=DIR
Variants: see `all_methods.py`. The paper's last column is the mean of the four: 56.51, 58.36,
          52.16, 56.98, 52.48, 47.22 and 59.05. FedOA also as printed and as released.
"""

import dataclasses

from configs.tables.fedoa import all_methods as fedoa


def get_table(variant: str = "small"):
    readings = [fedoa.fedoa_row(f"FedOA, {name}", variant=name) for name in ("printed", "released")]
    rows, columns = (fedoa.centralized(variant), fedoa.FEDIT, *fedoa.PERSONALISED, *readings), fedoa.columns(variant)
    paper = fedoa.published(fedoa.TABLE2, "Table 2", columns, fedoa.MEASURES[variant]) | {row.label: None for row in readings}
    table = fedoa.table("FedOA, Table 2", variant, rows, columns, paper=paper, note=fedoa.NOTE, differ=("rounds", "epochs"))
    return dataclasses.replace(table, seeds=(0, 1, 2))
