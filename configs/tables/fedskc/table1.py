"""FedSKC, Table I: global test accuracy on CIFAR-10, CIFAR-100 and CIFAR-10-LT (alpha 0.2).

Command:  fedjax-core table --table=configs/tables/fedskc/table1.py --workdir=runs/fedskc --variant=paper
Variants: see `all_methods.py`. The columns of FC100 are in `table1_fc100.py`.
"""

from configs.tables.fedskc import all_methods as fedskc

PAPER = {
    "FedAvg": (73.55, 78.61, 52.47, 55.67, 53.09, 54.56, 62.78),
    "FedProx": (73.06, 78.90, 52.13, 55.28, 53.52, 54.36, 62.12),
    "SCAFFOLD": (73.48, 78.25, 52.27, 55.30, 53.10, 55.60, 63.19),
    "FedOPT (Adam)": (73.23, 78.80, 52.62, 55.15, 53.47, 54.71, 63.11),
    "MOON": (75.79, 81.14, 55.04, 57.26, 54.34, 57.88, 64.03),
    "FedProto-G": (74.69, 79.72, 53.67, 56.03, 54.12, 56.29, 63.95),
    "FedNH": (75.02, 80.66, 54.23, 56.89, 56.32, 58.75, 64.36),
    "FedRCL": (76.14, 81.30, 55.34, 57.31, 56.09, 58.39, 64.60),
    "FedSKC": (77.13, 82.35, 56.62, 58.15, 57.55, 60.04, 65.72),
    "FedSKC (printed)": None,
}


def get_table(variant: str = "small"):
    columns = (
        fedskc.column("CIFAR-10, alpha 0.05", variant, alpha=0.05),
        fedskc.column("CIFAR-10, alpha 0.2", variant),
        fedskc.column("CIFAR-100, alpha 0.05", variant, "cifar100", alpha=0.05),
        fedskc.column("CIFAR-100, alpha 0.2", variant, "cifar100"),
        fedskc.column("CIFAR-10-LT, rho 100", variant, long_tail=100.0),
        fedskc.column("CIFAR-10-LT, rho 50", variant, long_tail=50.0),
        fedskc.column("CIFAR-10-LT, rho 10", variant, long_tail=10.0),
    )
    paper = fedskc.published(PAPER, columns)
    return fedskc.table("FedSKC, Table I", variant, columns, paper=paper, source="FedSKC, Table I")
