"""FedPFT, Table 8, the rate of each row chosen from the paper's grid on validation examples.

Command:  fedjax-core table --table=configs/tables/fedpft/table8_tuned.py --workdir=runs/fedpft_tuned --variant=paper
Variants: see `all_methods.py`. The paper chooses each method's rate among 0.1, 0.01 and 0.001, and
          does not say on which examples; here a tenth of each client's training examples.
"""

from configs.tables.fedpft import all_methods as fedpft
from configs.tables.fedpft import table8


def get_table(variant: str = "small"):
    return fedpft.choose_rates(table8.get_table(variant))
