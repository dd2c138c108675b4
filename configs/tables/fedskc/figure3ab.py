"""FedSKC, Figures 3a and 3b: temperature tau (Eq. 3) and number M of similar clients (Eq. 1).

Command:  fedjax-core table --table=configs/tables/fedskc/figure3ab.py --workdir=runs/fedskc --variant=paper
Variants: see `all_methods.py`. CIFAR-10. The values of the paper's curves are only in its figure;
          its text names tau = 0.01 (NaN there), 0.07 to 0.11, and M = 0 and 1.
"""

from configs import fedskc as fedskc_config
from configs.tables.base import Row
from configs.tables.fedskc import all_methods as fedskc

TAUS = (0.01, 0.05, 0.07, 0.08, 0.09, 0.11, 0.2, 0.5)
NEIGHBOURS = (0, 1, 2, 4, 7)


def get_table(variant: str = "small"):
    rows = [Row(f"tau {tau}", fedskc_config.get_config, {"method.lcl.tau": tau}) for tau in TAUS]
    rows += [Row(f"M {m}", fedskc_config.get_config, {"method.knowledge.neighbours": m}) for m in NEIGHBOURS]
    return fedskc.table("FedSKC, Figures 3a and 3b", variant, (fedskc.column("CIFAR-10, alpha 0.2", variant),), tuple(rows))
