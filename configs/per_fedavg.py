"""Per-FedAvg on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run per_fedavg --workdir=runs/per_fedavg
Expect:   see configs/RESULTS.md.
Variants: small (the default), first-order, as the others; smoke (seconds); paper: FedPFT's
          protocol: CIFAR-10, 40 clients with 500 + 100 images and one label distribution each,
          ResNet-8 with the 7x7 stem, 5 local epochs, batch 100, SGD 0.1, 1000 rounds, all clients
          in every round; alpha = 0.02, pFedMe's authors' for its network of two layers.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="per_fedavg", alpha=0.1, hessian="none", adapt_steps=1, epochs=5, batch=32)
    if variant == "paper":
        base.as_in_fedpft(config)
        config.method.update(alpha=0.02)
    return config
