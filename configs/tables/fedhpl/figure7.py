"""FedHPL, Figures 7, 8 and 9: private test sets; clients with 2 to 10 (10 to 100) classes.

Command:  fedjax-core table --table=configs/tables/fedhpl/figure7.py --workdir=runs/fedhpl --variant=paper
          fedjax-core analyse RUN RUN RUN RUN --what=clients --out=DIR       (accuracy of each client)
Variants: see `all_methods.py`. Test sets are a fifth of each class's training examples. The five
          clients have 2, 4, 6, 8 and 10 classes (of CIFAR-100, 10 to 100); a class's examples are
          divided equally over the clients with that class. The score is the clients' mean accuracy
          on their own test examples, which are of their classes. The accuracies are only in the
          figures.
"""

import dataclasses

from configs.tables.base import Column, Measure
from configs.tables.fedhpl import all_methods as fedhpl

OWN = tuple(f"test/{of}/own/accuracy/mean" for of in fedhpl.PREDICTORS)
HELD = {fedhpl.CIFAR10: (2, 4, 6, 8, 10), fedhpl.CIFAR100: (10, 30, 50, 70, 100), fedhpl.SVHN: (2, 4, 6, 8, 10)}


def column(data: str, variant: str) -> Column:
    """Returns a data set whose clients have different numbers of classes."""
    divided = fedhpl.column(data, "IID", variant, data)
    split = {"data.source": f"resplit(of={divided.changes.get('data.source', 'digits')!r})"}
    split |= {"data.partition": f"pathological(classes_per_client={HELD[data]}, equal_volume=False)"}
    return Column(data, {**divided.changes, **split, "data.test_split": "proportional"})


def get_table(variant: str = "small"):
    rows = [row for row in fedhpl.many_networks(variant) if row.label in ("FedGen", "FedGH", "FedProto", "FedTGP")]
    columns = tuple(column(data, variant) for data in (HELD if variant == "paper" else (fedhpl.CIFAR10,)))
    measures = (Measure("last round", OWN), Measure("best round", OWN, "best"))
    table = fedhpl.table("FedHPL, Figures 7 to 9", variant, rows, columns, measures, differ=("network",))
    return dataclasses.replace(table, changes={**table.changes, "evaluation.scopes": ("own",)})
