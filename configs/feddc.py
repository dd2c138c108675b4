"""FedDC on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/feddc.py --workdir=runs/feddc
Expect:   see configs/RESULTS.md.
Variants: small (the default), with alpha = 1, as FedDyn's; smoke (seconds); paper: the authors'
          script for CIFAR-10: 100 clients, IID, 15 per round, a CNN of two layers of 64 channels
          with 384 and 192 units, flips and crops (theirs crop every second image), 5 local epochs
          of batch 50, SGD at 0.1 with decay 0.998, weight decay 0.001 and gradients clipped at norm
          10, alpha = 0.01, 600 rounds, and the mean of the round's models scored, which is one of
          three that the script logs.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="feddc", epochs=5, batch=32, alpha=1.0, score="server")
    if variant == "paper":
        config.data.update(source="cifar10", clients=100, partition="iid")
        config.models = ("cnn(widths=(64, 64), dense=(384, 192), kernel=5, pool='each')",)
        config.optimizer.update(lr=0.1, decay=0.998, weight_decay=1e-3, clip=10.0)
        config.cohort.fraction = 0.15
        config.augment = "crop(padding=4) | flip"
        config.method.update(batch=50, alpha=0.01, score="active_mean")
        config.rounds = 600
    return config
