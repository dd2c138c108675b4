"""FedDF on scikit-learn's handwritten digits: 0 to 6 on 20 clients, Dirichlet(0.5); 7 to 9 are public, their labels unread.

Command:  python -m methods.main --config=configs/feddf.py --workdir=runs/feddf
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds), with two architectures; paper: the authors' setting for
          CIFAR-10: 20 clients, Dirichlet(1), 8 per round, ResNet-8, 40 local epochs of batch 64, SGD
          0.1, 100 rounds; the images of CIFAR-100 are public, with 25 epochs of batch 128, of the
          authors' 10,000 steps at most.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.data.source = "only(of='digits', classes=(0, 1, 2, 3, 4, 5, 6))"
    config.public = "only(of='digits', classes=(7, 8, 9))"
    config.method = dict(name="feddf", epochs=5, batch=32, server_epochs=20, server_batch=128, server_lr=1e-3)
    if variant == "smoke":
        config.models = base.SMOKE_PAIR
        config.method.update(server_epochs=2)
        config.evaluation.scopes = ("own", "all")
    if variant == "paper":
        config.data.update(source="cifar10", clients=20, partition="dirichlet(alpha=1.0)")
        config.public = "cifar100"
        config.models = ("resnet8",)
        config.method.update(epochs=40, batch=64, server_epochs=25)
        config.rounds = 100
    return config
