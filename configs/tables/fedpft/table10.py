"""FedPFT, Table 10: feature shift: PACS on 4 clients, DomainNet on 6, one domain each.

Command:  fedjax-core table --table=configs/tables/fedpft/table10.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`. 1000 + 500 images per client; in small 200 + 100, in smoke digits,
          partitioned by class. The paper gives neither network nor image size; here ResNet-8 with
          the 7x7 stem and 64 x 64 pixels. Nor does it give DomainNet's classes; all classes of the
          folder are used (ten in public code). Both data sets are folders DOMAIN/CLASS/*; a part of
          each domain with 500 images becomes the test set.

PACS from one file: --set="/pacs:data.source=npz(path='pacs64.npz', test_fraction=0.32)".
"""

from configs.tables.base import Column
from configs.tables.fedpft import all_methods as fedpft

DATA = {"PACS": (4, "PACS", 0.32), "DomainNet": (6, "DomainNet", 0.25)}  # clients, folder, test fraction
PAPER = {  # per column: origin, match
    "FedAvg": "71.48 75.49  63.53 67.17",
    "FedPer": "74.86 75.31  65.70 65.67",
    "FedBN": "73.91 74.71  67.57 68.57",
    "FedCAC": "74.94 75.94  67.80 68.53",
    "FedPFT": "77.67 77.64  70.37 70.57",
}


def column(label: str, variant: str) -> Column:
    """Returns a data set with one domain per client."""
    clients, folder, tests = DATA[label]
    train, test = {"paper": (1000, 500)}.get(variant, fedpft.EXAMPLES[variant])
    if variant == "smoke":
        split = {"data.partition": f"dirichlet_clients(alpha=0.5, train_examples={train}, test_examples={test})"}
    else:
        split = {
            "data.source": f"folder(path={folder!r}, domains=True, size=64, test_fraction={tests})",
            "data.partition": f"by_domain(train_examples={train}, test_examples={test})",
            "data.examples": None,
        }
    return Column(label, {"data.clients": clients, **split, **fedpft.network("resnet8", variant)})


def get_table(variant: str = "small"):
    rows = (fedpft.FEDAVG, fedpft.FEDPER, fedpft.FEDBN, fedpft.FEDCAC, fedpft.FEDPFT)
    columns, measures = tuple(column(label, variant) for label in DATA), (fedpft.ORIGIN, fedpft.MATCH)
    paper = fedpft.published(PAPER, "Table 10", columns, measures, measures)
    return fedpft.table("FedPFT, Table 10", variant, rows, columns, measures, paper=paper)
