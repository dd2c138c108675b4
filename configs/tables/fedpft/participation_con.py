"""FedPFT, arXiv version: FedPFT+Con with 90, 70 and 50 % of the clients in a round, at alpha 0.1.

Command:  fedjax-core table --table=configs/tables/fedpft/participation_con.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`. The arXiv version calls the method FedPFT.
"""

from configs.tables.fedpft import all_methods as fedpft
from configs.tables.fedpft.table13 import shares

PAPER = {
    "FedPFT+Con": "88.60±2.19 62.03±1.41 43.42±1.62",
    "FedPFT+Con, 90 %": "88.50±2.01 61.65±0.41 43.03±2.09",
    "FedPFT+Con, 70 %": "88.57±2.53 63.54±0.55 44.59±1.19",
    "FedPFT+Con, 50 %": "88.69±1.83 63.97±0.10 45.81±1.02",
}


def get_table(variant: str = "small"):
    columns = tuple(fedpft.dirichlet(data, 0.1, variant) for data in fedpft.SOURCES)
    paper = fedpft.published(PAPER, "arXiv, partial client participation", columns)
    return fedpft.table(
        "FedPFT+Con, partial participation", variant, shares(fedpft.FEDPFT_CON), columns, paper=paper, differ=("cohort",)
    )
