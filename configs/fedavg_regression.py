"""FedAvg for regression on scikit-learn's diabetes patients: 10 clients, skewed sizes. Runs anywhere, offline.

Command:  fedjax-core run fedavg_regression --workdir=runs/fedavg_regression
Expect:   an R2 of about 0.48 on test examples, in seconds on two cores.
Variants: small (the default); smoke (seconds); paper: the same with all clients in each of 200
          rounds, since there is no published setting.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedavg", epochs=2, batch=16, weights="samples")
    config.data.update(source="diabetes", clients=10, partition="quantity_skew(alpha=1.0, min_size=8)")
    config.models = ("mlp(widths=(16,))",)
    config.optimizer.lr = 0.02
    if variant == "paper":
        config.cohort.fraction = 1.0
        config.rounds = 200
    return config
