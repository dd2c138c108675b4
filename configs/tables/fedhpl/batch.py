"""FedHPL with batches of 16 and of 32: both comparisons in the paper's text on hyperparameters.

Command:  fedjax-core table --table=configs/tables/fedhpl/batch.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`; small and smoke lack SVHN and have only the other column.
"""

from configs.tables.fedhpl import all_methods as fedhpl

PAPER = {"Batch 16": {"CIFAR-10, IID": 97.89, "SVHN, Dir": 91.86}, "Batch 32": {"CIFAR-10, IID": 95.50, "SVHN, Dir": 90.75}}


def get_table(variant: str = "small"):
    mixed = fedhpl.heterogeneous(variant)
    rows = tuple(fedhpl.fedhpl(f"Batch {n}", fedhpl.homogeneous(variant), **({"batch": n} if n != 16 else {})) for n in (16, 32))
    columns = [fedhpl.column(fedhpl.CIFAR10, "IID", variant)]
    columns += [fedhpl.column(fedhpl.SVHN, "Dir", variant)] if variant == "paper" else []
    cells = {(row.label, "SVHN, Dir"): mixed for row in rows if len(columns) > 1}
    lines = {row: " ".join(str(of_row[c.label]) for c in columns) for row, of_row in PAPER.items()}
    paper = fedhpl.published(lines, "appendix C.5.5", columns)
    return fedhpl.table("FedHPL, batches", variant, rows, columns, cells=cells, paper=paper, differ=("batch",))
