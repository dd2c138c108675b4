"""pFedPG on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 8 per round, over a frozen random ViT.

Command:  fedjax-core run pfedpg --workdir=runs/pfedpg
Expect:   see configs/RESULTS.md.
Variants: small (the default): heads over a small random backbone; with your own
          (docs/pages/pretrained.md) add --config.weights. smoke (seconds). paper: FedHPL's setting:
          5 clients with ViT-B/16 pre-trained on ImageNet-21k and 10 prompts, CIFAR-10 at 224 px,
          SGD 0.01 with momentum 0.9 and weight decay 1e-4, batch 16, 5 local epochs, 100 rounds.
          Its weights are the first release's (docs/pages/pretrained.md), here as vit_b16.npz.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.models = ("vit(patch=8, width=64, depth=2, heads=4, prompts=4, deep=False)",)
    config.train = "prompts"
    config.optimizer.update(lr=0.02, momentum=0.9)
    config.method = dict(name="pfedpg", heads=4, inner=32, server_lr=0.001, epochs=5, batch=32)
    config.evaluation.scopes = ("own", "all")
    if variant == "smoke":
        config.models = ("vit(patch=8, width=32, depth=1, heads=4, prompts=4, deep=False)",)
        config.method.update(epochs=1)
    if variant == "paper":
        base.as_in_fedhpl(config)
        config.models, config.weights = ("vit_b16(prompts=10, deep=False, resize=224)",), "vit_b16.npz"
        config.normalise = "half"
        config.method.update(heads=8, inner=512)
    return config
