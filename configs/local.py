"""Local training on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), train alone, 8 per round.

Command:  fedjax-core run local --workdir=runs/local
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: FedPFT's protocol, 40 clients with 500 + 100
          images of CIFAR-10 and one label distribution each, ResNet-8 with the 7x7 stem, 5 local
          epochs, batch 100, all clients in every round.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="local", epochs=5, batch=32)
    config.evaluation.scopes = ("own", "all")
    if variant == "paper":
        config.data.update(
            source="cifar10", clients=40, partition="dirichlet_clients(alpha=0.5, train_examples=500, test_examples=100)"
        )
        config.models = ("resnet8(stem='imagenet')",)
        config.method = dict(name="local", epochs=5, batch=100)
        config.cohort.fraction = 1.0
        config.evaluation.scopes = ("own",)
        config.rounds = 1000
    return config
