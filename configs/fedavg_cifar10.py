"""FedAvg on CIFAR-10: 20 clients, Dirichlet(0.5), a small CNN.

Command:  fedjax-core run fedavg_cifar10 --workdir=runs/fedavg_cifar10 --config.data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default; minutes on two cores): 8 clients a round, one local epoch; smoke
          (images of digits' size, same network); paper: FedSKC's setting, ResNet-8 with the 3x3
          stem, 10 local epochs, 40 % of the clients, 200 rounds, alpha = 0.2.

The data are read from `cifar-10-binary.tar.gz` in --config.data.dir, or with
--config.data.source=tfds:cifar10 from a set that tensorflow-datasets prepared there.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.data.source = "digits" if variant == "smoke" else "cifar10"
    config.models = ("cnn(widths=(32, 64), dense=128)",)
    config.method = dict(name="fedavg", epochs=1, batch=50, weights="samples")
    config.optimizer.lr = 0.05
    config.rounds = 5 if variant == "smoke" else 40
    if variant == "paper":
        config.data.partition = "dirichlet(alpha=0.2)"
        config.models = ("resnet8",)
        config.optimizer.lr = 0.01
        config.method = dict(name="fedavg", epochs=10, batch=64, weights="samples")
        config.rounds = 200
    return config
