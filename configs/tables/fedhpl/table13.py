"""FedHPL, Table 13: label skew, with backbones pre-trained without and with labels.

Command:  fedjax-core table --table=configs/tables/fedhpl/table13.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py` and, for MoCo-v3's files, `table12.py`; (1) has as many rounds as
          with labels, (2) has 50. Small and smoke use no files and omit these rows, which would
          equal the others.
"""

from configs.tables.fedhpl import all_methods as fedhpl
from configs.tables.fedhpl.table12 import self_supervised

PAPER = {  # alpha 0.1, 0.5, 1 per data set
    "FedHPL, MoCo-v3 (1)": "45.73 84.14 89.98  27.00 35.88 39.51  42.35 71.75 79.85",
    "FedHPL, MoCo-v3 (2)": "88.97 93.28 94.38  60.27 67.24 69.21  52.81 81.26 85.94",
    "FedHPL": "91.43 96.13 96.90  86.01 86.92 88.27  72.91 88.58 91.68",
    "FedHPL (ViT), MoCo-v3 (1)": "65.08 75.40 84.22  34.92 40.83 43.37  45.46 73.46 82.74",
    "FedHPL (ViT), MoCo-v3 (2)": "78.05 84.85 89.12  52.91 58.91 60.41  53.73 79.06 85.26",
    "FedHPL (ViT)": "92.48 95.51 96.23  84.65 85.61 86.66  68.87 87.20 90.32",
}


def get_table(variant: str = "small"):
    rows = []
    for kind, networks in fedhpl.KINDS.items():
        for name, rounds in (("(1)", None), ("(2)", 50)) if variant == "paper" else ():
            rows.append(fedhpl.fedhpl(f"FedHPL{kind}, MoCo-v3 {name}", self_supervised(variant, networks, rounds)))
        rows.append(fedhpl.fedhpl(f"FedHPL{kind}", networks(variant)))
    columns = fedhpl.columns(variant, (0.1, 0.5, 1.0))
    paper = fedhpl.published({row.label: PAPER[row.label] for row in rows}, "Table 13", columns)
    return fedhpl.table("FedHPL, Table 13", variant, rows, columns, paper=paper, differ=("rounds", "network"))
