"""FedPFT, Figure 12: local epochs R_f of the transformation, out of five, at alpha 0.1.

Command:  fedjax-core table --table=configs/tables/fedpft/figure12.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`. FedPFT+Con as in the arXiv version. The accuracies are only in the
          figures, and so are the values of R_f but 0. R_f = 4 is FedPFT, 3 is FedPFT+Con and the
          arXiv version's FedPFT at this alpha. With R_f = 5 the extractor and the head are never trained.
"""

import dataclasses

from configs import fedpft as fedpft_config
from configs.tables.base import Row
from configs.tables.fedpft import all_methods as fedpft

EPOCHS = 5


def get_table(variant: str = "small"):
    rows, cells = [], {}
    columns = tuple(fedpft.dirichlet(data, 0.1, variant) for data in fedpft.SOURCES)
    for name, changes in (("FedPFT", {}), ("FedPFT+Con", fedpft.CONTRAST)):
        for r_f in range(EPOCHS + 1):
            rows.append(Row(f"{name}, R_f {r_f}", fedpft_config.get_config, changes))
            of_row = {"method.transform_epochs": r_f, "method.model_epochs": EPOCHS - r_f}
            cells |= {(rows[-1].label, column.label): of_row for column in columns}
    return dataclasses.replace(fedpft.table("FedPFT, Figure 12", variant, rows, columns), cells=cells)
