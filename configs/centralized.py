"""Centralized training on scikit-learn's handwritten digits: the upper bound for the federated configs.

Command:  fedjax-core run centralized --workdir=runs/centralized
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: CIFAR-10 with ResNet-8 (3x3 stem), SGD at
          0.01, batch 64, for as many epochs as FedSKC's clients train together (needs its files).
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="centralized", epochs=2, batch=32)
    if variant == "paper":
        config.data.update(source="cifar10", clients=20, partition="dirichlet(alpha=0.2)")
        config.models = ("resnet8",)
        config.optimizer.lr = 0.01
        config.method = dict(
            name="centralized", epochs=4, batch=64
        )  # 40 % of the clients, 10 epochs: 4 passes over the data a round
        config.rounds = 200
    return config
