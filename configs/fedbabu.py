"""FedBABU on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedbabu.py --workdir=runs/fedbabu
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: FedPFT's protocol: CIFAR-10, 40 clients with
          500 + 100 images and one label distribution each, ResNet-8 with the 7x7 stem, 5 local
          epochs, batch 100, SGD 0.1, 1000 rounds, all clients in every round; 5 epochs of
          fine-tuning at 1e-3, as in its authors' code, which has a momentum of 0.9 as well.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedbabu", epochs=5, finetune_epochs=5, finetune_rate=0.01, batch=32)
    if variant == "paper":
        base.as_in_fedpft(config)
    return config
