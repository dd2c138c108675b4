"""FedSDR, as adapted in FedOA, on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run fedsdr --workdir=runs/fedsdr
Expect:   see configs/RESULTS.md.
Variants: small (the default), with lambda 0.1 (release: 0.5); smoke (seconds); paper: FedOA's
          protocol for instructions: LoRA of LLaMA-7B, 6 clients with one data set each, reading
          comprehension left out, 2 local epochs, batch 32, 20 rounds; lambda = 0.5.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedsdr", lam=0.1, epochs=5, batch=32)
    if variant == "paper":
        config.method = dict(name="fedsdr", lam=0.5)
        base.as_in_fedoa(config)
    return config
