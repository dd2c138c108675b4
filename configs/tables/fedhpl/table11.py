"""FedHPL, Table 11: sending class means of correct logits against sending all of them.

Command:  fedjax-core table --table=configs/tables/fedhpl/table11.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`. Both are equal up to rounding. In the paper these are other runs
          than those of Tables 1 and 2.
"""

from configs.tables.fedhpl import all_methods as fedhpl

PAPER = {
    "FedHPL": "97.96 96.76 96.76  89.66 86.92 86.65  95.51 93.21 91.88",
    "FedHPL, each logit": "97.84 96.64 96.85  89.66 86.91 86.68  95.49 93.12 91.37",
    "FedHPL (ViT)": "96.93 96.06 96.03  88.86 85.88 85.24  94.32 91.49 89.40",
    "FedHPL (ViT), each logit": "96.68 96.23 95.38  88.78 85.87 85.46  94.38 91.40 89.62",
}


def get_table(variant: str = "small"):
    means, each = fedhpl.both(variant), fedhpl.both(variant, ", each logit", compress=False)
    rows = (means[0], each[0], means[1], each[1])
    columns = fedhpl.columns(variant)
    paper = fedhpl.published(PAPER, "Table 11", columns)
    return fedhpl.table("FedHPL, Table 11", variant, rows, columns, paper=paper, differ=("network",))
