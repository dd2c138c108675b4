"""FedSKC's parts against FedAvg on CIFAR-10, each tuned; see `tuned.py`.

Command:  fedjax-core table fedskc/tuned_cifar10 --workdir=runs/fedskc_tuned_cifar10 --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: see `tuned.py`; small has 80 rounds. The CNN has a max-pool after each convolution.

From a prepared tfds set: --set=data.source=tfds:cifar10. Nine trials select rates below 0.15: with
rates up to 0.5, three of six diverged, because this network has no normalisation.
"""

import dataclasses

from configs.tables.base import Table
from configs.tables.fedskc import tuned

CNN = {"models": ("cnn(widths=(16, 32), dense=64, padding='SAME', pool='each')",)}


def get_table(variant: str = "small") -> Table:
    table = tuned.table(variant, "CIFAR-10", CNN | {"data.source": "cifar10"}, highest=0.15, trials=9)
    return dataclasses.replace(table, changes={**table.changes, "rounds": 80}) if variant == "small" else table
