"""FedCP on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run fedcp --workdir=runs/fedcp
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: its authors' script: MNIST, 20 clients,
          Dirichlet(0.1), all in every round, a CNN, one local epoch, batch 10, SGD 0.005, 1000
          rounds; lambda = 5.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedcp", lam=5.0, epochs=5, batch=32)
    if variant == "paper":
        base.as_in_pfllib(config)
        config.data.source = "mnist"
        config.rounds = 1000
    return config
