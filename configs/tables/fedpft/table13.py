"""FedPFT, Table 13: FedPFT with 90, 70 and 50 % of the clients in a round, at alpha 0.5.

Command:  fedjax-core table --table=configs/tables/fedpft/table13.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`. FedPFT+Con at alpha 0.1, of the arXiv version, is `participation_con.py`.
"""

import dataclasses

from configs.tables.base import Row
from configs.tables.fedpft import all_methods as fedpft

PARTS = (0.9, 0.7, 0.5)
PAPER = {
    "FedPFT": "74.10±1.95 44.87±0.76 28.61±0.40",
    "FedPFT, 90 %": "73.88±1.84 45.74±0.32 28.53±0.62",
    "FedPFT, 70 %": "74.21±1.45 45.46±1.14 29.24±0.16",
    "FedPFT, 50 %": "74.33±1.38 45.87±0.81 29.90±0.10",
}


def shares(row: Row) -> tuple[Row, ...]:
    """Returns the row, and the same with fewer clients in a round."""
    fewer = ((f"{row.label}, {100 * part:.0f} %", {**row.changes, "cohort.fraction": part}) for part in PARTS)
    return row, *(dataclasses.replace(row, label=label, changes=changes) for label, changes in fewer)


def get_table(variant: str = "small"):
    columns = tuple(fedpft.dirichlet(data, 0.5, variant) for data in fedpft.SOURCES)
    paper = fedpft.published(PAPER, "Table 13", columns)
    return fedpft.table("FedPFT, Table 13", variant, shares(fedpft.FEDPFT), columns, paper=paper, differ=("cohort",))
