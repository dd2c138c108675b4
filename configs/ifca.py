"""IFCA on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/ifca.py --workdir=runs/ifca
Expect:   see configs/RESULTS.md.
Variants: small (the default), two clusters; smoke (seconds); paper: its authors' for MNIST in four
          rotations, but 600 clients with 100 images of their own (the authors have 2400, each image
          in all rotations): an MLP of 200, 10 full-batch steps, SGD 0.1, 300 rounds, all clients in
          every round; four clusters.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="ifca", clusters=2, epochs=5, batch=32)
    if variant == "paper":
        config.data.update(
            source="rotated(of='mnist', degrees=(0, 90, 180, 270))", clients=600, partition="by_domain(train_examples=100)"
        )
        config.normalise = "unit"
        config.models = ("mlp(widths=(200,), init='torch')",)
        config.method.update(clusters=4, epochs=10, batch=100)
        config.cohort.fraction = 1.0
        config.rounds = 300
    return config
