"""PerAda on scikit-learn's handwritten digits, without distillation: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run perada --workdir=runs/perada
Expect:   see configs/RESULTS.md.
Variants: small (the default), with lambda 0.1, the authors' for Office-Home (for CIFAR-10 theirs is
          1); smoke (seconds); paper: FedOA's protocol for instructions: LoRA of LLaMA-7B, 6 clients
          with one data set each, reading comprehension left out, 2 local epochs, batch 32, 20
          rounds; lambda = 0.5, no distillation.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="perada", lam=0.1, epochs=5, batch=32)
    if variant == "paper":
        config.method = dict(name="perada", lam=0.5, measure=True)
        base.as_in_fedoa(config)
    return config
