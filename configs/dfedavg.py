"""DFedAvg on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/dfedavg.py --workdir=runs/dfedavg
Expect:   see configs/RESULTS.md.
Variants: small (the default), a random graph with 10 neighbors, of which 4 are there in a round;
          smoke (seconds); paper: D-PSGD as DisPFL compares it: CIFAR-10 with crops and flips, 100
          clients with Dirichlet(0.3), ResNet-18 with a group normalization, 10 neighbors, 5 local
          epochs of batch 128, SGD 0.1 with decay 0.998 and weight decay 0.0005, gradients clipped
          at norm 10, 500 rounds, all clients in every round; there the neighbors are drawn anew in
          each round by each client for itself, clients have equal sizes, and models are scored
          after training, before they are averaged.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="dfedavg", topology="random", degree=10, epochs=5, batch=32)
    if variant == "paper":
        config.data.update(source="cifar10", clients=100, partition="dirichlet(alpha=0.3)")
        config.models = ("resnet18(norm='group')",)
        config.optimizer.update(lr=0.1, decay=0.998, weight_decay=5e-4, clip=10.0)
        config.augment = "crop(padding=4) | flip"
        config.method.update(batch=128)
        config.cohort.fraction = 1.0
        config.rounds = 500
    return config
