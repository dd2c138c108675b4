"""FedRCL on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run fedrcl --workdir=runs/fedrcl
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: a row of FedSKC's tables: CIFAR-10, 20
          clients, Dirichlet(0.2), 40 % per round, ResNet-8, 10 local epochs, batch 64, plain SGD at
          0.01, 200 rounds; the authors' tau = 0.05, lam = 0.7, beta = 1, and gradients clipped at
          norm 10.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedrcl", epochs=5, batch=32, tau=0.05, lam=0.7, contrast=1.0, beta=1.0)
    if variant == "paper":
        base.as_in_fedskc(config)
        config.optimizer.clip = 10.0
    return config
