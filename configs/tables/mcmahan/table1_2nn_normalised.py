"""McMahan et al. (2017), Table 1, upper half, with normalised pixels.

Command:  fedjax-core table mcmahan/table1_2nn_normalised --workdir=runs/mcmahan_normalised --set=data.dir=DIR
Variants: see `table1_2nn.py`, which differs only in its pixels in [0, 1]. Here they are normalised
          by the training set's mean and deviation.
"""

from configs.tables.base import Table
from configs.tables.mcmahan import table1_2nn as half

RATES = {  # per cell, in the order of `half.PUBLISHED`
    0.0: (0.464, 0.0464, 0.1, 0.0215),
    0.1: (0.215, 0.1, 0.215, 0.1),
    0.2: (0.464, 0.1, 0.464, 0.1),
    0.5: (0.464, 0.1, 0.215, 0.1),
    1.0: (0.464, 0.1, 0.464, 0.1),
}


def get_table(variant: str = "small") -> Table:
    return half.table("FedAvg on MNIST, 2NN, normalised pixels", variant, half.shared(variant, normalise="data"), RATES)
