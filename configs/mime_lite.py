"""MimeLite on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/mime_lite.py --workdir=runs/mime_lite
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: FL-Simulator's CIFAR-10, which has no MimeLite:
          100 clients, Dirichlet(0.6), 10 per round, a ResNet-18 with the 7x7 stem and two groups in
          each group normalization, crops and flips, 5 local epochs of batch 50, SGD at 0.1 with
          decay 0.998, weight decay 0.001 and clipping at norm 10, 1000 rounds.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(
        name="mime_lite", base="momentum", b1=0.9, b2=0.99, tau=1e-3, server_lr=1.0, epochs=5, batch=32, weights="uniform"
    )
    if variant == "paper":
        base.as_in_fl_simulator(config)
    return config
