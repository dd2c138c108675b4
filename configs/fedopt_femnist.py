"""FedAdam on digits by default; paper: FedJAX's example on EMNIST by writer (needs TensorFlow Federated's files).

Command:  fedjax-core run fedopt_femnist --workdir=runs/fedopt_femnist
Expect:   the small variant is FedAdam with a CNN on digits, in a minute on two cores; the paper
          variant has not been run.
Variants: small (the default); smoke (seconds); paper: 3,400 writers, 10 per round, E = 1, B = 20,
          1500 rounds, as in FedJAX's examples/emnist_fed_avg.py, whose settings are those of Reddi
          et al. 2021. Departures: FedAdam has no bias correction, as in Reddi et al. (there optax's
          Adam, which has one).
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    paper = variant == "paper"
    config.method = dict(name="fedopt", server="adam", server_lr=10**-2.5, b1=0.9, b2=0.999, tau=1e-4)
    config.method.update(epochs=1, batch=20, weights="samples")
    config.models = (
        "cnn(widths=(32, 64), dense=128, dropout=0.25, head_dropout=0.5)" if paper else "cnn(widths=(8, 16), dense=32)",
    )
    config.optimizer.lr = 10**-1.5
    if paper:
        config.data.update(source="femnist", clients=3400, partition="natural")
        config.normalise = "unit"  # its loader provides 1 - pixels, in [0, 1]
        config.cohort.size = 10
        config.rounds = 1500
    return config
