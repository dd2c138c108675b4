"""FedPFT, Figure 8: the partition of 10 and of 50 classes over 20 clients, for three alphas.

Command:  fedjax-core table --table=configs/tables/fedpft/figure8.py --workdir=runs/fedpft_partitions
          fedjax-core analyse RUN RUN ... --what=partition --out=DIR
Variants: small, smoke and paper are equal: black images and one round of one epoch, because the
          figure shows only labels.
"""

from configs import fedavg
from configs.tables.base import Column, Row, Table
from configs.tables.fedpft import all_methods as fedpft


def get_table(variant: str = "small") -> Table:
    changes = {
        **fedpft.SHARED,
        "data.clients": 20,
        "data.examples": None,
        "models": ("mlp(widths=(4,))",),
        "method.epochs": 1,
        "method.batch": 100,
        "rounds": 1,
        "evaluation.every": 1,
    }
    columns = tuple(
        Column(
            f"{classes} classes, alpha {alpha}",
            {
                "data.source": f"blank(shape=(2, 2, 1), classes={classes}, rows=5000)",
                "data.partition": f"dirichlet_clients(alpha={alpha}, train_examples=500, test_examples=100)",
            },
        )
        for classes in (10, 50)
        for alpha in (0.1, 0.5, 1.0)
    )
    return Table("FedPFT, Figure 8", (Row("FedAvg", fedavg.get_config),), columns, (fedpft.LAST,), (0,), changes)
