"""FedHPL, Table 3, left: label skew; lowest, mean and highest client.

Command:  fedjax-core table --table=configs/tables/fedhpl/table3.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`. FedHPL has ViT-B for all clients, FedHPL (ViT) has ViT-S, B and L.
"""

from configs.tables.fedhpl import all_methods as fedhpl

PAPER = {
    "FedHPL": "84.94 91.43 95.15  93.96 96.13 97.48  96.65 96.90 97.61  97.33 97.89 98.19",
    "FedHPL (ViT)": "90.24 92.48 97.53  91.67 95.51 97.30  94.25 96.23 98.26  95.63 97.06 98.40",
}


def get_table(variant: str = "small"):
    rows = fedhpl.both(variant)
    columns = tuple(fedhpl.column(fedhpl.CIFAR10, skew, variant) for skew in (0.1, 0.5, 1.0, "IID"))
    paper = fedhpl.published(PAPER, "Table 3 (left)", columns, fedhpl.SPREAD, [[measure] for measure in fedhpl.SPREAD])
    return fedhpl.table("FedHPL, Table 3 (left)", variant, rows, columns, fedhpl.SPREAD, paper=paper, differ=("network",))
