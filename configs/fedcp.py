"""FedCP on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedcp.py --workdir=runs/fedcp
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: its authors' script: MNIST, 20 clients,
          Dirichlet(0.1), all in every round, a CNN, one local epoch, batch 10, SGD 0.005, 1000
          rounds; lambda = 5.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedcp", lam=5.0, epochs=5, batch=32)
    if variant == "paper":
        config.data.update(source="mnist", clients=20, partition="dirichlet(alpha=0.1)")
        config.models = ("cnn(widths=(32, 64), dense=512, kernel=5, pool='each')",)
        config.optimizer.lr = 0.005
        config.method.update(epochs=1, batch=10)
        config.cohort.fraction = 1.0
        config.rounds = 1000
    return config
