"""Readings of what the FedPFT paper leaves open, compared on validation examples.

Command:  fedjax-core table fedpft/readings --workdir=runs/fedpft_readings --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: see `all_methods.py`, but with the published partition also in small: CIFAR-10, alpha 0.5,
          40 clients with 500 + 100 images at full resolution. Small (the default) has a quarter of
          the channels and 60 rounds; paper: the whole ResNet-8, 100 rounds.

The paper does not mention a residual path beside the attention, momentum, or batch normalisation
while the extractor is frozen. Momentum 0.9 is the setting of FedCAC in its first author's library
for the same data. A network in training mode with frozen leaves uses batch statistics. A fifth of
each client's training examples is held out for validation.
"""

import dataclasses

from configs.tables.base import Measure, Row, Table
from configs.tables.fedpft import all_methods as fedpft

ALONE, MOMENTUM, BATCHES = {"method.residual": False}, {"optimizer.momentum": 0.9}, {"method.statistics": "train"}
READINGS = {
    "residual path": {},
    "residual path, momentum": MOMENTUM,
    "residual path, batch statistics": BATCHES,
    "attention alone": ALONE,
    "attention alone, momentum": ALONE | MOMENTUM,
    "attention alone, batch statistics": ALONE | BATCHES,
}


def get_table(variant: str = "small") -> Table:
    whole = "smoke" if variant == "smoke" else "paper"
    network = fedpft.network("resnet8", variant)
    column = fedpft.dirichlet(fedpft.CIFAR10, 0.5, whole, **network)
    rows = tuple(Row(label, fedpft.FEDPFT.config, changes) for label, changes in READINGS.items())
    score = ("validation/personal/own/accuracy/mean",)
    measures = (Measure("validation, best round", score, "best"), Measure("validation, last round", score), fedpft.LAST)
    table = fedpft.table("FedPFT: what the paper leaves open", whole, rows, (column,), measures, differ=("optimizer",))
    more = {"data.validation": 0.2}
    if variant != "smoke":
        more |= {"rounds": {"small": 60, "paper": 100}[variant], "evaluation.every": 5}
    return dataclasses.replace(table, seeds=(0,), changes={**table.changes, **more})
