"""FedAvg of a character model on Python's manual, whose topics are the clients. Runs anywhere, offline.

Command:  fedjax-core run fedavg_text --workdir=runs/fedavg_text
Expect:   the perplexity per character falls from about 100 to below 20; it depends on the version
          of Python.
Variants: small (the default); smoke (seconds); paper: Shakespeare by role (needs TensorFlow
          Federated's files), 715 clients, 10 per round, E = 1, B = 10, 1500 rounds, an LSTM of two
          layers of 256, as in FedJAX's experiments/fed_avg/ fed_avg.SHAKESPEARE_CHARACTER.flags; it
          has not been run. Departures: there is no tanh after each layer of the LSTM, and the loss
          is the mean over characters without padding (there over all positions).
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    smoke = variant == "smoke"
    config.method = dict(name="fedavg", epochs=1, batch=10, weights="samples")
    config.data.update(source="text", clients=5 if smoke else 20, partition="natural")
    config.models = ("lstm(embedding=8, width=32)",)
    config.optimizer.lr = 1.0
    config.optimizer.clip = 5.0
    if smoke:
        config.data.source = "text(length=20, most=10)"
    if variant == "paper":
        config.data.update(source="shakespeare", clients=715)
        config.models = ("lstm(embedding=8, width=256, layers=2)",)
        config.optimizer.update(lr=0.03162278, clip=None)
        config.cohort.size = 10
        config.rounds = 1500
    return config
