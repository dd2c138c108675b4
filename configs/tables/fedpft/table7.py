"""FedPFT, Table 7: clients with 2, 20 and 40 classes of CIFAR-10, CIFAR-100 and Tiny-ImageNet.

Command:  fedjax-core table --table=configs/tables/fedpft/table7.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`.
"""

from configs.tables.fedpft import all_methods as fedpft

PAPER = {
    "FedAvg": "54.33±3.03 34.27±0.44 18.05±0.23",
    "Local": "85.85±0.93 38.40±0.69 16.20±0.30",
    "FedAMP": "88.88±0.83 38.36±0.79 16.13±0.55",
    "FedPer": "87.51±0.95 41.54±0.74 20.25±0.65",
    "FedRep": "87.10±0.91 40.63±0.74 19.24±0.33",
    "FedBN": "87.02±1.41 47.75±1.03 24.91±0.48",
    "FedRoD": "88.06±1.70 52.55±0.92 32.25±0.80",
    "pFedSD": "89.97±1.45 52.30±1.18 30.27±0.78",
    "pFedGate": "89.15±0.76 43.73±0.14 22.42±0.83",
    "FedCAC": "89.77±1.14 49.07±0.87 30.83±0.42",
    "pFedPT": "86.29±1.11 39.92±0.33 21.38±0.98",
    "FedPFT": "89.67±1.96 57.62±1.18 36.13±1.32",
    "FedPFT+Con": "90.55±1.35 58.14±0.71 37.59±0.39",
}


def get_table(variant: str = "small"):
    columns = tuple(fedpft.pathological(data, variant) for data in fedpft.SOURCES)
    return fedpft.table("FedPFT, Table 7", variant, fedpft.ROWS, columns, paper=fedpft.published(PAPER, "Table 7", columns))
