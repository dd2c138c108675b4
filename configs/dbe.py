"""DBE on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/dbe.py --workdir=runs/dbe
Expect:   see configs/RESULTS.md.
Variants: small (the default), kappa 1; smoke (seconds); paper: its authors' script, on MNIST in
          place of Fashion-MNIST: 20 clients, Dirichlet(0.1), all in every round, a CNN, one local
          epoch, batch 10, SGD 0.005, 2000 rounds (theirs ends after 100 without a better one); kappa
          = 50, momentum 1.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="dbe", kappa=1.0, momentum=1.0, epochs=5, batch=32)
    if variant == "paper":
        base.as_in_pfllib(config)
        config.data.source = "mnist"
        config.method.update(kappa=50.0)
        config.rounds = 2000
    return config
