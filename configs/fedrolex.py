"""FedRolex on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round, three widths.

Command:  python -m methods.main --config=configs/fedrolex.py --workdir=runs/fedrolex
Expect:   see configs/RESULTS.md.
Variants: small (the default), MLPs of two layers of 200, 100 and 50, gradients clipped at norm 1;
          smoke (seconds); paper: its authors' for CIFAR-10 with crops and flips: 100 clients with
          two classes each, 10 per round, ResNet-18 (here with a group normalization) and its half,
          quarter, eighth and sixteenth, one local epoch of batch 10, SGD at 0.0002 with momentum
          0.9 and weight decay 0.001, gradients clipped at norm 1, 3200 rounds; theirs falls to a
          quarter of the rate after 1200.
"""

from configs import base, heterofl


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="fedrolex", epochs=5, batch=32)
    config.models = heterofl.WIDTHS
    config.optimizer.clip = 1.0
    if variant == "paper":
        config.data.update(source="cifar10", clients=100, partition="pathological(classes_per_client=2, equal_volume=False)")
        config.models = tuple(f"resnet18(width={64 // part}, norm='group')" for part in (1, 2, 4, 8, 16))
        config.optimizer.update(lr=2e-4, momentum=0.9, weight_decay=1e-3)
        config.method.update(epochs=1, batch=10)
        config.augment = "crop(padding=4) | flip"
        config.cohort.fraction = 0.1
        config.rounds = 3200
    return config
