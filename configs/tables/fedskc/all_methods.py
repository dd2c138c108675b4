"""What the tables of the FedSKC paper share; as a table itself, all methods on one setting that two cores finish.

Command:  fedjax-core table --table=configs/tables/fedskc/all_methods.py --workdir=runs/fedskc --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default): CIFAR-10 at 16 x 16 pixels, 10,000 of its training images, ResNet-8 with a quarter of the channels, 2
          local epochs, 30 rounds, learning rate 0.05; smoke (two rounds on digits, seconds); paper: the published setting.

The paper's are `table1.py` to `table5.py` and `figure3*.py`; `readings.py` compares readings of GDA. In one --workdir they share
the runs that they have in common. FedSKC stands there as it is by default and as printed; the other methods have their authors'
coefficients. The paper does not name the member of FedOPT: it is FedAdam here. CIFAR-10 as a prepared tfds set:
--set="/cifar-10-*:data.source=tfds:cifar10".

Figures 4a to 4c are `fedjax-core analyse RUN ... --what=knowledge` of runs of FedSKC, FedAvg, and FedSKC with M = 0 (without
Eq. 1; `figure3ab.py`); Figure 1b is `--what=landscape`.
"""

from typing import Any

from configs import fedavg, fednh, fedopt, fedproto_g, fedprox, fedrcl, fedskc, moon, scaffold
from configs.tables.base import Column, Measure, Row, Table

ACCURACY = Measure("global test accuracy", ("test/global/accuracy",))
SEEDS = (0, 1, 2)

CLIPPED = {"optimizer.clip": 10.0}  # norm of gradients, in the code of both
BASELINES = (
    Row("FedAvg", fedavg.get_config),
    Row("FedProx", fedprox.get_config),
    Row("SCAFFOLD", scaffold.get_config),
    Row("FedOPT (Adam)", fedopt.get_config),
    Row("MOON", moon.get_config),
    Row("FedProto-G", fedproto_g.get_config),
    Row("FedNH", fednh.get_config, CLIPPED),
    Row("FedRCL", fedrcl.get_config, CLIPPED),
)
FEDSKC = Row("FedSKC", fedskc.get_config)
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
MANY = {"MOON": {"method.mu": 1.0}}  # the paper's for CIFAR-100 and Tiny-ImageNet; its 5 is of CIFAR-10
ON_CNN = {"FedNH": {"method.scale": 1.0}}  # the authors' for their small CNN; 20 is of ResNet-18
CNN = {"paper": "cnn(widths=(32, 64), dense=128)", "small": "cnn(widths=(8, 16), dense=32)", "smoke": "mlp(widths=(16,))"}


def column(
    label: str,
    variant: str,
    source: str = "cifar10",
    alpha: float = 0.2,
    long_tail: float | None = None,
    targets: tuple[float, ...] | None = None,
) -> Column:
    """A data setting: `long_tail` is rho. In smoke it is digits, divided in the same way."""
    changes: dict[str, Any] = {"data.partition": f"dirichlet(alpha={alpha})", "data.long_tail": long_tail}
    if variant != "smoke":
        changes["data.source"] = source
    if source.startswith("emnist"):
        changes |= {"models": (CNN[variant],), "data.size": None}
    return Column(label, changes, targets)


def table(title: str, variant: str, columns: tuple[Column, ...], rows: tuple[Row, ...] = ROWS, **more: Any) -> Table:
    """A table with the protocol of the paper, or a reduced one; with coefficients that go with the data."""
    cells = {(row.label, column.label): found for row in rows for column in columns if (found := of_data(row, column))}
    more |= {"differ": ("optimizer",)} if any(row.changes == CLIPPED for row in rows) else {}
    return Table(title, rows, columns, (ACCURACY,), SEEDS, SHARED | SETTINGS[variant], cells, **more)


def of_data(row: Row, column: Column) -> dict[str, Any]:
    """What a method's authors set otherwise for such data than for CIFAR-10.

    MOON's authors have 1 for the 100 and 200 classes of CIFAR-100 and Tiny-ImageNet. CIFAR-100-LT is a part of CIFAR-100. EMNIST
    they do not have: its 47 classes are taken for many too.
    """
    source = column.changes.get("data.source", "")
    cnn = source.startswith("emnist")
    return (MANY.get(row.label, {}) if cnn or source == "cifar100" else {}) | (ON_CNN.get(row.label, {}) if cnn else {})


def published(numbers: dict[str, tuple[float, ...] | None], columns: tuple[Column, ...]) -> dict[str, Any]:
    """{row: numbers in the order of the columns} as a table wants it; None for a row without."""
    labels = [column.label for column in columns]
    return {row: None if found is None else dict(zip(labels, found, strict=True)) for row, found in numbers.items()}


def get_table(variant: str = "small") -> Table:
    columns = (column("CIFAR-10, alpha 0.2", variant, targets=(0.2, 0.4, 0.75)),)
    released = Row("FedSKC (released)", fedskc.get_config, {"method.variant": "released"})
    numbers = dict(zip((row.label for row in BASELINES), (78.61, 78.90, 78.25, 78.80, 81.14, 79.72, 80.66, 81.30), strict=True))
    paper = published(
        {row: (n,) for row, n in numbers.items()} | {"FedSKC": (82.35,), PRINTED.label: None, released.label: None}, columns
    )
    note = "The paper's numbers are of its own setting: all pixels, images and channels, 10 local epochs, 200 rounds."
    return table("FedSKC: all methods", variant, columns, (*ROWS, released), paper=paper, source="FedSKC, Table I", note=note)
