"""FedPFT, Table 8: CIFAR-10, Dirichlet.

Command:  fedjax-core table --table=configs/tables/fedpft/table8.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`.
"""

from configs.tables.fedpft import all_methods as fedpft

PAPER = {
    "FedAvg": "60.39±1.46 60.41±1.36 60.91±0.72",
    "Local": "81.91±3.09 60.15±0.86 52.24±0.41",
    "FedAMP": "84.99±1.82 68.26±0.79 64.87±0.95",
    "FedPer": "84.43±0.47 68.80±0.49 64.92±0.66",
    "FedRep": "84.59±1.58 67.69±0.86 60.52±0.72",
    "FedBN": "83.55±2.32 66.79±1.08 62.20±0.67",
    "FedRoD": "86.23±2.12 72.34±1.77 68.45±1.94",
    "pFedSD": "86.34±2.61 71.97±2.07 67.21±1.89",
    "pFedGate": "87.25±1.91 71.98±1.61 67.85±0.87",
    "FedCAC": "86.82±1.18 69.83±0.46 65.39±0.51",
    "pFedPT": "82.38±2.91 67.33±1.33 64.37±1.22",
    "FedPFT": "87.23±2.69 74.10±1.95 69.23±0.76",
    "FedPFT+Con": "88.60±2.19 77.54±1.88 74.81±0.77",
}


def get_table(variant: str = "small"):
    columns = tuple(fedpft.dirichlet(fedpft.CIFAR10, alpha, variant) for alpha in (0.1, 0.5, 1.0))
    return fedpft.table("FedPFT, Table 8", variant, fedpft.ROWS, columns, paper=fedpft.published(PAPER, "Table 8", columns))
