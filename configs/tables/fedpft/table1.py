"""FedPFT, Table 1: the mismatch: as trained, with a new head, with a linear layer before the head.

Command:  fedjax-core table --table=configs/tables/fedpft/table1.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`. Analyses use the last round; heads and layers are refitted to their
          optimum.
"""

from configs.tables.fedpft import all_methods as fedpft

PAPER = {  # per column: probe, origin, match
    "FedAvg": "72.52 59.66 72.60  68.38 60.33 68.37",
    "FedPer": "71.07 68.86 71.03  66.51 64.83 66.75",
    "FedBN": "70.15 66.20 70.60  66.51 62.97 66.80",
    "FedCAC": "71.56 68.71 71.63  66.98 64.90 67.11",
    "FedPFT": "72.59 72.66 72.73  69.57 69.25 69.30",
    "FedPFT+Con": "77.25 77.06 77.68  74.02 73.88 74.75",
}


def get_table(variant: str = "small"):
    rows = (fedpft.FEDAVG, fedpft.FEDPER, fedpft.FEDBN, fedpft.FEDCAC, fedpft.FEDPFT, fedpft.FEDPFT_CON)
    columns = tuple(fedpft.dirichlet(fedpft.CIFAR10, alpha, variant) for alpha in (0.5, 1.0))
    measures = (fedpft.PROBE, fedpft.ORIGIN, fedpft.MATCH)
    paper = fedpft.published(PAPER, "Table 1", columns, measures, measures)
    return fedpft.table("FedPFT, Table 1", variant, rows, columns, measures, paper=paper)
