"""FedHPL, Figure 3b: local training on fractions of the examples, on all of them, and FedHPL.

Command:  fedjax-core table --table=configs/tables/fedhpl/figure3b.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`. The accuracies and the fractions are only in the figure. The
          partition is IID.
"""

from configs.tables.fedhpl import all_methods as fedhpl

ROWS = {"paper": 50_000, "small": 5000, "smoke": 200}


def get_table(variant: str = "small"):
    networks = fedhpl.homogeneous(variant)
    rows = []
    for percent in (10, 20, 40, 60, 80):
        rows.append(fedhpl.local(f"Local, {percent} %", {**networks, "data.examples": ROWS[variant] * percent // 100}))
    rows += [fedhpl.local("Local", networks), fedhpl.fedhpl("FedHPL", networks)]
    columns = (fedhpl.column(fedhpl.CIFAR10, "IID", variant),)
    return fedhpl.table("FedHPL, Figure 3b", variant, rows, columns, fedhpl.SPREAD, differ=("data",))
