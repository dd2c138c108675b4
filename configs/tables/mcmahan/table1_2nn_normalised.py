"""Table 1 of McMahan et al. (2017), its upper half, with pixels normalised by the training set's mean and deviation.

Command:  fedjax-core table mcmahan/table1_2nn_normalised --workdir=runs/mcmahan_normalised --set=data.dir=DIR
Variants: see `table1_2nn.py`, which has pixels in [0, 1] and is the same otherwise.
"""

from configs.tables.base import Table
from configs.tables.mcmahan import table1_2nn as half

RATES = {  # of each cell, in the order of `half.PUBLISHED`
    0.0: (0.215, 0.0464, 0.1, 0.0464),
    0.1: (0.464, 0.1, 0.215, 0.1),
    0.2: (0.464, 0.1, 0.215, 0.1),
    0.5: (0.464, 0.1, 0.464, 0.1),
    1.0: (0.464, 0.1, 0.464, 0.1),
}


def get_table(variant: str = "small") -> Table:
    return half.table("FedAvg on MNIST, 2NN, normalised pixels", variant, half.shared(variant, normalise="data"), RATES)
