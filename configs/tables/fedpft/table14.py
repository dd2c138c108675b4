"""FedPFT, Table 14: seconds per round, on CIFAR-100 with ResNet-10.

Command:  fedjax-core table --table=configs/tables/fedpft/table14.py --workdir=runs/fedpft_time --variant=paper
Variants: see `all_methods.py`; 100 rounds in paper. The last section of the table has the seconds,
          without compilation. The accuracies after so few rounds are not in the paper.
"""

from typing import Any

from configs.tables.fedpft import all_methods as fedpft

PAPER = {"FedAvg": 50.10, "FedPer": 51.81, "FedBN": 52.65, "FedRoD": 54.76, "FedCAC": 55.35, "FedPFT": 51.61}  # four RTX 2080


def get_table(variant: str = "small"):
    rows = tuple(row for row in fedpft.ROWS if row.label in PAPER)
    short: dict[str, Any] = {"rounds": 100, "evaluation__every": 100} if variant == "paper" else {}
    column = fedpft.dirichlet(fedpft.CIFAR100, 0.5, variant, **short)
    printed = ", ".join(f"{name} {seconds:.2f}" for name, seconds in PAPER.items())
    note = f"Seconds per round as published, on four RTX 2080: {printed}."
    return fedpft.table("FedPFT, Table 14", variant, rows, (column,), (fedpft.LAST,), note=note)
