"""FedPFT: what gives its gain: the transformation, the prompts, or training them in turns.

Command:  fedjax-core table fedpft/alternation --workdir=runs/fedpft_alternation --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default): the paper's clients, 40 with 500 + 100 images of CIFAR-10, a ResNet-8
          with a quarter of the channels, 150 rounds (FedPFT+Con, whose extractor learns slowly,
          400); paper: all channels, 1000 rounds; smoke: two rounds on digits.

The rows are settings I to III of Table 4 with the personal layer of Table 9, FedPer, and the phases'
epochs R_f of FedPFT (R_f + R_a = 5). "Transformed" trains extractor, transformation and head
together without prompts, "prompts" with them; "in turns" is FedPFT. Each row's rate is chosen from
the paper's grid by a tenth of each client's training examples, which also choose the round. Test
examples choose nothing. Each seed draws its own partition. From a prepared tfds set:
--set=data.source=tfds:cifar10.
"""

import dataclasses
from typing import Any

from configs import fedpft as fedpft_config
from configs.tables.base import Measure, Row, Table
from configs.tables.fedpft import all_methods as fedpft
from configs.tables.fedpft.table4 import TOGETHER, TRANSFORMED

EPOCHS = 5
ROWS = (
    fedpft.FEDAVG,
    Row("transformed", fedpft_config.get_config, TRANSFORMED),
    Row("prompts", fedpft_config.get_config, TOGETHER),
    fedpft.FEDPFT,
    fedpft.LINEAR,
    fedpft.FEDPER,
    fedpft.FEDPFT_CON,
    *(
        Row(f"R_f {r}", fedpft_config.get_config, {"method.transform_epochs": r, "method.model_epochs": EPOCHS - r})
        for r in (0, 1, 2, 3, 5)
    ),
)


def table(variant: str, whole: str, rounds: int | None, seeds: tuple[int, ...]) -> Table:
    """Returns the table of these rows.

    Args:
      variant: smoke, small or paper, which chooses the network.
      whole: the variant of `all_methods` whose clients and batches it takes.
      rounds: of all rows but FedPFT+Con, which gets 400; None: those of `whole`.
      seeds: the first one searches.
    """
    columns = tuple(fedpft.dirichlet(fedpft.CIFAR10, alpha, whole, **fedpft.network("resnet8", variant)) for alpha in (0.1, 0.5))
    measures = (Measure("selected round", fedpft.OWN, "selected"), fedpft.LAST, fedpft.PROBE, fedpft.MATCH)
    rows = []
    for row in ROWS:
        own: dict[str, Any] = {"evaluation.select": fedpft.VALIDATION[1 if row is fedpft.FEDAVG else 0]}
        if rounds is not None:
            own["rounds"] = 400 if row is fedpft.FEDPFT_CON else rounds
        rows.append(dataclasses.replace(row, changes={**row.changes, **own}))
    every = {} if variant == "smoke" else {"evaluation.every": 5}
    table = fedpft.choose_rates(fedpft.table("FedPFT: what gives its gain", whole, rows, columns, measures, differ=("rounds",)))
    return dataclasses.replace(table, seeds=seeds, changes={**table.changes, **every}, against="FedAvg")


def get_table(variant: str = "small") -> Table:
    return table(variant, "smoke" if variant == "smoke" else "paper", 150 if variant == "small" else None, seeds=(0, 1))
