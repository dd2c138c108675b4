"""FedSAM on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedsam.py --workdir=runs/fedsam
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: Caldarola et al. 2022's CIFAR-10: 100
          clients, Dirichlet(0.05), 5 per round, a CNN of two layers of 64 channels with 384 and 192
          units, crops and flips, one local epoch of batch 64, SGD at 0.01 with weight decay 4e-4,
          rho = 0.1, 10,000 rounds. FedASAM: rho = 0.7, eta = 0.2; MoFedSAM: beta = 0.1.
"""

from ml_collections.config_dict import placeholder

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedsam", epochs=5, batch=32, rho=0.05, eta=placeholder(float), beta=1.0)
    if variant == "paper":
        config.data.update(source="cifar10", clients=100, partition="dirichlet(alpha=0.05)")
        config.models = ("cnn(widths=(64, 64), dense=(384, 192), kernel=5, pool='each')",)
        config.optimizer.update(lr=0.01, weight_decay=4e-4)
        config.augment = "crop(padding=4) | flip"
        config.cohort.fraction = 0.05
        config.method.update(epochs=1, batch=64, rho=0.1)
        config.rounds = 10_000
    return config
