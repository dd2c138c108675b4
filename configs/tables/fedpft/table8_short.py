"""Part of Table 8 of the FedPFT paper at its own setting: alpha 0.5, four methods, fewer rounds.

Command:  fedjax-core table fedpft/table8_short --variant=paper --workdir=runs/fedpft8 --set=data.dir=DIR
Expect:   see configs/RESULTS.md; 76 s a round of a core, of FedPFT 21: 6.5 h in all.
Variants: see `all_methods.py`. Paper has its setting: 40 clients with 500 + 100 images each,
          ResNet-8 with the 7x7 stem, batches of 100, 5 local epochs (FedPFT 4 + 1). Two cores
          finish it in a night.

The paper runs 1000 rounds and reports the best one. `ROUNDS` has fewer: Local and FedPer reach
their best round early.
"""

import dataclasses

from configs.tables.fedpft import all_methods as fedpft

ROUNDS = {"Local": 40, "FedPer": 80, "FedAvg": 120, "FedPFT": 250}


def get_table(variant: str = "small"):
    column = fedpft.dirichlet(fedpft.CIFAR10, 0.5, variant)
    rows = (fedpft.LOCAL, fedpft.FEDPER, fedpft.FEDAVG, fedpft.FEDPFT)
    published = {row.label: fedpft.PAPER[row.label] for row in rows}
    paper = fedpft.published(published, "Table 8", (column,))
    note = "The paper's numbers are of 1000 rounds."
    table = fedpft.table(
        "FedPFT, Table 8 at alpha 0.5, fewer rounds", variant, rows, (column,), paper=paper, note=note, differ=("rounds",)
    )
    most = {label: number if variant == "paper" else table.changes["rounds"] for label, number in ROUNDS.items()}
    return dataclasses.replace(table, seeds=(0,), cells={(label, column.label): {"rounds": n} for label, n in most.items()})
