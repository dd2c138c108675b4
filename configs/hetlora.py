"""HetLoRA on scikit-learn's handwritten digits: LoRA of a random transformer, rank 8, 4 or 2.

Command:  python -m methods.main --config=configs/hetlora.py --workdir=runs/hetlora
Expect:   see configs/RESULTS.md.
Variants: small (the default), 20 clients, Dirichlet(0.5), 8 per round; smoke (seconds); paper: the
          ranks of its authors, 5 to 50, in FedOA's protocol for instructions: LoRA of LLaMA-7B, 6
          clients with one data set each, reading comprehension left out, 2 local epochs, batch 32,
          20 rounds. The authors' networks are not public.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="hetlora", epochs=5, batch=32, prune=variant == "paper")
    if variant == "paper":
        base.as_in_fedoa(config)
        config.adapter = "lora(rank=50, alpha=100.0, dropout=0.05, targets=('query', 'value'))"
        config.clients.rank = "uniform(low=5, high=50)"
    else:
        base.adapt_transformer(config)
        config.clients.rank = "tiers(weights=(1, 1, 1), values=(8, 4, 2))"
    return config
