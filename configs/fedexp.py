"""FedExP on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedexp.py --workdir=runs/fedexp
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: the authors' example run on CIFAR-10: 100
          clients, Dirichlet(0.5), 5 per round, a ResNet-18 with group normalization in two groups,
          crops and flips, 20 local steps of batch 50 (2 epochs of a mean client), SGD at 0.01 with
          decay 0.998, weight decay 1e-4 and gradients clipped at norm 10, weights by examples, eps
          = 5 times 0.001, 500 rounds.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedexp", epochs=5, batch=32, eps=1e-3, weights="uniform", score="last_two")
    if variant == "paper":
        config.data.update(source="cifar10", clients=100, partition="dirichlet(alpha=0.5)")
        config.models = ("resnet18(norm='group', groups=2)",)
        config.optimizer.update(lr=0.01, weight_decay=1e-4, clip=10.0, decay=0.998)
        config.augment = "crop(padding=4) | flip"
        config.cohort.fraction = 0.05
        config.method.update(epochs=2, batch=50, eps=0.005, weights="samples")
        config.rounds = 500
    return config
