"""FedProto with a global model on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedproto_g.py --workdir=runs/fedproto_g
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: a row of FedSKC's tables: CIFAR-10, 20
          clients, Dirichlet(0.2), 40 % per round, ResNet-8, 10 local epochs, batch 64, plain SGD at
          0.01, 200 rounds; lam = 0.1, the authors' for CIFAR-10.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedproto_g", epochs=5, batch=32, lam=1.0)
    if variant == "paper":
        base.as_in_fedskc(config)
        config.method.update(lam=0.1)
    return config
