"""Readings of FedSKC's discrepancy aggregation (Eq. 4), compared on held-out training examples.

Command:  fedjax-core table --table=configs/tables/fedskc/readings.py --workdir=runs/fedskc_readings --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default): digits as in `configs/fedskc.py`, and CIFAR-10 as in `all_methods.py`
          with 4,000 images and 20 rounds; smoke; paper: CIFAR-10 in the published setting.

The other rows are FedAvg and FedSKC without it. The "test" examples are a tenth (of digits a fifth)
of the training examples of each class, held out before the rest is partitioned. The original test
sets are not used, so the table may choose a reading. CIFAR-10 is read from a prepared tfds set.
"""

import dataclasses

from configs import fedskc as fedskc_config
from configs.tables.base import Column, Row
from configs.tables.fedskc import all_methods as fedskc

READINGS = {
    f"GDA {distance} {form}": {"method.gda.distance": distance, "method.gda.form": form}
    for distance in ("mean", "sum")
    for form in ("sigmoid", "relu")
}
DIGITS = {
    "data.source": "resplit(of='digits', test_fraction=0.2)",
    "data.partition": "dirichlet(alpha=0.5)",
    "data.size": None,
    "data.examples": None,
    "models": ("mlp",),
    "optimizer.lr": 0.1,
    "method.epochs": 5,
    "method.batch": 32,
    "rounds": 50,
}


def get_table(variant: str = "small"):
    rows = [fedskc.BASELINES[0], Row("LCL + GPR", fedskc_config.get_config, {"method.gda.on": False})]
    rows += [Row(label, fedskc_config.get_config, changes) for label, changes in READINGS.items()]
    cifar = fedskc.column("CIFAR-10, alpha 0.2", variant, "resplit(of='tfds:cifar10', test_fraction=0.1)")
    smaller = {"data.examples": 4_000, "rounds": 20} if variant == "small" else {}
    columns = [dataclasses.replace(cifar, changes={**cifar.changes, **smaller})]
    if variant == "small":
        columns.insert(0, Column("digits", DIGITS))
    table = fedskc.table("FedSKC: readings of GDA", variant, tuple(columns), tuple(rows))
    return dataclasses.replace(table, seeds=(0, 1, 2, 3, 4))
