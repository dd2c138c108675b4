"""FedPFT, Table 12: CIFAR-10 with ResNet-18.

Command:  fedjax-core table --table=configs/tables/fedpft/table12.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`.
"""

from configs.tables.fedpft import all_methods as fedpft
from configs.tables.fedpft.table11 import ROWS

PAPER = {
    "FedPer": "82.80 65.35 61.83",
    "FedBN": "78.10 55.38 56.88",
    "FedRoD": "83.50 67.55 62.05",
    "FedCAC": "82.60 63.27 60.53",
    "FedPFT": "83.52 68.93 64.95",
}


def get_table(variant: str = "small"):
    columns = tuple(fedpft.dirichlet(fedpft.CIFAR10, a, variant, ", ResNet-18", "resnet18") for a in (0.1, 0.5, 1.0))
    return fedpft.table("FedPFT, Table 12", variant, ROWS, columns, paper=fedpft.published(PAPER, "Table 12", columns))
