"""FedHPL, Table 14: one to five local epochs, at alpha 0.1; lowest, mean and highest client.

Command:  fedjax-core table --table=configs/tables/fedhpl/table14.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`.
"""

from configs.tables.fedhpl import all_methods as fedhpl

PAPER = {
    "FedHPL": "84.94 91.43 95.15",
    "FedHPL, 2 epochs": "87.92 92.75 95.34",
    "FedHPL, 3 epochs": "92.89 94.24 95.02",
    "FedHPL, 4 epochs": "91.61 93.62 94.72",
    "FedHPL, 5 epochs": "92.49 93.34 94.22",
    "FedHPL (ViT)": "90.24 92.48 97.53",
    "FedHPL (ViT), 2 epochs": "88.98 92.24 97.27",
    "FedHPL (ViT), 3 epochs": "89.00 92.48 97.33",
    "FedHPL (ViT), 4 epochs": "88.17 92.27 96.67",
    "FedHPL (ViT), 5 epochs": "86.63 91.73 96.63",
}


def get_table(variant: str = "small"):
    rows = [*fedhpl.both(variant), *(row for n in (2, 3, 4, 5) for row in fedhpl.both(variant, f", {n} epochs", epochs=n))]
    columns = (fedhpl.column(fedhpl.CIFAR10, 0.1, variant),)
    paper = fedhpl.published(PAPER, "Table 14", columns, fedhpl.SPREAD, [[measure] for measure in fedhpl.SPREAD])
    return fedhpl.table("FedHPL, Table 14", variant, rows, columns, fedhpl.SPREAD, paper=paper, differ=("epochs", "network"))
