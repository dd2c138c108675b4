"""FedHPL, Table 2: different networks: accuracy on three data sets and three partitions.

Command:  fedjax-core table --table=configs/tables/fedhpl/table2.py --workdir=runs/fedhpl --variant=paper
Variants: see `all_methods.py`. `parameters.py` has the paper's parameter counts.
          The paper gives no batch for its tables. Batches are of 16 here; appendix C.5.5 has 32
          for one of the numbers (FedHPL with ViTs, SVHN, Dir: 90.75).
"""

from configs.tables.fedhpl import all_methods as fedhpl


def get_table(variant: str = "small"):
    columns = fedhpl.columns(variant)
    paper = fedhpl.published(fedhpl.TABLE2, "Table 2", columns)
    return fedhpl.table(
        "FedHPL, Table 2",
        variant,
        fedhpl.many_networks(variant),
        columns,
        paper=paper,
        differ=("rounds", "epochs", "network", "data"),
    )
