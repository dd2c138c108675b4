"""FedAdam on scikit-learn's synthetic multi-label examples; paper: pfl-research's benchmark on FLAIR.

Command:  fedjax-core run fedopt_flair --workdir=runs/fedopt_flair
Expect:   the small variant runs offline in seconds; the paper variant has not been run.
Variants: small (the default); smoke (seconds); paper: 41,131 users of at most 512 photographs, 200
          per round, E = 2, B = 16, 5000 rounds, ResNet-18, as in pfl-research's
          benchmarks/flair/configs/baseline.yaml. It starts from weights trained on ImageNet: set
          such a file in config.weights. Without one, batch normalization keeps mean 0 and variance
          1 (there a network from scratch has group normalization). Departures: photographs are not
          cropped or flipped and keep 256 pixels (there crops of 224), metrics are of the test users
          (there of the validation users), the server's rate is 0.1 in all rounds (there it warms up
          over 30 rounds and decays to 0.02), and FedAdam has no bias correction.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    paper = variant == "paper"
    config.method = dict(name="fedopt", server="adam", server_lr=0.1 if paper else 0.01, tau=0.01, weights="uniform")
    config.method.update(epochs=2, batch=16)
    config.data.update(source="multilabel", partition="iid")
    config.models = ("mlp(widths=(64,))",)
    config.optimizer.lr = 0.01 if paper else 0.3
    if paper:
        config.data.update(source="flair(size=256)", clients=41131, partition="natural")
        config.models = ("resnet18(stem='imagenet')",)
        config.optimizer.clip = 10.0
        config.statistics = "freeze"
        config.normalise = "imagenet"
        config.cohort.size = 200
        config.evaluation.update(scopes=("global",), every=20)
        config.rounds = 5000
    return config
