"""FedLoRA on scikit-learn's handwritten digits, without an adapter: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run fedlora --workdir=runs/fedlora
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: FedOA's protocol for instructions: LoRA of
          LLaMA-7B, 6 clients with one data set each, reading comprehension left out, 2 local
          epochs, batch 32, 20 rounds; 2 epochs of further tuning.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedlora", epochs=5, finetune_epochs=5, batch=32)
    if variant == "paper":
        config.method = dict(name="fedlora", finetune_epochs=2)
        base.as_in_fedoa(config)
    return config
