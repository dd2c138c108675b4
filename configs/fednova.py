"""FedNova on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fednova.py --workdir=runs/fednova
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: the authors' CIFAR-10: 16 clients, all in
          each round, Dirichlet(0.1) where a client that has a sixteenth of the data gets no more
          of later classes, crops and flips, 2 local epochs of batch 32, SGD at 0.02 with momentum
          0.9 and weight decay 1e-4, 100 rounds; a ResNet-8 with batch normalization in place of
          their VGG-11 without. The rate is constant here; theirs falls to a tenth after half of
          the rounds and again after three quarters.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fednova", epochs=5, batch=32, mu=0.0, tau_eff="mean_a", server_momentum=0.0)
    if variant == "paper":
        partition = "grouped_dirichlet(alpha=0.1, group_size=16, min_fraction=0.0032, equal_sizes=False)"  # at least 10 examples
        config.data.update(source="cifar10", clients=16, partition=partition)
        config.models = ("resnet8",)
        config.optimizer.update(lr=0.02, momentum=0.9, weight_decay=1e-4)
        config.augment = "crop(padding=4) | flip"
        config.cohort.fraction = 1.0
        config.method.update(epochs=2)
        config.rounds = 100
    return config
