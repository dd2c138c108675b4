"""FedSKC, Table III: rounds to given accuracies, on columns of Table I (Dirichlet 0.2).

Command:  fedjax-core table --table=configs/tables/fedskc/table3.py --workdir=runs/fedskc --variant=paper
Variants: see `all_methods.py`. The runs are those of Table I. Rounds are interpolated between
          evaluations, which the paper's are not.
"""

from configs.tables.fedskc import all_methods as fedskc
from configs.tables.fedskc import table1

TARGETS = {"CIFAR-10, alpha 0.2": (0.2, 0.4, 0.75), "CIFAR-100, alpha 0.2": (0.2, 0.5), "CIFAR-10-LT, rho 50": (0.2, 0.5)}
PAPER = {
    "FedAvg": (6, 23, 165, 18, 105, 6, 108),
    "FedProx": (6, 20, 162, 18, 98, 8, 103),
    "SCAFFOLD": (8, 27, 170, 25, 112, 8, 116),
    "FedOPT (Adam)": (7, 30, 165, 25, 115, 10, 122),
    "MOON": (5, 13, 108, 13, 76, 6, 85),
    "FedProto-G": (6, 20, 155, 18, 94, 6, 95),
    "FedNH": (6, 16, 119, 18, 83, 5, 77),
    "FedRCL": (5, 11, 97, 10, 70, 5, 75),
    "FedSKC": (3, 8, 84, 9, 64, 3, 61),
}


def get_table(variant: str = "small"):
    return fedskc.rounds_table("FedSKC, Table III", table1.get_table(variant), TARGETS, PAPER, "FedSKC, Table III")
