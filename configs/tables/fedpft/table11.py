"""FedPFT, Table 11: CIFAR-10 on 100 clients.

Command:  fedjax-core table --table=configs/tables/fedpft/table11.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`; small has 25 clients, smoke 10.
"""

from configs.tables.fedpft import all_methods as fedpft

CLIENTS = {"paper": 100, "small": 25, "smoke": 10}
ROWS = (fedpft.FEDPER, fedpft.FEDBN, fedpft.FEDROD, fedpft.FEDCAC, fedpft.FEDPFT)
PAPER = {
    "FedPer": "84.68 71.40 66.92",
    "FedBN": "85.51 70.85 67.18",
    "FedRoD": "87.58 75.23 70.99",
    "FedCAC": "87.40 72.82 69.06",
    "FedPFT": "88.43 76.49 72.53",
}


def get_table(variant: str = "small"):
    more = {"more": f", {CLIENTS[variant]} clients", "data__clients": CLIENTS[variant]}
    columns = tuple(fedpft.dirichlet(fedpft.CIFAR10, alpha, variant, **more) for alpha in (0.1, 0.5, 1.0))
    return fedpft.table("FedPFT, Table 11", variant, ROWS, columns, paper=fedpft.published(PAPER, "Table 11", columns))
