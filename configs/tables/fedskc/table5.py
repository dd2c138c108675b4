"""FedSKC, Table V: its ablation (Dirichlet 0.2): FedAvg, LCL, LCL + GDA, LCL + GPR, all three.

Command:  fedjax-core table --table=configs/tables/fedskc/table5.py --workdir=runs/fedskc --variant=paper
Variants: see `all_methods.py`. Our copy of the paper lacks the check marks of the rows; this is our
          reading of them. Further rows are not in the paper: single parts, and LCL without its
          normalisation U (Eq. 2). The last rows are as printed, with uniform weights of GDA and a
          GPR that shrinks the weights.
"""

from configs import fedskc as fedskc_config
from configs.tables.base import Row
from configs.tables.fedskc import all_methods as fedskc

OFF = {"method.gda.on": False, "method.gpr.on": False}
PARTS = {
    "LCL": OFF,
    "LCL + GDA": {"method.gpr.on": False},
    "LCL + GPR": {"method.gda.on": False},
    "LCL + GDA + GPR": {},
}
ALONE = {  # not in the paper
    "GDA": {"method.lcl.on": False, "method.gpr.on": False},
    "GPR": {"method.lcl.on": False, "method.gda.on": False},
    "LCL without U": OFF | {"method.lcl.scale": "none"},
}
PAPER = {
    "FedAvg": (78.61, 55.67),
    "LCL": (80.45, 56.83),
    "LCL + GDA": (81.63, 57.71),
    "LCL + GPR": (81.28, 57.40),
    "LCL + GDA + GPR": (82.35, 58.15),
}


def get_table(variant: str = "small"):
    columns = (fedskc.column("CIFAR-10, alpha 0.2", variant), fedskc.column("CIFAR-100, alpha 0.2", variant, "cifar100"))
    rows = [fedskc.BASELINES[0]]
    rows += [Row(label, fedskc_config.get_config, changes) for label, changes in (PARTS | ALONE).items()]
    printed = {"method.variant": "printed"}
    rows += [Row(f"{label}, printed", fedskc_config.get_config, changes | printed) for label, changes in PARTS.items()]
    paper = fedskc.published({row.label: PAPER.get(row.label) for row in rows}, columns)
    return fedskc.table("FedSKC, Table V", variant, columns, tuple(rows), paper=paper, source="FedSKC, Table V")
