"""FedLC on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run fedlc --workdir=runs/fedlc
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: the protocol of FedSKC's tables, which have
          no row of it: CIFAR-10, 20 clients, Dirichlet(0.2), 40 % per round, ResNet-8, 10 local
          epochs, batch 64, plain SGD at 0.01, 200 rounds; tau = 1. method.variant
          names FedRS and logit adjustment.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedlc", epochs=5, batch=32, variant="fedlc", tau=1.0, alpha=0.5)
    if variant == "paper":
        base.as_in_fedskc(config)
    return config
