"""Figure 11 of the FedPFT paper, the number n_kappa of prompts; and n_rho of the contrast, which the arXiv version varies too.

Command:  python -m methods.table --table=configs/tables/fedpft_figure11.py --workdir=runs/fedpft --variant=paper
Variants: see `fedpft.py`. The values, and the accuracies, are in the figures alone: these are ours.
"""

from configs import fedpft_digits
from configs.tables import fedpft
from configs.tables.base import Row

N_KAPPA = (0, 1, 5, 10, 20, 40)
N_RHO = (0, 1, 5, 10, 20, 40)


def get_table(variant: str = "small"):
    rows = [Row(f"n_kappa {n}", fedpft_digits.get_config, {"method.prompts": n}) for n in N_KAPPA]
    rows += [Row(f"n_rho {n}", fedpft_digits.get_config, fedpft.CONTRAST | {"method.contrast.prompts": n}) for n in N_RHO]
    columns = tuple(fedpft.dirichlet(data, a, variant) for data in (fedpft.CIFAR10, fedpft.CIFAR100) for a in (0.1, 0.5, 1.0))
    return fedpft.table("FedPFT, Figure 11", variant, rows, columns)
