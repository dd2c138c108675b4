"""FedPFT, Table 9: FedAvg with a personal linear layer before the classifier.

Command:  fedjax-core table --table=configs/tables/fedpft/table9.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`. CIFAR-10 and CIFAR-100. The other rows are also in Tables 2, 3 and
          8.
"""

from configs.tables.fedpft import all_methods as fedpft

PAPER = {
    "FedAvg": "60.39±1.46 60.41±1.36 60.91±0.72  34.91±0.86 32.78±0.23 33.94±0.39",
    "Local": "81.91±3.09 60.15±0.86 52.24±0.41  47.61±0.96 22.65±0.51 18.76±0.63",
    "FedAvg+Linear": "85.96±2.23 71.17±1.28 67.63±0.83  58.07±0.41 37.09±0.85 31.23±0.24",
    "FedPFT": "87.23±2.69 74.10±1.95 69.23±0.76  60.98±0.39 44.87±0.76 41.83±0.37",
    "FedPFT+Con": "88.60±2.19 77.54±1.88 74.81±0.77  62.03±1.41 47.98±0.78 44.29±0.74",
}


def get_table(variant: str = "small"):
    rows = (fedpft.FEDAVG, fedpft.LOCAL, fedpft.LINEAR, fedpft.FEDPFT, fedpft.FEDPFT_CON)
    columns = tuple(fedpft.dirichlet(data, a, variant) for data in (fedpft.CIFAR10, fedpft.CIFAR100) for a in (0.1, 0.5, 1.0))
    return fedpft.table("FedPFT, Table 9", variant, rows, columns, paper=fedpft.published(PAPER, "Table 9", columns))
