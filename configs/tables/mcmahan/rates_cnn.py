"""The rates behind `table1_cnn.py`.

Command:  fedjax-core table mcmahan/rates_cnn --workdir=runs/rates_cnn --set=data.dir=DIR --only="rate 0.1/IID - B 10 - C 0.1"
Variants: see `rates_2nn.py`.
"""

from configs.tables.base import Table
from configs.tables.mcmahan import rates_2nn as rates
from configs.tables.mcmahan import table1_cnn as half


def get_table(variant: str = "small") -> Table:
    return rates.table("Rates of FedAvg on MNIST, CNN", variant, half.shared(variant), half.PUBLISHED, half.TARGET)
