"""FedOA, Table 4: the distance of features, with reading comprehension left out.

Command:  fedjax-core table --table=configs/tables/fedoa/table4.py --workdir=runs/fedoa --variant=paper --set=data.dir=DIR
Variants: see `all_methods.py`. Cosine and Pearson are 1 - similarity.
"""

from configs.tables.fedoa import all_methods as fedoa

PAPER = {"Cosine": "51.16", "Pearson": "54.02", "L2": "67.61"}


def get_table(variant: str = "small"):
    rows, columns = [fedoa.fedoa_row(name, distance=name.lower()) for name in PAPER], fedoa.columns(variant, [fedoa.READING])
    paper = fedoa.published(PAPER, "Table 4", columns, fedoa.MEASURES[variant])
    return fedoa.table("FedOA, Table 4", variant, rows, columns, paper=paper, note=fedoa.NOTE)
