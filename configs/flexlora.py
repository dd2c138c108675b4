"""FlexLoRA on scikit-learn's handwritten digits: LoRA of a random transformer, rank 8, 4 or 2.

Command:  python -m methods.main --config=configs/flexlora.py --workdir=runs/flexlora
Expect:   see configs/RESULTS.md.
Variants: small (the default), 20 clients, Dirichlet(0.5), 8 per round; smoke (seconds); paper:
          ranks drawn from FLoRA's, 64 to 4 (FlexLoRA's authors have 8, 30 and 200), in FedOA's
          protocol for instructions: LoRA of LLaMA-7B, 6 clients with one data set each, reading
          comprehension left out, 2 local epochs, batch 32, 20 rounds.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="flexlora", epochs=5, batch=32)
    if variant == "paper":
        base.as_in_fedoa(config)
        config.adapter = "lora(rank=64, alpha=128.0, dropout=0.05, targets=('query', 'value'))"
        config.clients.rank = "tiers(weights=(1, 1, 2, 2, 4), values=(64, 32, 16, 8, 4))"
    else:
        base.adapt_transformer(config)
        config.clients.rank = "tiers(weights=(1, 1, 1), values=(8, 4, 2))"
    return config
