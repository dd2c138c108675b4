"""Table 2 of the FedHPL paper, networks that differ: accuracy on three data sets and three ways to divide them.

Command:  python -m methods.table --table=configs/tables/fedhpl_table2.py --workdir=runs/fedhpl --variant=paper
Variants: see `fedhpl.py`. The parameters that the paper counts beside them are `fedhpl_parameters.py`.
"""

from configs.tables import fedhpl


def get_table(variant: str = "small"):
    columns = fedhpl.columns(variant)
    paper = fedhpl.published(fedhpl.TABLE2, "Table 2", columns)
    return fedhpl.table("FedHPL, Table 2", variant, fedhpl.many_networks(variant), columns, paper=paper)
