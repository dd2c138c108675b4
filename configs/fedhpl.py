"""FedHPL on scikit-learn's handwritten digits: 20 clients with three architectures, Dirichlet(0.5), 8 per round.

Command:  python -m methods.main --config=configs/fedhpl.py --workdir=runs/fedhpl
Expect:   see configs/RESULTS.md.
Variants: small (the default): without backbones, whole networks are trained; with your own
          (docs/pages/pretrained.md) set --config.weights and --config.train=prompts. smoke
          (seconds): two frozen random backbones. paper: FedHPL's setting for mixed models on
          CIFAR-10: 5 clients with ViT-S/B/L/B/S pre-trained on ImageNet-21k, then ImageNet-1k, and
          3 prompts in each layer, 224 px, SGD 0.01 with momentum 0.9 and weight decay 1e-4, batch
          16, 10 rounds of one epoch. Its weights are AugReg's (docs/pages/pretrained.md), here as
          vit_s16.npz, vit_b16.npz and vit_l16.npz.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.models = (
        "vit(patch=2, width=32, depth=2, heads=2, prompts=3)",
        "vit(patch=2, width=48, depth=2, heads=3, prompts=3)",
        "resnet8(width=8, frame=1)",
    )
    config.optimizer.update(name="adam", lr=2e-3)
    config.method = dict(name="fedhpl", epochs={"paper": 1, "small": 5, "smoke": 2}[variant], batch=32)
    config.evaluation.scopes = ("own", "all")
    if variant == "smoke":
        config.models = ("vit(patch=2, width=16, depth=1, heads=2, prompts=3)", "cnn(widths=(8,), dense=16, frame=1)")
        config.train, config.data.clients = "prompts", 6
    if variant == "paper":
        base.as_in_fedhpl(config)
        sizes = ("s", "b", "l", "b", "s")
        config.models = tuple(f"vit_{size}16(prompts=3, resize=224)" for size in sizes)
        config.weights = tuple(f"vit_{size}16.npz" for size in sizes)
        config.train, config.normalise = "prompts", "half"
        config.rounds = 10
    return config
