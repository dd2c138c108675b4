"""Accuracy and bytes of compressed uplinks on MNIST.

Command:  fedjax-core table robust/compression --workdir=runs/compression --set=data.dir=DIR
Figure:   fedjax-core analyse runs/compression/runs/* --what=traffic --out=runs/compression
Expect:   see configs/RESULTS.md; on two cores some seconds a cell, 11 of them.
Variants: small (the default): 4,000 images at 14 x 14 pixels, an MLP, 30 rounds; smoke: two rounds
          of digits; paper: all of MNIST at full size with a CNN, 100 rounds, three seeds.

20 clients, Dirichlet(0.3), 8 a round. Costs are the bytes of the packed arrays that a client sends
per round.
"""

from configs import fedavg
from configs.tables.base import Column, Measure, Row, Table
from configs.tables.robust import rules_10

COMPRESSORS = {
    "none": None,
    "bfloat16": "bfloat16",
    "8 bits": "quantise(bits=8)",
    "4 bits": "quantise(bits=4)",
    "2 bits": "quantise(bits=2)",
    "top tenth": "top_k(fraction=0.1)",
    "top hundredth": "top_k(fraction=0.01)",
    "random tenth": "random_k(fraction=0.1)",
    "PowerSGD, rank 2": "power_sgd(rank=2)",
    "sign": "sign",
    "sign, majority": "sign(majority=True, step=0.003)",
}


def get_table(variant: str = "small") -> Table:
    config = lambda v: fedavg.get_config("smoke" if v == "smoke" else "small")
    changes = rules_10.shared(variant) | {"cohort.fraction": 0.4}
    return Table(
        title="Compressed uplinks",
        rows=tuple(Row(name, config, {"compression.uplink": spec} if spec else {}) for name, spec in COMPRESSORS.items()),
        columns=(Column("Dirichlet(0.3)", {"data.partition": "dirichlet(alpha=0.3)"}),),
        measures=(Measure("last round", ("test/global/accuracy",)), Measure("best round", ("test/global/accuracy",), "best")),
        seeds=(0, 1, 2) if variant == "paper" else (0,),
        changes=changes | ({"rounds": 30} if variant == "small" else {}),
        targets=(0.8, 0.85, 0.9),
        against="none",
    )
