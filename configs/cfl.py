"""CFL on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/cfl.py --workdir=runs/cfl
Expect:   see configs/RESULTS.md.
Variants: small (the default), client norm 0.5 (published: 1.6), which late updates still reach;
          smoke (seconds); paper: its authors' notebook, on MNIST in two rotations and alike
          clients, not on EMNIST divided by Dirichlet(1): 10 clients with 1000 images each, all in
          every round, a CNN (with a dense layer of 64 that theirs has not), one epoch, batch 128,
          SGD 0.1 with decay 0.99 and momentum 0.9, 80 rounds; norms 0.4 and 1.6, first split after
          20 rounds, complete linkage.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="cfl", mean_norm=0.4, client_norm=0.5, first_split=20, epochs=5, batch=32)
    if variant == "paper":
        partition = "by_domain(train_examples=1000, test_examples=500)"
        config.data.update(source="rotated(of='mnist', degrees=(0, 180))", clients=10, partition=partition)
        config.normalise = "unit"
        config.models = ("cnn(widths=(6, 16), dense=64, kernel=5, pool='each', init='torch')",)
        config.method.update(client_norm=1.6, linkage="complete", epochs=1, batch=128)
        config.optimizer.update(lr=0.1, momentum=0.9, decay=0.99)
        config.cohort.fraction = 1.0
        config.rounds = 80
    return config
