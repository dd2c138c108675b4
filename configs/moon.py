"""MOON on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run moon --workdir=runs/moon
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: a row of FedSKC's tables: CIFAR-10, 20
          clients, Dirichlet(0.2), 40 % per round, ResNet-8, 10 local epochs, batch 64, plain SGD at
          0.01, 200 rounds; mu = 5, tau = 0.5 and a projection to 256, the authors' for CIFAR-10.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="moon", epochs=5, batch=32, mu=5.0, tau=0.5, projection=256)
    if variant == "paper":
        base.as_in_fedskc(config)
    return config
