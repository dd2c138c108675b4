"""Shared definitions of the FedPFT paper's tables; as a table, all methods on one small setting.

Command:  fedjax-core table --table=configs/tables/fedpft/all_methods.py --workdir=runs/fedpft --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default): CIFAR-10 at 16 x 16 pixels, 10 clients with 200 + 100 images each,
          networks with a quarter of the channels, batches of 20, 40 rounds; smoke (two rounds on
          digits, seconds); paper: the published setting, 40 clients with 500 + 100 images (200 of
          Tiny-ImageNet), batches of 100, 1000 rounds.

The paper's tables and figures are `table*.py` and `figure*.py`, numbered as in its ICLR version.
With one --workdir they share equal runs. The published number is the mean accuracy of the clients
on their own test examples in the best round; the last round is shown beside it. ResNet-8 for
CIFAR-10, ResNet-10 for CIFAR-100 and Tiny-ImageNet, both with the 7x7 stem; 4 + 1 local epochs, 3 +
2 for FedPFT+Con at alpha 0.1; a rate of 0.1 for all methods (the paper selects each one's among
0.1, 0.01 and 0.001, as `table8_tuned.py` does). Each seed draws its own partition: the paper's
deviation of Local at alpha 0.1, 3.09, is that of data.

CIFAR-10 from a prepared tfds set: --set="/cifar-10-*:data.source=tfds:cifar10". Tiny-ImageNet: a
folder tiny-imagenet-200 with train/CLASS/* and test/CLASS/*. Every table reports seconds per round.
Table 15 is `fedjax-core analyse RUN --what=communication`, Figure 10 `--what=attention`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from configs import (
    ditto,
    fedamp,
    fedavg,
    fedavg_ft,
    fedavg_linear,
    fedbabu,
    fedbn,
    fedcac,
    fedper,
    fedpft,
    fedrep,
    fedrod,
    local,
    pfedgate,
    pfedpt,
    pfedsd,
)
from configs.tables.base import Changes, Column, Measure, Paper, Row, Search, Table

OWN = ("test/personal/own/accuracy/mean", "test/global/own/accuracy/mean")
VALIDATION = tuple(name.replace("test/", "validation/") for name in OWN)
BEST, LAST = Measure("best round", OWN, "best"), Measure("last round", OWN)
ORIGIN, PROBE, MATCH = (Measure(name, (f"analysis:{name}",)) for name in ("origin", "probe", "match"))
SEEDS = (0, 1, 2)
RATES = (0.1, 0.01, 0.001)  # of which the paper chooses each method's

FEDAVG = Row("FedAvg", fedavg.get_config, {"method.epochs": 5})
LOCAL = Row("Local", local.get_config)
FEDPER = Row("FedPer", fedper.get_config)
FEDBN = Row("FedBN", fedbn.get_config, {"method.epochs": 5})
FEDROD = Row("FedRoD", fedrod.get_config)
PFEDSD = Row("pFedSD", pfedsd.get_config)
FEDCAC = Row("FedCAC", fedcac.get_config)
CAC_OF_MANY = {"method.tau": 0.4, "method.beta": 170}  # the authors' for CIFAR-100, here also for Tiny-ImageNet; CIFAR-10: 0.5, 100
LINEAR = Row("FedAvg+Linear", fedavg_linear.get_config)
BASELINES = (
    FEDAVG,
    LOCAL,
    Row("FedAMP", fedamp.get_config),
    FEDPER,
    Row("FedRep", fedrep.get_config),
    FEDBN,
    FEDROD,
    PFEDSD,
    Row("pFedGate", pfedgate.get_config),
    FEDCAC,
    Row("pFedPT", pfedpt.get_config, {"method.prompt_epochs": 2, "method.epochs": 3}),
)
OTHERS = (
    LINEAR,
    Row("FedBABU", fedbabu.get_config),
    Row("Ditto", ditto.get_config),
    Row("FedAvg, fine-tuned", fedavg_ft.get_config),
)
VIEWS = "resized_crop(scale=(0.2, 1.0)) | greyscale(probability=0.2) | colour_jitter | flip"
CONTRAST = {"method.contrast.on": True, "method.contrast.augment": VIEWS, "method.transform_rate": 0.1}
FEDPFT = Row("FedPFT", fedpft.get_config)
FEDPFT_CON = Row("FedPFT+Con", fedpft.get_config, CONTRAST)
ROWS = (*BASELINES, FEDPFT, FEDPFT_CON)

SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {"data.clients": 40, "method.batch": 100, "rounds": 1000, "evaluation.every": 1},
    "small": {
        "data.clients": 10,
        "data.size": 16,
        "data.examples": 10_000,
        "method.batch": 20,
        "rounds": 40,
        "evaluation.every": 2,
    },
    "smoke": {"data.clients": 5, "method.batch": 20, "rounds": 2, "evaluation.every": 1},
}
SHARED: dict[str, Any] = {
    "data.test_split": None,
    "cohort.fraction": 1.0,
    "optimizer.lr": 0.1,
    "optimizer.momentum": None,
    "optimizer.weight_decay": None,
    "evaluation.scopes": ("own",),
}
EXAMPLES = {"paper": (500, 100), "small": (200, 100), "smoke": (40, 10)}  # per client, for training and testing
CIFAR10, CIFAR100, TINY = "CIFAR-10", "CIFAR-100", "Tiny-ImageNet"
SOURCES = {CIFAR10: "cifar10", CIFAR100: "cifar100", TINY: "folder(path='tiny-imagenet-200')"}
CLASSES = {CIFAR10: 2, CIFAR100: 20, TINY: 40}  # per client, in pathological partitions


def network(name: str, variant: str) -> Changes:
    """Returns a ResNet with the 7x7 stem, in small at a quarter of its width; in smoke a CNN."""
    width = "" if variant == "paper" else ", width=16"
    return {"models": ("cnn(widths=(4,), dense=16)" if variant == "smoke" else f"{name}(stem='imagenet'{width})",)}


def _column(label: str, variant: str, data: str, scheme: str, option: str, model: str = "") -> Column:
    train, test = EXAMPLES[variant]
    test = 200 if (variant, data) == ("paper", TINY) else test
    changes: dict[str, Any] = {"data.partition": f"{scheme}({option}, train_examples={train}, test_examples={test})"}
    if variant != "smoke":
        changes["data.source"] = SOURCES[data]
    return Column(label, {**changes, **network(model or ("resnet8" if data == CIFAR10 else "resnet10"), variant)})


def dirichlet(data: str, alpha: float, variant: str, more: str = "", model: str = "", **changes: Any) -> Column:
    """Returns a data set whose clients have one label distribution each; in smoke digits.

    Args:
      data: one of `SOURCES`.
      alpha: a small alpha is a strong skew.
      variant: variant of the table.
      more: suffix of the label.
      model: a ResNet; "": the paper's for these data.
      **changes: further changes, with "__" for the dot.
    """
    base = _column(f"{data}, alpha {alpha}{more}", variant, data, "dirichlet_clients", f"alpha={alpha}", model)
    return Column(base.label, {**base.changes, **{field.replace("__", "."): value for field, value in changes.items()}})


def pathological(data: str, variant: str) -> Column:
    """Returns a data set whose clients have a few classes each, of equal sizes."""
    classes = 2 if variant == "smoke" else CLASSES[data]
    return _column(f"{data}, {CLASSES[data]} classes", variant, data, "pathological_clients", f"classes_per_client={classes}")


def has_alpha(column: Column, alpha: float) -> bool:
    """Returns whether the column is a Dirichlet partition with this alpha."""
    return column.changes["data.partition"].startswith(f"dirichlet_clients(alpha={alpha},")


def table(
    title: str,
    variant: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    measures: Sequence[Measure] = (BEST, LAST),
    **more: Any,
) -> Table:
    """Returns a table with the paper's protocol, or a reduced one."""
    early = {"method.transform_epochs": 3, "method.model_epochs": 2}
    contrasted = [row for row in rows if row.changes.get("method.contrast.on")]
    cells = {(row.label, column.label): early for row in contrasted for column in columns if has_alpha(column, 0.1)}
    many = [column for column in columns if column.changes.get("data.source") in (SOURCES[CIFAR100], SOURCES[TINY])]
    cells |= {(row.label, column.label): CAC_OF_MANY for row in rows if row.config == FEDCAC.config for column in many}
    return Table(title, rows, columns, measures, SEEDS, SHARED | SETTINGS[variant], cells, new_partitions=True, **more)


def choose_rates(table: Table) -> Table:
    """Returns the table with each row's rate chosen from the paper's grid on validation examples."""
    return dataclasses.replace(
        table,
        rows=tuple(dataclasses.replace(row, space={"optimizer.lr": RATES}) for row in table.rows),
        changes={**table.changes, "data.validation": 0.1},
        search=Search(VALIDATION, trials=len(RATES), sampler="grid"),
        differ=tuple(dict.fromkeys((*table.differ, "optimizer"))),
    )


def published(
    numbers: Mapping[str, str],
    source: str,
    columns: Sequence[Column],
    measures: Sequence[Measure] = (BEST, LAST),
    of: Sequence[Measure] = (BEST,),
) -> dict[str, Any]:
    """Returns `Table.paper` from rows as printed, "34.91±0.86 ...": the measures `of` per
    column."""
    places = [(column.label, measure.label) for column in columns for measure in of]
    entries: dict[str, Any] = {}
    for row, line in numbers.items():
        entries[row] = {column.label: {measure.label: None for measure in measures} for column in columns}
        for (column, measure), text in zip(places, line.split(), strict=True):
            entries[row][column][measure] = Paper(*map(float, text.split("±")), source=f"FedPFT, {source}")
    return entries


PAPER = {
    "FedAvg": "60.41±1.36",
    "Local": "60.15±0.86",
    "FedAMP": "68.26±0.79",
    "FedPer": "68.80±0.49",
    "FedRep": "67.69±0.86",
    "FedBN": "66.79±1.08",
    "FedRoD": "72.34±1.77",
    "pFedSD": "71.97±2.07",
    "pFedGate": "71.98±1.61",
    "FedCAC": "69.83±0.46",
    "pFedPT": "67.33±1.33",
    "FedPFT": "74.10±1.95",
    "FedPFT+Con": "77.54±1.88",
}


def get_table(variant: str = "small") -> Table:
    columns = (dirichlet(CIFAR10, 0.5, variant),)
    paper = published(PAPER, "Table 8", columns) | published({LINEAR.label: "71.17±1.28"}, "Table 9", columns)
    paper |= dict.fromkeys(row.label for row in OTHERS[1:])
    note = "The paper's numbers are of its own setting: all pixels and channels, 40 clients with 500 images each, 1000 rounds."
    return table("FedPFT: all methods", variant, (*ROWS, *OTHERS), columns, paper=paper, note=note)
