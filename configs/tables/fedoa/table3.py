"""FedOA, Table 3: lambda, with reading comprehension left out.

Command:  fedjax-core table --table=configs/tables/fedoa/table3.py --workdir=runs/fedoa --variant=paper --set=data.dir=DIR
Variants: see `all_methods.py`. The number for lambda 0.5 is from another run than Table 2's. Lambda
          0 would be local training.
"""

from configs.tables.fedoa import all_methods as fedoa

PAPER = {"0.01": "61.14", "0.1": "66.16", "0.5": "67.61", "1": "69.05", "2": "69.90"}


def get_table(variant: str = "small"):
    rows, columns = [fedoa.fedoa_row(f"lambda {lam}", lam=float(lam)) for lam in PAPER], fedoa.columns(variant, [fedoa.READING])
    numbers = {f"lambda {lam}": number for lam, number in PAPER.items()}
    paper = fedoa.published(numbers, "Table 3", columns, fedoa.MEASURES[variant])
    return fedoa.table("FedOA, Table 3", variant, rows, columns, paper=paper, note=fedoa.NOTE)
