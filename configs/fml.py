"""FML on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fml.py --workdir=runs/fml
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds), with two architectures; paper: FedPFT's protocol:
          CIFAR-10, 40 clients with 500 + 100 images and one label distribution each, ResNet-8 with
          the 7x7 stem, 5 local epochs, batch 100, SGD 0.1, 1000 rounds, all clients in every round;
          alpha and beta 0.5, as in the authors' code.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fml", alpha=0.5, beta=0.5, epochs=5, batch=32)
    if variant == "smoke":
        config.models = base.SMOKE_PAIR
    if variant == "paper":
        base.as_in_fedpft(config)
    return config
