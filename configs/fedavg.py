"""FedAvg on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round. Runs anywhere, offline.

Command:  fedjax-core run fedavg --workdir=runs/fedavg
Expect:   see configs/RESULTS.md; at least 93 % global test accuracy, in seconds on two cores.
Variants: small (the default); smoke (seconds); paper: McMahan et al. 2017's MNIST 2NN, 100 clients
          with two classes each, 10 per round, E = 1, B = 10 (needs MNIST's files).
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    paper = variant == "paper"
    config.method = dict(name="fedavg", epochs=1 if paper else 5, batch=10 if paper else 32, weights="samples")
    if paper:
        config.data.update(source="mnist", clients=100, partition="shards(shards_per_client=2)")
        config.models = ("mlp(widths=(200, 200))",)
        config.cohort.fraction = 0.1
        config.rounds = 1000
    return config
