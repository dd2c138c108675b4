"""FedSKC, Table I, columns of FC100: 5-way 5-shot episodes of unseen classes.

Command:  fedjax-core table --table=configs/tables/fedskc/table1_fc100.py --workdir=runs/fedskc --variant=paper
Variants: see `all_methods.py`; small and smoke use the offline data of `fedavg_fc100.py`: clients
          train on five digits, and test episodes are of the other five.

The paper specifies only 5-way 5-shot; here these are prototypical networks. They have no
classifier, so FedSKC's knowledge consists of embeddings, and FedRCL contrasts the embeddings of
queries. MOON and FedNH, which replace the classifier, are omitted: the paper does not say what they
train here (its numbers: 48.25 50.81 and 48.68 51.22).
"""

import dataclasses

from configs import fedavg_fc100
from configs.tables.base import Column
from configs.tables.fedskc import all_methods as fedskc

PAPER = {
    "FedAvg": (47.40, 50.24),
    "FedProx": (47.06, 50.43),
    "SCAFFOLD": (47.54, 50.35),
    "FedOPT (Adam)": (47.31, 50.60),
    "FedProto-G": (45.76, 48.92),
    "FedRCL": (48.82, 51.13),
    "FedSKC": (49.65, 51.80),
    "FedSKC (printed)": None,
}


def get_table(variant: str = "small"):
    few_shot = fedavg_fc100.get_config(variant)
    changes = {
        "task": few_shot.task,
        "data.source": few_shot.data.source,
        "data.size": None,
        "data.examples": None,
        "models": tuple(few_shot.models),
        "method.batch": few_shot.method.batch,
        "method.epochs": few_shot.method.epochs,
        "optimizer.lr": few_shot.optimizer.lr,
        "rounds": few_shot.rounds,
    }
    columns = tuple(
        Column(f"FC100, alpha {alpha}", changes | {"data.partition": f"dirichlet(alpha={alpha})"}) for alpha in (0.05, 0.2)
    )
    rows = tuple(row for row in fedskc.ROWS if row.label in PAPER)
    embedded = {"method.knowledge.of": "features"}
    rows = tuple(dataclasses.replace(r, changes={**r.changes, **embedded}) if r.label.startswith("FedSKC") else r for r in rows)
    paper = fedskc.published(PAPER, columns)
    return fedskc.table("FedSKC, Table I, FC100", variant, columns, rows, paper=paper, source="FedSKC, Table I")
