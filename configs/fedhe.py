"""FedHe on scikit-learn's handwritten digits: 20 clients with two architectures, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedhe.py --workdir=runs/fedhe
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: FedHPL's setting for mixed models: 5 clients
          with ResNet-18/34/50/34/18 on CIFAR-10 at 32 px, SGD 0.01 with momentum 0.9 and weight
          decay 1e-4, batch 16, 1 local epoch, 100 rounds; alpha = 1, as in its authors' scripts.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.models = ("mlp", "cnn(widths=(8, 16), dense=32)")
    config.method = dict(name="fedhe", alpha=0.5, epochs=5, batch=32)
    config.evaluation.scopes = ("own", "all")
    if variant == "smoke":
        config.models = base.SMOKE_PAIR
        config.method.update(epochs=1)
    if variant == "paper":
        base.as_in_fedhpl(config, stem="cifar")
        config.method.update(epochs=1, alpha=1.0)
    return config
