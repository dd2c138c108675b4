"""FedSKC on scikit-learn's handwritten digits: 20 clients, Dirichlet(0.5), 40 % per round.

Command:  fedjax-core run fedskc --workdir=runs/fedskc
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (seconds); paper: CIFAR-10, Dirichlet(0.2), ResNet-8 with the
          3x3 stem, 10 local epochs of batches of 64, SGD 0.01, 200 rounds.

--config.method.variant=printed uses the formulas as printed in the paper, "released" those of the
authors' code, whose data preparation is --config.optimizer.lr=0.1
--config.augment="crop(padding=4) | flip". By default the discrepancies of GDA are means over the classes
of a client; --config.method.gda.distance=sum uses the printed sums, --config.method.gda.form=relu weights
that do not depend on their scale (configs/tables/fedskc/readings.py compares them). Options that are
None are the variant's.
"""

from ml_collections.config_dict import placeholder

from configs import base


def get_config(variant: str = "small"):
    config = base.get_config(variant)
    config.method = dict(
        name="fedskc",
        epochs=5,
        batch=32,
        variant="default",
        weights="samples",
        lcl=dict(
            on=True,
            tau=0.08,
            scale=placeholder(str),
            twice=placeholder(bool),
            own=placeholder(bool),
            ramp=placeholder(int),
        ),
        knowledge=dict(of="logits", neighbours=1, silu=placeholder(bool), source=placeholder(str), keep=placeholder(bool)),
        gda=dict(on=placeholder(bool), size=placeholder(str), distance=placeholder(str), form=placeholder(str)),
        gpr=dict(
            on=True,
            form=placeholder(str),
            beta=placeholder(float),
            ddof=placeholder(int),
            over=placeholder(str),
            entries=placeholder(str),
        ),
    )
    if variant == "paper":
        base.as_in_fedskc(config)
    return config
