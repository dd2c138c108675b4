"""FedNH on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run fednh --workdir=runs/fednh
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: a row of FedSKC's tables: CIFAR-10, 20
          clients, Dirichlet(0.2), 40 % per round, ResNet-8, 10 local epochs, batch 64, plain SGD at
          0.01, 200 rounds; rho = 0.9, a scale from 20 and gradients clipped at norm 10, the
          authors' for ResNet-18.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fednh", epochs=5, batch=32, rho=0.9, scale=20.0)
    if variant == "paper":
        base.as_in_fedskc(config)
        config.optimizer.clip = 10.0
    return config
