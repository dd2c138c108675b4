"""FedPFT, Figure 9: FedPFT+Con against two stages of 1000 rounds: contrast, classification.

Command:  fedjax-core table --table=configs/tables/fedpft/figure9.py --workdir=runs/fedpft --variant=paper
          fedjax-core analyse RUN RUN --what=curves --score=train/contrast --out=DIR      (also train/loss)
Variants: see `all_methods.py`. The accuracies are from the arXiv version; the loss curves are only
          in the figure.
"""

from configs import fedpft as fedpft_config
from configs.tables.base import Row
from configs.tables.fedpft import all_methods as fedpft

PAPER = {"FedPFT+Con": "62.03 47.98", "Two-stage": "53.43 43.87"}


def get_table(variant: str = "small"):
    rounds = fedpft.SETTINGS[variant]["rounds"]
    stages = fedpft.CONTRAST | {"method.alternate": False, "method.contrast.first": rounds, "rounds": 2 * rounds}
    rows = (fedpft.FEDPFT_CON, Row("Two-stage", fedpft_config.get_config, stages))
    columns = tuple(fedpft.dirichlet(fedpft.CIFAR100, alpha, variant) for alpha in (0.1, 0.5))
    paper = fedpft.published(PAPER, "arXiv, two-stage approach", columns)
    return fedpft.table("FedPFT, Figure 9", variant, rows, columns, paper=paper, differ=("rounds",))
