"""FedALA on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedala.py --workdir=runs/fedala
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: its authors' script, on CIFAR-10 in
          place of MNIST: 20 clients, Dirichlet(0.1), all in every round, a CNN, one local epoch,
          batch 10, SGD 0.005, 1000 rounds; the classifier is mixed, with eta = 1 on 80 % of the
          examples.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedala", top=("head",), mix_lr=1.0, fraction=0.8, epochs=5, batch=32)
    if variant == "paper":
        base.as_in_pfllib(config)
        config.data.source = "cifar10"
        config.rounds = 1000
    return config
