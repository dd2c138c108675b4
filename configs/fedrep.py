"""FedRep on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedrep.py --workdir=runs/fedrep
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: FedPFT's protocol: CIFAR-10, 40 clients with
          500 + 100 images and one label distribution each, ResNet-8 with the 7x7 stem, 4 local
          epochs for the head (its authors have 10) and 1 for the body, batch 100, SGD 0.1, 1000
          rounds, all clients in every round.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedrep", head_epochs=4, body_epochs=1, batch=32)
    if variant == "paper":
        base.as_in_fedpft(config)
    return config
