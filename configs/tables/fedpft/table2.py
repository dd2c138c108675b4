"""FedPFT, Tables 2 and 3: CIFAR-100 and Tiny-ImageNet, Dirichlet; Table 3 is the row FedPFT+Con.

Command:  fedjax-core table --table=configs/tables/fedpft/table2.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`.
"""

from configs.tables.fedpft import all_methods as fedpft

PAPER = {
    "FedAvg": "34.91±0.86 32.78±0.23 33.94±0.39  21.26±1.28 20.32±0.91 17.20±0.54",
    "Local": "47.61±0.96 22.65±0.51 18.76±0.63  24.07±0.62 8.75±0.30 6.87±0.28",
    "FedAMP": "46.68±1.06 24.74±0.58 18.22±0.41  27.85±0.71 10.70±0.32 7.13±0.21",
    "FedPer": "51.38±0.94 28.25±1.03 21.53±0.50  32.33±0.31 12.69±0.42 8.67±0.40",
    "FedRep": "51.25±1.37 26.97±0.33 20.63±0.42  30.83±1.05 12.14±0.28 8.37±0.25",
    "FedBN": "54.35±0.63 36.94±0.94 33.67±0.12  33.34±0.71 19.61±0.35 16.57±0.44",
    "FedRoD": "60.17±0.48 39.88±1.18 36.80±0.56  41.06±0.77 25.63±1.11 22.32±1.13",
    "pFedSD": "54.14±0.77 41.06±0.83 38.27±0.20  39.31±0.19 19.25±1.80 15.91±0.33",
    "pFedGate": "48.54±0.39 27.47±0.79 22.98±0.03  37.59±0.39 24.09±0.67 19.69±0.14",
    "FedCAC": "57.22±1.52 38.64±0.63 32.59±0.32  40.19±1.20 23.70±0.28 18.58±0.62",
    "pFedPT": "43.21±1.66 35.23±0.87 36.25±0.37  23.55±0.68 22.35±0.49 21.69±0.24",
    "FedPFT": "60.98±0.39 44.87±0.76 41.83±0.37  41.49±0.10 28.61±0.40 25.10±0.59",
}
TABLE_3 = {"FedPFT+Con": "62.03±1.41 47.98±0.78 44.29±0.74  43.42±1.62 32.44±0.58 27.84±0.41"}


def get_table(variant: str = "small"):
    columns = tuple(fedpft.dirichlet(data, a, variant) for data in (fedpft.CIFAR100, fedpft.TINY) for a in (0.1, 0.5, 1.0))
    paper = fedpft.published(PAPER, "Table 2", columns) | fedpft.published(TABLE_3, "Table 3", columns)
    return fedpft.table("FedPFT, Tables 2 and 3", variant, fedpft.ROWS, columns, paper=paper)
