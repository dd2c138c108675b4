"""FedSKC, Table IV: rounds to given accuracies, on columns of Table II (Dirichlet 0.2).

Command:  fedjax-core table --table=configs/tables/fedskc/table4.py --workdir=runs/fedskc --variant=paper
Variants: see `all_methods.py`. The runs are those of Table II. Rounds are interpolated between
          evaluations, which the paper's are not.
"""

from configs.tables.fedskc import all_methods as fedskc
from configs.tables.fedskc import table2

TARGETS = {"EMNIST, alpha 0.2": (0.7, 0.8), "CIFAR-100-LT, rho 50": (0.15, 0.3)}
PAPER = {
    "FedAvg": (51, 116, 24, 108),
    "FedProx": (46, 112, 21, 97),
    "SCAFFOLD": (53, 120, 30, 115),
    "FedOPT (Adam)": (50, 123, 25, 113),
    "MOON": (36, 75, 18, 85),
    "FedProto-G": (46, 107, 21, 92),
    "FedNH": (42, 96, 17, 79),
    "FedRCL": (36, 71, 17, 83),
    "FedSKC": (28, 63, 13, 68),
}


def get_table(variant: str = "small"):
    return fedskc.rounds_table("FedSKC, Table IV", table2.get_table(variant), TARGETS, PAPER, "FedSKC, Table IV")
