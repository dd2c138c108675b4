"""FedPFT, Figure 11: number n_kappa of prompts; in the arXiv version with the contrast, and n_rho.

Command:  fedjax-core table --table=configs/tables/fedpft/figure11.py --workdir=runs/fedpft --variant=paper
Variants: see `all_methods.py`. The paper shows values and accuracies only in its figures; the
          values here are ours. With the contrast, the other number is as in FedPFT+Con: n_rho 20, n_kappa 10.
"""

from configs import fedpft as fedpft_config
from configs.tables.base import Row
from configs.tables.fedpft import all_methods as fedpft

N_KAPPA = (0, 1, 5, 10, 20, 40)
N_RHO = (0, 1, 5, 10, 20, 40)


def get_table(variant: str = "small"):
    rows = [Row(f"n_kappa {n}", fedpft_config.get_config, {"method.prompts": n}) for n in N_KAPPA]
    rows += [Row(f"+Con, n_kappa {n}", fedpft_config.get_config, fedpft.CONTRAST | {"method.prompts": n}) for n in N_KAPPA]
    rows += [Row(f"n_rho {n}", fedpft_config.get_config, fedpft.CONTRAST | {"method.contrast.prompts": n}) for n in N_RHO]
    columns = tuple(fedpft.dirichlet(data, a, variant) for data in (fedpft.CIFAR10, fedpft.CIFAR100) for a in (0.1, 0.5, 1.0))
    return fedpft.table("FedPFT, Figure 11", variant, rows, columns)
