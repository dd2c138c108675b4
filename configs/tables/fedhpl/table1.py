"""FedHPL, Table 1: one network for all clients: accuracy on three data sets and three partitions.

Command:  fedjax-core table --table=configs/tables/fedhpl/table1.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`. `parameters.py` has the paper's parameter counts.
"""

from configs.tables.fedhpl import all_methods as fedhpl


def get_table(variant: str = "small"):
    columns = fedhpl.columns(variant)
    paper = fedhpl.published(fedhpl.TABLE1, "Table 1", columns)
    return fedhpl.table(
        "FedHPL, Table 1", variant, fedhpl.one_network(variant), columns, paper=paper, differ=("rounds", "epochs", "network")
    )
