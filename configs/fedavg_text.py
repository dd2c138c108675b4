"""FedAvg on the characters of Python's own manual, whose topics are the clients. Runs anywhere, offline.

Command:  python -m methods.main --config=configs/fedavg_text.py --workdir=runs/fedavg_text
Expect:   the perplexity of a character falls from about 100 to below 20; the manual differs between versions of Python.
Variants: small (the default); smoke (seconds); paper: McMahan et al. 2017's network for Shakespeare, an LSTM of two layers of 256.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    smoke = variant == "smoke"
    config.method = dict(name="fedavg", epochs=1, batch=10, weights="samples")
    config.data.update(source="text", clients=5 if smoke else 20, partition="natural")
    config.models = ("lstm(embedding=8, width=256, layers=2)" if variant == "paper" else "lstm(embedding=8, width=32)",)
    config.optimizer.lr = 1.0
    config.optimizer.clip = 5.0
    if smoke:
        config.data.source = "text(length=20, most=10)"
    return config
