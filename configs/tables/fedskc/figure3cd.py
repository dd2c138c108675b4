"""FedSKC, Figures 3c and 3d: all methods over alpha (CIFAR-10) and rho (CIFAR-10-LT).

Command:  fedjax-core table --table=configs/tables/fedskc/figure3cd.py --workdir=runs/fedskc --variant=paper
Variants: see `all_methods.py`. All columns except alpha 0.5 are also in Table I.
"""

from configs.tables.fedskc import all_methods as fedskc


def get_table(variant: str = "small"):
    columns = tuple(fedskc.column(f"CIFAR-10, alpha {alpha}", variant, alpha=alpha) for alpha in (0.05, 0.2, 0.5))
    columns += tuple(fedskc.column(f"CIFAR-10-LT, rho {rho:.0f}", variant, long_tail=rho) for rho in (100.0, 50.0, 10.0))
    return fedskc.table("FedSKC, Figures 3c and 3d", variant, columns)
