"""FedHPL, Table 10, CIFAR-100 columns: numbers sent if all correct logits are sent.

Command:  fedjax-core table --table=configs/tables/fedhpl/table10_cifar100.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py` and `table10.py`; small and smoke use the data of the other tables.
"""

from configs.tables.fedhpl import all_methods as fedhpl
from configs.tables.fedhpl.table10 import sent

PAPER = {
    "FedHPL, each logit": "4.085 4.759 4.015 4.741 3.455 4.711",
    "FedHPL (ViT), each logit": "4.198 4.744 3.629 4.726 4.185 4.733",
}


def get_table(variant: str = "small"):
    paper = variant == "paper"
    return sent(variant, (fedhpl.CIFAR100 if paper else fedhpl.CIFAR10,), 100 if paper else 10, PAPER if paper else {})
