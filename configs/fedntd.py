"""FedNTD on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedntd.py --workdir=runs/fedntd
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: the authors' CIFAR-10: 100 clients with two
          shards each, 10 per round, a CNN of 32 and 64 channels and 512 units, crops and flips
          (theirs cut out 16 x 16 pixels as well), 5 local epochs of batch 50, SGD at 0.01 with
          decay 0.99, momentum 0.9 and weight decay 1e-5, beta = tau = 1, 200 rounds.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedntd", epochs=5, batch=32, beta=1.0, tau=1.0)
    if variant == "paper":
        config.data.update(source="cifar10", clients=100, partition="shards(shards_per_client=2)")
        config.models = ("cnn(widths=(32, 64), dense=512, kernel=5, padding='SAME', pool='each')",)
        config.optimizer.update(lr=0.01, decay=0.99, momentum=0.9, weight_decay=1e-5)
        config.augment = "crop(padding=4) | flip"
        config.cohort.fraction = 0.1
        config.method.update(batch=50)
        config.rounds = 200
    return config
