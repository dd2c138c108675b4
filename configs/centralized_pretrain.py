"""A backbone of your own: a small vision transformer, trained on classes that will not be federated.

Command:  fedjax-core run centralized_pretrain --workdir=runs/pretrain
          fedjax-core export runs/pretrain --out=backbone.safetensors
          fedjax-core run fedhpl --workdir=runs/fedhpl --config.train=prompts \
              --config.weights=backbone.safetensors --config.models='("vit(patch=4, width=96, depth=6, heads=3, prompts=3)",)' \
              --config.data.source='only(of="tfds:cifar10", classes=(5, 6, 7, 8, 9))'
Expect:   see configs/RESULTS.md.
Variants: small (the default): 10,000 images of CIFAR-10's first five classes, as
          tensorflow-datasets prepared it; 10 to 20 minutes on two cores. smoke (seconds): the
          digits 0 to 4. paper: all of CIFAR-100, 100 epochs; on a GPU.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(name="centralized", epochs=2, batch=64)
    config.models = ("vit(patch=4, width=96, depth=6, heads=3)",)
    config.optimizer.update(name="adam", lr=1e-3, weight_decay=0.05, clip=1.0, decay=0.8)
    config.data.update(source='only(of="tfds:cifar10", classes=(0, 1, 2, 3, 4))', examples=10_000)
    config.augment = "crop(padding=4) | flip"
    config.evaluation.scopes = ("global",)
    config.rounds = 10
    if variant == "smoke":
        config.models = ("vit(patch=2, width=16, depth=1, heads=2)",)
        config.data.update(source="only(of='digits', classes=(0, 1, 2, 3, 4))", examples=None)
        config.augment, config.rounds = "crop(padding=1)", 5
    if variant == "paper":
        config.models = ("vit(patch=4, width=192, depth=9, heads=3)",)
        config.data.update(source="cifar100", examples=None)
        config.method.update(epochs=5, batch=128)
        config.augment = "resized_crop(scale=(0.3, 1.0)) | colour_jitter | flip"
        config.optimizer.decay = 0.85
        config.rounds = 20
    return config
