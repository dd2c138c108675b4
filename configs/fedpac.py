"""FedPAC on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run fedpac --workdir=runs/fedpac
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: the defaults of its authors' code for
          CIFAR-10, with Dirichlet(0.1) in place of their partition: 20 clients, all in each of 200
          rounds, a CNN, an epoch of the head at ten times the rate of the body, 5 of the body, batch
          50, SGD 0.01 with momentum 0.5 and weight decay 5e-4; lambda = 1.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedpac", lam=1.0, head_epochs=1, head_rate=1.0, epochs=4, batch=32)
    if variant == "paper":
        config.data.update(source="cifar10", clients=20, partition="dirichlet(alpha=0.1)")
        config.models = ("cnn(widths=(16, 32), dense=128, kernel=5, pool='each')",)
        config.method.update(head_rate=10.0, epochs=5, batch=50)
        config.optimizer.update(lr=0.01, momentum=0.5, weight_decay=5e-4)
        config.cohort.fraction = 1.0
        config.rounds = 200
    return config
