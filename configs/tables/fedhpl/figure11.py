"""FedHPL, Figures 3a and 11: number of prompts before the first block (shallow) or each (deep).

Command:  fedjax-core table --table=configs/tables/fedhpl/figure11.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`. Lowest, mean and highest client in the last and in the best round.
          The accuracies and the numbers of prompts are only in the figures.
"""

from configs.tables.base import Measure
from configs.tables.fedhpl import all_methods as fedhpl

MEASURES = tuple(
    Measure(f"{what}, {measure.label}", measure.scores, statistic)
    for what, statistic in (("final", "last"), ("top1", "best"))
    for measure in fedhpl.SPREAD
)


def get_table(variant: str = "small"):
    rows = []
    for name, option in (("shallow", ", deep=False"), ("deep", "")):
        for n in (1, 3, 5, 10):
            rows.append(fedhpl.fedhpl(f"{name}, n {n}", fedhpl.heterogeneous(variant, f"prompts={n}{option}")))
    columns = (fedhpl.column(fedhpl.CIFAR10, "Dir", variant),)
    return fedhpl.table("FedHPL, Figure 11", variant, rows, columns, MEASURES, differ=("network",))
