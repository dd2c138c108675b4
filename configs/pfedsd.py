"""pFedSD on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/pfedsd.py --workdir=runs/pfedsd
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: FedPFT's protocol: CIFAR-10, 40 clients with
          500 + 100 images and one label distribution each, ResNet-8 with the 7x7 stem, 5 local
          epochs, batch 100, SGD 0.1, 1000 rounds, all clients in every round; lambda = 1 and tau =
          1, the defaults of its authors' code (Fling has 0.5 and 3).
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="pfedsd", lam=0.5, temperature=3.0, epochs=5, batch=32)
    if variant == "paper":
        base.as_in_fedpft(config)
        config.method.update(lam=1.0, temperature=1.0)
    return config
