"""Shared definitions of the FedHPL paper's tables; as a table, all methods on one small setting.

Command:  fedjax-core table --table=configs/tables/fedhpl/all_methods.py --workdir=runs/fedhpl --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default): CIFAR-10 at 16 x 16 pixels, 5 clients with 1000 images each, small
          networks from scratch, 20 rounds; smoke (two rounds on digits, seconds); paper: the
          published setting, ViT-S/B/L and ResNet-18/34/50 at 224 pixels, 5 clients, batches of 16,
          one local epoch, 10 rounds of FedHPL on CIFAR-10 and 15 on the others, 100 of all
          baselines.

The paper's tables and figures are `table*.py` and `figure*.py`. With one --workdir they share runs
with equal row, column and settings. The score is the accuracy on the whole test set, averaged over
clients (for a global model, its own). The paper does not name the round, so its number is shown
beside the last and beside the best round. Data settings are the paper's: IID; Dir, where clients'
examples overlap; Non-IID, disjoint, where every client has 1 % of each class on CIFAR-10, 10 % on
CIFAR-100 and 0.5 % on SVHN.

Frozen backbones come from files (docs/pages/pretrained.md), which the paper variant reads from the
folder weights: vit_s16.npz, vit_b16.npz and vit_l16.npz (ImageNet-21k, then ImageNet-1k,
supervised), resnet18.safetensors, and likewise 34 and 50. Without files (small, smoke), a network
is trained whole together with its prompts. With your own for this image size: --only=fedhpl,local
--set=weights=FILE --set=train=prompts. All baselines except pFedPG train from scratch: ViTs at 224
pixels, ResNets at 32, with the stem counted in Table 7 (3x3 for FedGH, FedMD and FedHE, 7x7 for the
others), pFedPT with Table 5's small ViT. FedProto and FedTGP predict by the nearest prototype
(`test/nearest/...`), as their authors do. The paper does not name FedMD's public set; here 5,000
examples of SVHN for CIFAR-10, and of CIFAR-10 for the other two.

CIFAR-10 from a prepared tfds set: --set="/cifar-10-*:data.source=tfds:cifar10". Figure 4 is
`fedjax-core analyse RUN --what=partition`, Figures 5, 6 and 10 are `--what=classes --scope=all`,
and 7 to 9 `--what=clients,classes` of several runs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from configs import (
    fedavg,
    fedbabu,
    fedgen,
    fedgh,
    fedhe,
    fedmd,
    fedproto,
    fedprox,
    fedrep,
    fedtgp,
    pfedpg,
    pfedpt,
    scaffold,
)
from configs import (
    fedhpl as fedhpl_config,
)
from configs import (
    local as local_config,
)
from configs.tables.base import Changes, Column, Measure, Paper, Row, Table

PREDICTORS = ("nearest", "personal")  # "nearest" exists for FedProto and FedTGP: nearest prototype, as in their papers
LAST = Measure("last round", (*(f"test/{of}/all/accuracy/mean" for of in PREDICTORS), "test/global/accuracy"))
BEST = Measure("best round", LAST.scores, "best")
SPREAD = tuple(
    Measure(what, tuple(f"test/{of}/all/accuracy/{score}" for of in PREDICTORS))
    for what, score in (("lowest", "lowest"), ("average", "mean"), ("highest", "highest"))
)
SEEDS = (0,)
CIFAR10, CIFAR100, SVHN = "CIFAR-10", "CIFAR-100", "SVHN"
SOURCES = {CIFAR10: "cifar10", CIFAR100: "cifar100", SVHN: "svhn"}
ROUNDS = {CIFAR10: 10, CIFAR100: 15, SVHN: 15}
LEAST = {CIFAR10: 0.01, CIFAR100: 0.1, SVHN: 0.005}  # of each class, for every client, in disjoint partitions
PUBLIC = {CIFAR10: "svhn(examples=5000)", CIFAR100: "cifar10(examples=5000)", SVHN: "cifar10(examples=5000)"}
SKEWS = ("IID", "Dir", "Non-IID")

BEGINNING: dict[str, Any] = {"weights": None, "train": "all", "normalise": "data"}
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {"method.batch": 16, "evaluation.every": 1},
    "small": {"data.size": 16, "data.examples": 5000, "method.batch": 16, "rounds": 20, "evaluation.every": 5},
    "smoke": {"data.examples": 200, "method.batch": 16, "rounds": 2, "evaluation.every": 1},
}
SHARED: dict[str, Any] = {
    "data.clients": 5,
    "data.test_split": None,
    "cohort.fraction": 1.0,
    "optimizer.name": "sgd",
    "optimizer.lr": 0.01,
    "optimizer.momentum": 0.9,
    "optimizer.weight_decay": 1e-4,
    "evaluation.scopes": ("all",),
    **BEGINNING,
}


# ---------------------------------------------------------------------------------------------------- networks

MIXED = {
    "vit": ("s16", "b16", "l16", "b16", "s16"),
    "resnet": ("18", "34", "50", "34", "18"),
}  # models of the five clients (Table 4)
PFEDPT_VIT = "vit(patch=4, width=128, depth=8, heads=4, mlp=2)"  # matches the paper's counts with 10 and with 100 classes
SMALL_VITS = {"s16": 24, "b16": 48, "l16": 64}  # widths
SMALL_RESNETS = {"18": "resnet8", "34": "resnet10", "50": "resnet18"}


def vit(size: str, variant: str, prompts: str = "") -> str:
    """Returns the spec of a ViT: "s16", "b16" or "l16", with `prompts` such as "prompts=3"."""
    more = f", {prompts}" if prompts else ""
    if variant == "paper":
        return f"vit_{size}(resize=224{more})"
    patch, depth, width = (4, 4, SMALL_VITS[size]) if variant == "small" else (4, 1, SMALL_VITS[size] // 4)
    return f"vit(patch={patch}, width={width}, depth={depth}, heads=2{more})"


def resnet(depth: str, variant: str, stem: str = "", more: str = "") -> str:
    """Returns the spec of a ResNet: "18", "34" or "50".

    In small it has fewer layers and an eighth of the channels; in smoke it is a CNN.
    """
    options = ", ".join(filter(None, (f"stem={stem!r}" if stem and variant == "paper" else "", more)))
    if variant == "smoke":
        return f"cnn(widths=(4,), dense=16{', ' + options if options else ''})"
    name = f"resnet{depth}" if variant == "paper" else SMALL_RESNETS[depth]
    width = "" if variant == "paper" else "width=8"
    return f"{name}({', '.join(filter(None, (width, options)))})"


def frozen(variant: str, files: Sequence[str], normalise: str) -> Changes:
    """Returns settings that, in the paper variant only, train just prompts and head."""
    if variant != "paper":
        return {}
    return {"train": "prompts", "weights": tuple(f"weights/{file}" for file in files), "normalise": normalise}


def homogeneous(variant: str, prompts: str = "prompts=3") -> Changes:
    """Returns ViT-B for all clients."""
    return {"models": (vit("b16", variant, prompts),), **frozen(variant, ["vit_b16.npz"], "half")}


def heterogeneous(variant: str, prompts: str = "prompts=3") -> Changes:
    """Returns ViT-S, B, L, B, S."""
    specs = tuple(vit(size, variant, prompts) for size in MIXED["vit"])
    return {"models": specs, **frozen(variant, [f"vit_{size}.npz" for size in MIXED["vit"]], "half")}


def framed(variant: str, size: int = 224) -> Changes:
    """Returns ResNet-18, 34, 50, 34, 18 with a frame of three pixels around images of this size."""
    more = {"paper": "frame=3" if size == 32 else f"frame=3, resize={size}", "small": "frame=2", "smoke": "frame=1"}[variant]
    specs = tuple(resnet(depth, variant, "imagenet", more) for depth in MIXED["resnet"])
    return {"models": specs, **frozen(variant, [f"resnet{depth}.safetensors" for depth in MIXED["resnet"]], "imagenet")}


def resnets(variant: str, stem: str, aligned: bool = False) -> Changes:
    """Returns ResNet-18, 34, 50, 34, 18 from scratch; `aligned`: with features of one length."""
    more = {"paper": "features=512", "small": "features=32", "smoke": ""}[variant] if aligned else ""
    return {"models": tuple(resnet(depth, variant, stem, more) for depth in MIXED["resnet"])}


# ---------------------------------------------------------------------------------------------------- methods


def _row(label: str, get_config: Callable[[str], Any], *changes: Changes) -> Row:
    return Row(label, get_config, {key: value for part in changes for key, value in part.items()})


def _baseline(label: str, get_config: Callable[[str], Any], variant: str, *changes: Changes, epochs: str = "method.epochs") -> Row:
    """Returns a row with 100 rounds in the paper variant, evaluated every fifth."""
    own = {"rounds": 100, "evaluation.every": 5} if variant == "paper" else {}
    return _row(label, get_config, own, {epochs: 1} if epochs else {}, *changes)


def fedhpl(label: str, networks: Changes, **options: Any) -> Row:
    """Returns a row of FedHPL with options of the method."""
    return _row(label, fedhpl_config.get_config, networks, {f"method.{k}": value for k, value in ({"epochs": 1} | options).items()})


def local(label: str, networks: Changes) -> Row:
    """Returns a row in which every client trains its prompts (or network) alone."""
    return _row(label, local_config.get_config, networks, {"method.epochs": 1})


KINDS: dict[str, Callable[[str], Changes]] = {"": homogeneous, " (ViT)": heterogeneous}


def both(variant: str, suffix: str = "", **options: Any) -> tuple[Row, ...]:
    """Returns FedHPL with ViT-B for all clients, and with mixed ViTs."""
    return tuple(fedhpl(f"FedHPL{kind}{suffix}", networks(variant), **options) for kind, networks in KINDS.items())


def one_network(variant: str) -> tuple[Row, ...]:
    """Returns the methods of Table 1."""
    vit_b, tuned = {"models": (vit("b16", variant),)}, {"method.finetune_epochs": 10}
    slow_finetuning = {"method.finetune_rate": 0.1}  # times 0.01: the authors fine-tune at 1e-3
    common = {**vit_b, "evaluation.scopes": ("global",)}
    small = PFEDPT_VIT if variant == "paper" else vit("b16", variant)
    prompted = {"models": (vit("b16", variant, "prompts=10, deep=False"),), **frozen(variant, ["vit_b16.npz"], "half")}
    return (
        _baseline("FedAvg", fedavg.get_config, variant, common),
        _baseline("FedProx", fedprox.get_config, variant, common),
        _baseline("SCAFFOLD", scaffold.get_config, variant, common),
        _baseline("FedBABU", fedbabu.get_config, variant, vit_b, tuned, slow_finetuning),
        _baseline(
            "FedRep", fedrep.get_config, variant, vit_b, tuned, {"method.head_epochs": 1, "method.body_epochs": 1}, epochs=""
        ),
        _baseline(
            "pFedPT",
            pfedpt.get_config,
            variant,
            {"models": (small,), "method.pad": 4 if variant == "paper" else 1, "method.prompt_epochs": 5, "method.epochs": 5},
        ),
        _baseline("pFedPG", pfedpg.get_config, variant, prompted, {"method.epochs": 5}),
        fedhpl("FedHPL", homogeneous(variant)),
    )


def many_networks(variant: str) -> tuple[Row, ...]:
    """Returns the methods of Table 2."""
    with_stem, plain = resnets(variant, "imagenet", aligned=True), resnets(variant, "cifar")
    public = {"public": "digits"} if variant != "paper" else {}
    return (
        _baseline("FedGen", fedgen.get_config, variant, with_stem),
        _baseline("FedGH", fedgh.get_config, variant, plain, {"method.projection": 512 if variant == "paper" else 32}),
        _baseline("FedProto", fedproto.get_config, variant, with_stem),
        _baseline("FedTGP", fedtgp.get_config, variant, with_stem),
        _baseline("FedMD", fedmd.get_config, variant, plain, public, epochs=""),
        _baseline("FedHE", fedhe.get_config, variant, plain),
        fedhpl("FedHPL (CNN)", {**framed(variant), **({"rounds": 100} if variant == "paper" else {})}),
        fedhpl("FedHPL (ViT)", heterogeneous(variant)),
    )


# ---------------------------------------------------------------------------------------------------- data


def partition(data: str, skew: str | float) -> str:
    """Returns the partition of one of `SKEWS`, or of a Non-IID concentration."""
    if skew == "IID":
        return "iid"
    if skew == "Dir":
        return "overlapping_dirichlet" + ("" if data == CIFAR10 else "(alpha='random_over_clients')")
    alpha = "'random'" if skew == "Non-IID" else f"{skew}"
    return f"dirichlet(alpha={alpha}, min_share={LEAST[data]})"


def column(data: str, skew: str | float, variant: str, label: str = "") -> Column:
    """Returns a data set with its partition."""
    changes: dict[str, Any] = {"data.partition": partition(data, skew)}
    if variant != "smoke":
        changes["data.source"] = SOURCES[data]
    if variant == "paper":
        changes["rounds"] = ROUNDS[data]
    return Column(label or (f"{data}, {skew}" if isinstance(skew, str) else f"{data}, alpha {skew}"), changes)


def columns(variant: str, skews: Sequence[str | float] = SKEWS) -> tuple[Column, ...]:
    """Returns the skews of each data set; outside of the paper variant only CIFAR-10."""
    return tuple(column(data, skew, variant) for data in (SOURCES if variant == "paper" else (CIFAR10,)) for skew in skews)


# ---------------------------------------------------------------------------------------------------- tables


def table(
    title: str,
    variant: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    measures: Sequence[Measure] = (LAST, BEST),
    **more: Any,
) -> Table:
    """Returns a table with the paper's protocol, or a reduced one."""
    if variant == "paper":
        public = {SOURCES[data]: {"public": name} for data, name in PUBLIC.items()}
        public_cells = {("FedMD", c.label): public.get(c.changes["data.source"], {}) for c in columns}
        more["cells"] = (public_cells if "FedMD" in [row.label for row in rows] else {}) | more.get("cells", {})
    return Table(title, rows, columns, measures, SEEDS, SHARED | SETTINGS[variant], **more)


def published(
    numbers: Mapping[str, str],
    source: str,
    columns: Sequence[Column],
    measures: Sequence[Measure] = (LAST, BEST),
    of: Sequence[Sequence[Measure]] = ((LAST, BEST),),
) -> dict[str, Any]:
    """Returns `Table.paper` from rows as printed.

    Args:
      numbers: "97.89 96.37 96.60 ..." by row: for each column, one number for each of `of`. The
        paper may have more columns.
      source: table of the paper.
      columns: columns of the table, the first ones of the paper's.
      measures: measures of the table.
      of: measures to which the numbers belong.
    """
    entries: dict[str, Any] = {}
    for row, line in numbers.items():
        values = iter(line.split())
        entries[row] = {}
        for column in columns:
            entry: dict[str, Any] = {measure.label: None for measure in measures}
            for beside in of:
                value = Paper(float(next(values)), source=f"FedHPL, {source}")
                entry |= {measure.label: value for measure in beside}
            entries[row][column.label] = entry
    return entries


BLANK = tuple(Column(label, {"data.source": f"blank(classes={k})"}) for label, k in (("CIFAR-10, SVHN", 10), ("CIFAR-100", 100)))


def counted(title: str, rows: Sequence[Row], measures: Sequence[Measure], columns: Sequence[Column] = BLANK, **more: Any) -> Table:
    """Returns a table of counts, which trains nothing and needs no files; equal in all variants."""
    changes = {"data.clients": 5, "data.partition": "iid", "data.test_split": None, "data.examples": None, **BEGINNING}
    return Table(title, rows, columns, measures, SEEDS, changes, **more)


def network_of(row: Row) -> Row:
    """Returns a row of counts: a method's networks, trained whole except for FedBABU's head."""
    get_config = row.config if row.label == "FedBABU" else local_config.get_config
    return Row(row.label, get_config, {name: row.changes[name] for name in ("models", "train") if name in row.changes})


def network(label: str, spec: str, train: str = "all") -> Row:
    """Returns a row of counts: one network for all clients."""
    return Row(label, local_config.get_config, {"models": (spec,), "train": train})


TABLE1 = {
    "FedAvg": "66.03 60.90 64.72  39.35 36.38 39.97  86.36 86.87 88.61",
    "FedProx": "65.13 59.63 63.02  39.50 35.00 37.94  88.91 86.52 87.17",
    "SCAFFOLD": "67.79 62.23 67.87  40.65 35.89 40.05  89.61 87.10 88.34",
    "FedBABU": "63.27 57.12 60.01  39.21 35.28 36.97  87.45 85.61 85.16",
    "FedRep": "64.32 58.93 59.98  39.92 33.30 36.82  88.59 86.80 86.11",
    "pFedPT": "58.60 52.42 54.10  28.54 26.40 27.15  83.28 79.95 80.49",
    "pFedPG": "97.20 96.07 96.47  85.30 82.08 81.70  93.04 91.66 90.21",
    "FedHPL": "97.89 96.37 96.60  89.68 86.82 86.23  94.57 91.71 90.46",
}
TABLE2 = {
    "FedGen": "39.45 37.39 38.74  12.20 12.91 13.15  73.45 69.30 60.84",
    "FedGH": "68.05 54.49 58.08  29.86 25.34 25.60  92.33 89.10 87.28",
    "FedProto": "40.12 37.66 39.49  14.46 13.73 13.74  79.80 78.16 66.04",
    "FedTGP": "38.84 34.46 39.87  10.03 11.83 11.75  76.05 67.79 62.55",
    "FedMD": "67.39 66.53 66.62  29.71 32.22 30.71  90.05 89.96 90.44",
    "FedHE": "67.06 55.32 56.48  29.87 26.84 26.47  92.59 88.36 88.17",
    "FedHPL (CNN)": "83.05 70.45 76.53  62.73 54.68 52.92  72.43 63.28 59.78",
    "FedHPL (ViT)": "97.06 96.10 95.75  88.84 85.85 85.57  94.19 90.75 90.02",
}


def get_table(variant: str = "small") -> Table:
    rows = (*one_network(variant), local("Local", homogeneous(variant)), *many_networks(variant))
    rows += (local("Local (CNN)", framed(variant)), local("Local (ViT)", heterogeneous(variant)))
    of_iid = {name: line.split()[0] for name, line in (TABLE1 | TABLE2).items()}
    columns = (column(CIFAR10, "IID", variant),)
    paper = published(of_iid, "Tables 1 and 2", columns) | dict.fromkeys(("Local", "Local (CNN)", "Local (ViT)"))
    note = "The paper's numbers are of its own setting: pre-trained ViT-B and mixed networks at 224 pixels, all 50,000 images."
    return table(
        "FedHPL: all methods", variant, rows, columns, paper=paper, note=note, differ=("rounds", "epochs", "network", "data")
    )
