"""FedPAC on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedpac.py --workdir=runs/fedpac
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: the defaults of its authors' code for
          CIFAR-10, with Dirichlet(0.1) in place of their partition: 20 clients, all in each of 200
          rounds, a CNN of three layers of 16, 32 and 64 channels and 128 units (theirs has leaky
          ReLUs, less padding and a last kernel of 3), crops and flips, an epoch of the head at ten
          times the rate of the body, 5 of the body, batch 50, SGD 0.01 with momentum 0.5 and weight
          decay 5e-4; lambda = 1.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedpac", lam=1.0, head_epochs=1, head_rate=1.0, epochs=4, batch=32)
    if variant == "paper":
        config.data.update(source="cifar10", clients=20, partition="dirichlet(alpha=0.1)")
        config.models = ("cnn(widths=(16, 32, 64), dense=128, kernel=5, padding='SAME', pool='each')",)
        config.method.update(head_rate=10.0, epochs=5, batch=50)
        config.optimizer.update(lr=0.01, momentum=0.5, weight_decay=5e-4)
        config.augment = "crop(padding=4) | flip"
        config.cohort.fraction = 1.0
        config.rounds = 200
    return config
