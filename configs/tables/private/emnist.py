"""Accuracy against epsilon on EMNIST by class (62 letters and digits); see `mechanisms.py`.

Command:  fedjax-core table private/emnist --workdir=runs/private_emnist --set=data.dir=DIR
Figure:   fedjax-core analyse runs/private_emnist/runs/*--epsilon-1--* --what=epsilon --out=runs/private_emnist
Expect:   see configs/RESULTS.md; on two cores some seconds a cell, 28 of them.
Variants: small (the default): 40,000 images at 14 x 14 pixels, 1,000 clients, an MLP, 200 rounds;
          smoke: two rounds of digits; paper: EMNIST by writer, as in `mechanisms.py`.

In small, 40 of 1,000 clients take part in a round. Epsilon at delta 1e-5 is that of a deployment
with 100 of 2,500. With cyclic cohorts, a client takes part every 25th round, 8 times in total.
Other arrays of the same kind: `--set=data.source=npz:FILE`.
"""

from configs.tables.base import Table
from configs.tables.private import mechanisms


def get_table(variant: str = "small") -> Table:
    if variant == "paper":
        return mechanisms.get_table(variant)
    changes = mechanisms.shared(variant) | {"data.clients": 1_000, "cohort.size": 40, "models": ("mlp(widths=(64,))",)}
    if variant == "small":
        changes |= {"data.source": "emnist(split='byclass')", "data.examples": 40_000, "data.size": 14}
        changes |= {"rounds": 200, "evaluation.every": 20, "evaluation.batch": 1000}
    return mechanisms.table("Accuracy against epsilon, EMNIST", variant, changes, mechanisms.Deployment(100, 2_500, 1e-5))
