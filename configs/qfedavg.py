"""q-FedAvg on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/qfedavg.py --workdir=runs/qfedavg
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: the protocol of FedSKC's tables, which have
          no row of it: CIFAR-10, 20 clients, Dirichlet(0.2), 40 % per round, ResNet-8, 10 local
          epochs, batch 64, plain SGD at 0.01, 200 rounds. q is 0.1: with 1 digits come to 90.6 %. Of
          the authors' data sets (Vehicle, Sent140, Shakespeare, a synthetic one) the library has
          Shakespeare alone, in another form.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="qfedavg", epochs=5, batch=32, q=0.1)
    if variant == "paper":
        base.as_in_fedskc(config)
    return config
