"""FedOA on scikit-learn's handwritten digits, without an adapter: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run fedoa --workdir=runs/fedoa
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds), a small vision transformer with LoRA, its head
          trained as well; paper: FedOA's protocol for instructions: LoRA of LLaMA-7B on 6 clients
          with one data set each, reading comprehension left out, 2 local epochs, batch 32, 20
          rounds; lambda = 0.5.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedoa", lam=0.5, epochs=5, batch=32)
    if variant == "smoke":
        config.models = ("vit(patch=4, width=16, depth=1, heads=2)",)
        config.adapter, config.train = "lora(rank=2)", "head"
        config.method.update(epochs=1)
    if variant == "paper":
        config.method = dict(name="fedoa", lam=0.5, measure=True)
        base.as_in_fedoa(config)
    return config
