"""FedPFT, Figures 4 and 5: features of 10 clients by method and by kind of prompts, as t-SNE.

Command:  fedjax-core table --table=configs/tables/fedpft/figure4.py --workdir=runs/fedpft --variant=paper
          fedjax-core analyse RUN RUN ... --what=partition,tsne --out=DIR                                      (Figure 4)
          fedjax-core analyse CON --what=tsne --features=features --centroids --out=DIR                        (Figure 5a)
          fedjax-core analyse CON --what=tsne --features=contrast --centroids --out=DIR                        (Figure 5b)
Variants: see `all_methods.py`; paper has 1000 + 500 images per client. The paper does not give
          alpha; here it is 0.5.
"""

from configs import fedpft as fedpft_config
from configs.tables.base import Row
from configs.tables.fedpft import all_methods as fedpft


def get_table(variant: str = "small"):
    more = {}
    if variant == "paper":
        more["data__partition"] = "dirichlet_clients(alpha=0.5, train_examples=1000, test_examples=500)"
    column = fedpft.dirichlet(fedpft.CIFAR10, 0.5, variant, ", 10 clients", data__clients=10, **more)
    rows = (
        fedpft.FEDAVG,
        fedpft.FEDCAC,
        fedpft.FEDPER,
        fedpft.FEDPFT,
        Row("FedPFT, not in turns", fedpft_config.get_config, {"method.alternate": False}),
        Row("FedPFT, personal classifier", fedpft_config.get_config, {"method.classifier": "personal"}),
        fedpft.FEDPFT_CON,
    )
    return fedpft.table("FedPFT, Figures 4 and 5", variant, rows, (column,))
