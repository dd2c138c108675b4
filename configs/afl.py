"""AFL on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  fedjax-core run afl --workdir=runs/afl
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: the protocol of FedSKC's tables, which have
          no row of it: CIFAR-10, 20 clients, Dirichlet(0.2), 40 % per round, ResNet-8, 10 local
          epochs, batch 64, plain SGD at 0.01, 200 rounds. The authors' tasks (Adult, three classes
          of Fashion-MNIST, language models) have two or three clients.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="afl", epochs=5, batch=32, ascent_lr=0.1, score="average")
    if variant == "paper":
        base.as_in_fedskc(config)
    return config
