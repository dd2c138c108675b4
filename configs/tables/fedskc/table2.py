"""FedSKC, Table II: EMNIST (by merge, 47 labels) and long-tailed CIFAR-100 (Dirichlet 0.2).

Command:  fedjax-core table --table=configs/tables/fedskc/table2.py --workdir=runs/fedskc --variant=paper
Variants: see `all_methods.py`. The paper does not give the layers of its CNN for EMNIST; here it is
          the small CNN of the library.
"""

from configs.tables.fedskc import all_methods as fedskc

PAPER = {
    "FedAvg": (80.17, 84.76, 30.37, 32.67, 42.33),
    "FedProx": (80.03, 84.60, 30.41, 32.30, 42.60),
    "SCAFFOLD": (80.15, 84.74, 30.47, 32.22, 42.35),
    "FedOPT (Adam)": (80.69, 84.55, 30.10, 32.40, 42.23),
    "MOON": (82.33, 87.13, 31.89, 33.41, 43.57),
    "FedProto-G": (81.53, 85.29, 30.85, 32.95, 43.03),
    "FedNH": (81.79, 86.33, 32.33, 34.27, 43.89),
    "FedRCL": (82.63, 87.15, 32.28, 33.97, 44.18),
    "FedSKC": (83.75, 88.16, 33.20, 35.19, 45.08),
    "FedSKC (printed)": None,
}
EMNIST = "emnist(split='bymerge')"


def get_table(variant: str = "small"):
    columns = (
        fedskc.column("EMNIST, alpha 0.05", variant, EMNIST, alpha=0.05),
        fedskc.column("EMNIST, alpha 0.2", variant, EMNIST),
        fedskc.column("CIFAR-100-LT, rho 100", variant, "cifar100", long_tail=100.0),
        fedskc.column("CIFAR-100-LT, rho 50", variant, "cifar100", long_tail=50.0),
        fedskc.column("CIFAR-100-LT, rho 10", variant, "cifar100", long_tail=10.0),
    )
    paper = fedskc.published(PAPER, columns)
    return fedskc.table("FedSKC, Table II", variant, columns, paper=paper, source="FedSKC, Table II")
