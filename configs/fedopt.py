"""FedAdam on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedopt.py --workdir=runs/fedopt
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: a row of FedSKC's tables: CIFAR-10, 20
          clients, Dirichlet(0.2), 40 % per round, ResNet-8, 10 local epochs, batch 64, plain SGD at
          0.01, 200 rounds; FedAdam with the paper's b1 = 0.9, b2 = 0.99, tau = 0.001 and a server
          rate of 0.01 (the authors' code has b2 = 0.999, accumulators that begin at 0, and weights
          clients by examples).
"""

from ml_collections.config_dict import placeholder

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    own = dict(server_lr=placeholder(float), b1=placeholder(float))  # None: the server optimizer's default
    config.method = dict(name="fedopt", epochs=5, batch=32, server="adam", **own, b2=0.99, tau=1e-3)
    if variant == "paper":
        base.as_in_fedskc(config)
    return config
