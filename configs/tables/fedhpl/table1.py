"""Table 1 of the FedHPL paper, one network for all: accuracy on three data sets and three ways to divide them.

Command:  fedjax-core table --table=configs/tables/fedhpl/table1.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`. The parameters that the paper counts beside them are `parameters.py`.
"""

from configs.tables.fedhpl import all_methods as fedhpl


def get_table(variant: str = "small"):
    columns = fedhpl.columns(variant)
    paper = fedhpl.published(fedhpl.TABLE1, "Table 1", columns)
    return fedhpl.table(
        "FedHPL, Table 1", variant, fedhpl.one_network(variant), columns, paper=paper, differ=("rounds", "epochs", "network")
    )
