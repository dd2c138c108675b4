"""FedHPL, Table 3, right: Local, FedHPL, and averages of prompts or heads among equal widths.

Command:  fedjax-core table --table=configs/tables/fedhpl/table3_policies.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`. The last row of each half, with both averages, is ours.
"""

from configs.tables.fedhpl import all_methods as fedhpl

PAPER = {
    "Local": "96.89 95.77 96.20",
    "FedHPL": "97.89 96.37 96.60",
    "FedHPL+P": "98.11 96.60 96.51",
    "FedHPL+H": "97.84 96.67 95.81",
    "Local (ViT)": "96.83 95.66 95.71",
    "FedHPL (ViT)": "97.06 96.10 95.75",
    "FedHPL+P (ViT)": "97.14 96.64 95.93",
    "FedHPL+H (ViT)": "97.10 96.25 95.84",
}


def get_table(variant: str = "small"):
    rows = []
    for kind, networks in fedhpl.KINDS.items():
        rows.append(fedhpl.local(f"Local{kind}", networks(variant)))
        rows.append(fedhpl.fedhpl(f"FedHPL{kind}", networks(variant)))
        for name, entries in (("+P", ("prompts",)), ("+H", ("head",)), ("+P+H", ("prompts", "head"))):
            rows.append(fedhpl.fedhpl(f"FedHPL{name}{kind}", networks(variant), average=entries))
    columns = tuple(fedhpl.column(fedhpl.CIFAR10, skew, variant) for skew in fedhpl.SKEWS)
    paper = dict.fromkeys(row.label for row in rows) | fedhpl.published(PAPER, "Table 3 (right)", columns)
    return fedhpl.table("FedHPL, Table 3 (right)", variant, rows, columns, paper=paper, differ=("network",))
