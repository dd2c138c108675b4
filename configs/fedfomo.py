"""FedFomo on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedfomo.py --workdir=runs/fedfomo
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: its authors' README: CIFAR-10, 15 clients
          with two classes each in place of five groups with the same ones, all in each of 20
          rounds, the CNN of TensorFlow's tutorial, crops and flips, 5 local epochs, batch 50, SGD
          0.1 with decay 0.99; 4 models, a fifth of the examples for validation. Distances are L2 (theirs:
          L1).
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedfomo", models=4, epochs=5, batch=32)
    if variant == "paper":
        config.data.update(source="cifar10", clients=15, partition="pathological(classes_per_client=2)")
        config.models = ("cnn(widths=(32, 64, 64), dense=64, pool='between')",)
        config.method.update(batch=50)
        config.optimizer.update(lr=0.1, decay=0.99)
        config.augment = "crop(padding=4) | flip"
        config.cohort.fraction = 1.0
        config.rounds = 20
    return config
