"""FedMD on scikit-learn's handwritten digits: 0 to 6 on 20 clients with two architectures, Dirichlet(0.5); 7 to 9 are public.

Command:  fedjax-core run fedmd --workdir=runs/fedmd
Expect:   see configs/RESULTS.md.
Variants: small (the default): the authors' epochs, all public examples in every round; smoke
          (seconds); paper: FedHPL's setting for mixed models: 5 clients with ResNet-18/34/50/34/18
          on CIFAR-10 at 32 px, SGD 0.01 with momentum 0.9 and weight decay 1e-4, batch 16, 50
          epochs before the first round and 5 in each, 100 rounds. The paper does not name the
          public set (ten classes): here 5000 images of SVHN, and 25 epochs on either set before the
          first round.
"""

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.data.source = "only(of='digits', classes=(0, 1, 2, 3, 4, 5, 6))"
    config.public = "only(of='digits', classes=(7, 8, 9))"
    config.models = ("mlp(widths=(200, 32))", "cnn(widths=(8, 16), dense=32)")
    config.method = dict(name="fedmd", digest_epochs=1, epochs=4, batch=32, public_epochs=20, private_epochs=25)
    config.evaluation.scopes = ("own", "all")
    if variant == "smoke":
        config.models = base.SMOKE_PAIR
        config.method.update(epochs=1, public_epochs=2, private_epochs=3)
    if variant == "paper":
        base.as_in_fedhpl(config, stem="cifar")
        config.public = "svhn(examples=5000)"
        config.method.update(epochs=5, public_epochs=25)
    return config
