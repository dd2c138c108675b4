"""FedHPL, Figure 12: weight gamma and temperature of the distillation, shallow and deep prompts.

Command:  fedjax-core table --table=configs/tables/fedhpl/figure12.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`. Lowest, mean and highest client in the last and in the best round.
          The accuracies are only in the figure.
"""

from configs.tables.fedhpl import all_methods as fedhpl
from configs.tables.fedhpl.figure11 import MEASURES


def get_table(variant: str = "small"):
    rows = []
    for name, prompts in (("shallow", "prompts=3, deep=False"), ("deep", "prompts=3")):
        networks = fedhpl.heterogeneous(variant, prompts)
        rows.append(fedhpl.fedhpl(f"{name}, gamma 1, T 4.5", networks))
        rows += [fedhpl.fedhpl(f"{name}, gamma {gamma}", networks, gamma=gamma) for gamma in (0.0, 0.5, 1.5, 2.0)]
        rows += [fedhpl.fedhpl(f"{name}, T {t}", networks, temperature=t) for t in (1.5, 2.5, 3.5, 5.0)]
    columns = (fedhpl.column(fedhpl.CIFAR10, "Dir", variant),)
    return fedhpl.table("FedHPL, Figure 12", variant, rows, columns, MEASURES, differ=("network",))
