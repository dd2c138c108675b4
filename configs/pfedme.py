"""pFedMe on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/pfedme.py --workdir=runs/pfedme
Expect:   see configs/RESULTS.md.
Variants: small (the default), with lambda 1 and outer rate 0.5 (published: 15 and 0.005); smoke
          (seconds); paper: FedOA's protocol for instructions: LoRA of LLaMA-7B, 6 clients with one
          data set each, reading comprehension left out, 2 local epochs, batch 32, 20 rounds; lambda
          = 0.5, one inner step on each batch, outer rate 0.5 (the variant "released": 3e-4).
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="pfedme", lam=1.0, inner_steps=5, outer_lr=0.5, epochs=5, batch=32)
    if variant == "paper":
        config.method = dict(name="pfedme", lam=0.5, inner_steps=1, outer_lr=0.5)
        base.as_in_fedoa(config)
    return config
