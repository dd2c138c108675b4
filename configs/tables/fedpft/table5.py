"""FedPFT, Table 5: new linear heads on each method's features, on CIFAR-10 and CIFAR-100.

Command:  fedjax-core table --table=configs/tables/fedpft/table5.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`. The probe uses the last round, and for FedPFT the input features of
          its classifier.
"""

from configs.tables.fedpft import all_methods as fedpft

PAPER = {
    "FedAvg": "85.01 72.52 68.38  59.50 37.40 32.33",
    "FedPer": "84.44 71.07 66.51  52.09 26.61 20.51",
    "FedBN": "84.52 70.15 66.51  57.86 35.24 30.28",
    "FedCAC": "85.22 71.56 66.98  56.86 34.64 29.35",
    "FedRoD": "82.79 67.07 63.12  56.88 33.99 29.22",
    "pFedSD": "85.86 72.42 68.12  60.07 37.33 31.99",
    "FedPFT": "85.52 72.59 69.57  61.60 43.14 38.47",
}
ARXIV = {"FedPFT+Con": "87.83 77.25 74.02  64.12 46.43 40.95"}


def get_table(variant: str = "small"):
    rows = (fedpft.FEDAVG, fedpft.FEDPER, fedpft.FEDBN, fedpft.FEDCAC, fedpft.FEDROD, fedpft.PFEDSD)
    rows += (fedpft.FEDPFT, fedpft.FEDPFT_CON)
    columns = tuple(fedpft.dirichlet(data, a, variant) for data in (fedpft.CIFAR10, fedpft.CIFAR100) for a in (0.1, 0.5, 1.0))
    probe = (fedpft.PROBE,)
    paper = fedpft.published(PAPER, "Table 5", columns, probe, probe)
    paper |= fedpft.published(ARXIV, "arXiv, separability of features", columns, probe, probe)
    return fedpft.table("FedPFT, Table 5", variant, rows, columns, probe, paper=paper)
