"""Shared definitions of the FedSKC paper's tables; as a table, all methods on one small setting.

Command:  fedjax-core table --table=configs/tables/fedskc/all_methods.py --workdir=runs/fedskc --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default, for two cores): CIFAR-10 at 16 x 16 pixels, 10,000 of its training
          images, ResNet-8 with a quarter of the channels, 2 local epochs, 30 rounds, learning rate
          0.05; smoke (two rounds on digits, seconds); paper: the published setting.

The paper's tables and figures are `table1.py` to `table5.py` and `figure3*.py`; `readings.py`
compares readings of GDA. With one --workdir they share equal runs. FedSKC has two rows, the default
and the printed reading; the other methods have their authors' coefficients. The paper does not name
the member of FedOPT; here it is FedAdam. CIFAR-10 from a prepared tfds set:
--set="/cifar-10-*:data.source=tfds:cifar10".

Figures 4a to 4c are `fedjax-core analyse RUN ... --what=knowledge` for runs of FedSKC, FedAvg, and
FedSKC with M = 0 (without Eq. 1; `figure3ab.py`). Figure 1b is `fedjax-core analyse FEDAVG --what=drift
--clients=0,1`: the training losses of two clients and the test loss in the plane of their models
after local training and the global one, and the labels of each round's cohort.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from configs import fedavg, fednh, fedopt, fedproto_g, fedprox, fedrcl, fedskc, moon, scaffold
from configs.tables.base import Column, Measure, Paper, Row, Table

ACCURACY = Measure("global test accuracy", ("test/global/accuracy",))
SEEDS = (0, 1, 2)

CLIPPED = {"optimizer.clip": 10.0}  # norm of gradients, as in both authors' code
BASELINES = (
    Row("FedAvg", fedavg.get_config),
    Row("FedProx", fedprox.get_config),
    Row("SCAFFOLD", scaffold.get_config),
    Row("FedOPT (Adam)", fedopt.get_config, {"method.server_lr": 0.01}),
    Row("MOON", moon.get_config),
    Row("FedProto-G", fedproto_g.get_config),
    Row("FedNH", fednh.get_config, CLIPPED),
    Row("FedRCL", fedrcl.get_config, CLIPPED),
)
FEDSKC = Row("FedSKC", fedskc.get_config)
RELEASED = {"method.variant": "released"}
PRINTED = Row("FedSKC (printed)", fedskc.get_config, {"method.variant": "printed"})
ROWS = (*BASELINES, FEDSKC, PRINTED)

SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        "models": ("resnet8",),
        "optimizer.lr": 0.01,
        "method.epochs": 10,
        "method.batch": 64,
        "rounds": 200,
        "evaluation.every": 1,
    },
    "small": {
        "models": ("resnet8(width=16)",),
        "data.size": 16,
        "data.examples": 10_000,
        "optimizer.lr": 0.05,
        "method.epochs": 2,
        "method.batch": 64,
        "rounds": 30,
    },
    "smoke": {"models": ("mlp(widths=(16,))",), "rounds": 2, "evaluation.every": 1, "method.epochs": 1, "method.batch": 32},
}
SHARED: dict[str, Any] = {
    "data.clients": 20,
    "data.test_split": None,
    "cohort.fraction": 0.4,
    "optimizer.momentum": None,
    "optimizer.weight_decay": None,
    "evaluation.scopes": ("global",),
}
MANY = {"MOON": {"method.mu": 1.0}}  # the authors' for CIFAR-100 and Tiny-ImageNet; 5 for CIFAR-10
ON_CNN = {"FedNH": {"method.scale": 1.0}}  # the authors' for their small CNN; 20 for ResNet-18
CNN = {"paper": "cnn(widths=(32, 64), dense=128)", "small": "cnn(widths=(8, 16), dense=32)", "smoke": "mlp(widths=(16,))"}


WEIGHTS = (
    "SCAFFOLD, FedOPT, FedNH and FedRCL average clients with equal weights, as in their papers or code; the others by examples."
)


def column(
    label: str,
    variant: str,
    source: str = "cifar10",
    alpha: float = 0.2,
    long_tail: float | None = None,
    targets: tuple[float, ...] | None = None,
) -> Column:
    """Returns a data setting; `long_tail` is rho. Smoke partitions digits in the same way."""
    changes: dict[str, Any] = {"data.partition": f"dirichlet(alpha={alpha})", "data.long_tail": long_tail}
    if variant != "smoke":
        changes["data.source"] = source
    if source.startswith("emnist"):
        changes |= {"models": (CNN[variant],), "data.size": None}
    return Column(label, changes, targets)


def table(title: str, variant: str, columns: tuple[Column, ...], rows: tuple[Row, ...] = ROWS, **more: Any) -> Table:
    """Returns a table with the paper's protocol or a reduced one, and coefficients for its data."""
    cells = {(row.label, column.label): own for row in rows for column in columns if (own := coefficients_for(row, column))}
    if any(row.changes == CLIPPED for row in rows):
        more["differ"] = ("optimizer", *more.get("differ", ()))
    more["note"] = " ".join(filter(None, (more.get("note"), WEIGHTS)))
    return Table(title, rows, columns, (ACCURACY,), SEEDS, SHARED | SETTINGS[variant], cells, **more)


def coefficients_for(row: Row, column: Column) -> dict[str, Any]:
    """Returns the settings in which a method's authors differ for these data from CIFAR-10.

    MOON's authors use 1 for the 100 and 200 classes of CIFAR-100 and Tiny-ImageNet; CIFAR-100-LT is
    a part of CIFAR-100. They do not use EMNIST; its 47 classes also count as many.
    """
    source = column.changes.get("data.source", "")
    cnn = source.startswith("emnist")
    return (MANY.get(row.label, {}) if cnn or source == "cifar100" else {}) | (ON_CNN.get(row.label, {}) if cnn else {})


def published(numbers: dict[str, tuple[float, ...] | None], columns: tuple[Column, ...]) -> dict[str, Any]:
    """Returns `Table.paper` from {row: numbers in the order of the columns}; None: no numbers."""
    labels = [column.label for column in columns]
    return {row: None if line is None else dict(zip(labels, line, strict=True)) for row, line in numbers.items()}


def rounds_table(
    title: str, whole: Table, targets: Mapping[str, tuple[float, ...]], printed: Mapping[str, tuple[int, ...]], source: str
) -> Table:
    """Returns the rounds to accuracies on some columns of a table, beside the published rounds.

    Args:
      title: heading.
      whole: the table whose runs these are.
      targets: accuracies of each column, ascending.
      printed: published rounds of each row, in the order of `targets`.
      source: table of the paper.
    """
    accuracies = sorted({target for of_column in targets.values() for target in of_column})
    measures = {a: Measure(f"rounds to {100 * a:g} %", ACCURACY.scores, f"rounds_to(target={a})") for a in accuracies}
    paper: dict[str, Any] = {row.label: None for row in whole.rows}
    for row, numbers in printed.items():
        rounds = iter(numbers)
        paper[row] = {
            label: {ACCURACY.label: Paper(whole.paper[row][label], source=source)}
            | {measure.label: Paper(next(rounds), source=source) if a in of_column else None for a, measure in measures.items()}
            for label, of_column in targets.items()
        }
    return dataclasses.replace(
        whole,
        title=title,
        columns=tuple(column for column in whole.columns if column.label in targets),
        cells={place: changes for place, changes in whole.cells.items() if place[1] in targets},
        measures=(ACCURACY, *measures.values()),
        paper=paper,
        source="",
    )


def get_table(variant: str = "small") -> Table:
    columns = (column("CIFAR-10, alpha 0.2", variant, targets=(0.2, 0.4, 0.75)),)
    released = Row("FedSKC (released)", fedskc.get_config, RELEASED)
    as_released = Row(
        "FedSKC (released, its rate and crops)",
        fedskc.get_config,
        {**RELEASED, "optimizer.lr": 0.1, "augment": "crop(padding=4) | flip"},
    )
    numbers = dict(zip((row.label for row in BASELINES), (78.61, 78.90, 78.25, 78.80, 81.14, 79.72, 80.66, 81.30), strict=True))
    paper = published(
        {row: (n,) for row, n in numbers.items()}
        | {"FedSKC": (82.35,), PRINTED.label: None, released.label: None, as_released.label: None},
        columns,
    )
    note = "The paper's numbers are of its own setting: all pixels, images and channels, 10 local epochs, 200 rounds."
    return table(
        "FedSKC: all methods",
        variant,
        columns,
        (*ROWS, released, as_released),
        paper=paper,
        source="FedSKC, Table I",
        note=note,
        differ=("data",),
    )
