"""pFedPT on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run pfedpt --workdir=runs/pfedpt
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: FedPFT's protocol: CIFAR-10, 40 clients with
          500 + 100 images and one label distribution each, ResNet-8 with the 7x7 stem, 2 local
          epochs for the prompt and 3 for the network, batch 100, SGD 0.1, 1000 rounds, all clients
          in every round; frames 2 pixels wide, prompts at a rate of 1, as in its authors' script
          for CIFAR-10.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="pfedpt", pad=1, prompt_epochs=2, prompt_lr=1.0, epochs=3, batch=32)
    if variant == "paper":
        base.as_in_fedpft(config)
        config.method.update(pad=2)
    return config
