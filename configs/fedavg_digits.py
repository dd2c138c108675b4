"""FedAvg on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 a round. Runs anywhere, offline.

Command:  python -m methods.main --config=configs/fedavg_digits.py --workdir=runs/fedavg
Variants: small (the default); smoke (seconds); paper: McMahan et al.'s MNIST 2NN, 100 clients, 10 a round, shards of two classes.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedavg", epochs=5, batch=32, weights="samples")
    if variant == "paper":
        config.data.update(source="mnist", clients=100, partition="shards(shards_per_client=2)")
        config.models = ("mlp(hidden=(200, 200))",)
        config.cohort.fraction = 0.1
        config.method.batch = 10
        config.rounds = 1000
    return config
