"""FedPFT, Table 6: linear heads on FedPFT+Con's features before and after either prompts.

Command:  fedjax-core table --table=configs/tables/fedpft/table6.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`. The paper's last column is printed as alpha 0.5; Tables 4
          and 8 of its arXiv version show that it is 1.0.
"""

from configs.tables.base import Measure
from configs.tables.fedpft import all_methods as fedpft

FEATURES = {"none": "extractor", "p_kappa": "features", "p_rho": "contrast"}
PAPER = {
    "none": "87.69 77.12 73.93  64.08 46.50 40.79",
    "p_kappa": "87.83 77.25 74.02  64.12 46.43 40.95",
    "p_rho": "87.82 77.25 74.02  64.18 46.40 40.95",
}


def get_table(variant: str = "small"):
    columns = tuple(fedpft.dirichlet(data, a, variant) for data in (fedpft.CIFAR10, fedpft.CIFAR100) for a in (0.1, 0.5, 1.0))
    measures = tuple(Measure(f"probe, {what}", (f"analysis:probe(key={key!r})",)) for what, key in FEATURES.items())
    lines = zip(*(PAPER[what].split() for what in FEATURES), strict=True)
    numbers = {fedpft.FEDPFT_CON.label: " ".join(" ".join(of_column) for of_column in lines)}
    paper = fedpft.published(numbers, "Table 6", columns, measures, measures)
    return fedpft.table("FedPFT, Table 6", variant, (fedpft.FEDPFT_CON,), columns, measures, paper=paper)
