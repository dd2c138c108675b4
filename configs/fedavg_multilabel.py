"""FedAvg on scikit-learn's synthetic multi-label examples: 20 clients, IID. Runs anywhere, offline.

Command:  fedjax-core run fedavg_multilabel --workdir=runs/fedavg_multilabel
Expect:   an average precision of about 0.65 (the mean over labels), in seconds on two cores.
Variants: small (the default); smoke (seconds); paper: the same with 100 clients and 10,000
          examples, since there is no published setting.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedavg", epochs=5, batch=32, weights="samples")
    config.data.update(source="multilabel", partition="iid")
    config.models = ("mlp(widths=(64,))",)
    config.optimizer.lr = 0.5
    if variant == "paper":
        config.data.update(source="multilabel(rows=10000)", clients=100)
        config.cohort.fraction = 0.1
    return config
