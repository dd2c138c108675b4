"""FLoRA on scikit-learn's handwritten digits: LoRA of a random transformer; 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/flora.py --workdir=runs/flora
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: ranks drawn from the authors', 64 to
          4 (theirs are a list of ten; the six clients here get 16 four times, 8 and 4), in FedOA's
          protocol for instructions: LoRA of LLaMA-7B, 6 clients with one data set each, reading
          comprehension left out, 2 local epochs, batch 32, 20 rounds.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="flora", epochs=5, batch=32)
    if variant == "paper":
        base.as_in_fedoa(config)
        config.adapter = "lora(rank=64, alpha=128.0, dropout=0.05, targets=('query', 'value'))"
        config.clients.rank = "tiers(weights=(1, 1, 2, 2, 4), values=(64, 32, 16, 8, 4))"
    else:
        base.adapt_transformer(config)
    return config
