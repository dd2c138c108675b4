"""HetLoRA on scikit-learn's handwritten digits: LoRA of a frozen random transformer, of rank 8, 4 or 2, and its head.

Command:  python -m methods.main --config=configs/hetlora.py --workdir=runs/hetlora
Expect:   see configs/RESULTS.md.
Variants: small (the default), 20 clients, Dirichlet(0.5), 8 per round; smoke (seconds); paper: the
          ranks of its authors, 5 to 50, in FedOA's protocol for instructions: LoRA of LLaMA-7B, 6
          clients with one data set each, reading comprehension left out, 2 local epochs, batch 32,
          20 rounds. Their networks and data are not public.
"""

from configs import base

KERNELS = "('query', 'key', 'value', 'out', 'mlp1', 'mlp2')"


def as_adapted_digits(config):
    """Sets LoRA of a random transformer, with clients of three ranks."""
    config.models = ("vit(patch=2, width=64, depth=2, heads=4)",)
    config.train = "head"
    config.adapter = f"lora(rank=8, alpha=16.0, dropout=0.0, targets={KERNELS})"
    config.clients.rank = "tiers(weights=(1, 1, 1), values=(8, 4, 2))"


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="hetlora", epochs=5, batch=32)
    as_adapted_digits(config)
    if variant == "paper":
        base.as_in_fedoa(config)
        config.train = "all"
        config.adapter = "lora(rank=50, alpha=100.0, dropout=0.05, targets=('query', 'value'))"
        config.clients.rank = "uniform(low=5, high=50)"
        config.method.prune = True
    return config
