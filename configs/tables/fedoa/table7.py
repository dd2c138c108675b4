"""FedOA, Table 7: 30 clients, each with a fifth of a data set.

Command:  fedjax-core table --table=configs/tables/fedoa/table7.py --workdir=runs/fedoa --variant=paper --set=data.dir=DIR
Variants: see `all_methods.py`. The paper does not say how the sets are divided; here into five
          random parts. Its last column is the mean of the four: 55.70, 42.27, 46.01, 42.43, 32.97
          and 55.20.
"""

from configs.tables.fedoa import all_methods as fedoa

PAPER = {
    "FedIT": "41.50 78.75 44.50 58.04",
    "pFedMe": "31.44 61.36 37.75 38.52",
    "FedLoRA": "34.89 65.49 36.74 46.90",
    "PerAda": "31.41 61.33 37.67 39.30",
    "FedSDR": "29.19 42.79 32.94 26.95",
    "FedOA": "38.99 78.33 44.65 58.84",
}


def get_table(variant: str = "small"):
    columns, clients = fedoa.columns(variant), {"data.clients": 15 if variant == "smoke" else 30}
    paper = fedoa.published(PAPER, "Table 7", columns, fedoa.MEASURES[variant])
    rows = (fedoa.FEDIT, *fedoa.PERSONALISED)
    return fedoa.table("FedOA, Table 7", variant, rows, columns, changes=clients, paper=paper, note=fedoa.NOTE)
