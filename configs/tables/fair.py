"""Methods on the same networks, tuned with equal budgets on validation data.

Command:  fedjax-core table fair --workdir=runs/fair --set=data.dir=DIR
Expect:   see configs/RESULTS.md; on a quiet core 5 to 45 seconds a run.
Variants: small (the default): digits with an MLP, 50 rounds; 4,000 images of MNIST at 14 x 14
          pixels with a small CNN, 30 rounds; 4,000 of CIFAR-10 at 16 x 16, likewise; smoke (two
          rounds of digits, two trials); paper: 200 rounds, all of MNIST and CIFAR-10 at full size.

DIR has the IDX files of MNIST in mnist/ and CIFAR-10 as tensorflow_datasets prepares it in
cifar10/.

20 clients, Dirichlet(0.1), of which 4 are unseen: they never train. A fifth of each client's
training examples is held out for validation and selects settings, by 8 trials for each row and
column, and the round. Test examples select nothing. Every row tries rates between 0.01 and 1.
FedAvg, Local, FedAvg+Linear, FedPer, FedRep, LG-FedAvg, HeteroFL and FedRolex try nothing else.
SCAFFOLD, FedDyn, FedDC, FedExP, FedCM, FedACG, MimeLite, FedSpeed, FedOPT, FedNH and FedRCL weight
clients equally, FedSKC nearly so, AFL and q-FedAvg by their losses: FedAvg (uniform) is their control.
Each other row tries one coefficient of its own, most of them over two magnitudes, not necessarily
centered at the authors' value (FedSKC's tau from 0.05 to 5; theirs is 0.08). SCAFFOLD's server rate
covers one magnitude, Per-FedAvg's alpha and DBE's kappa three, FedNH's scale 1 to 30, FedAMP's
alpha up to sigma / 15 (16 clients train); FedNova, FedACG, MimeLite, pFedGate, FedCAC, APFL, FML,
FedFomo, IFCA, DFedAvg and HierFAVG try one of three values. MimeLite's clients read their data once
more, for a gradient. A client is evaluated with the method's personal model if there is one, else
with the global model, on its own test examples. Of HeteroFL and FedRolex, every second client has a
network of half the width, and gradients are clipped as by their authors.

Not here: methods that need a frozen or pre-trained network (FedHPL, pFedPG, adapters), batch
normalization (FedBN), public data (FedMD, FedDF), or that have no clients (Centralized).
"""

import importlib
from typing import Any

from configs.tables.base import Column, LogUniform, Measure, Row, Search, Table

GLOBAL: dict[str, tuple[str, dict[str, Any]]] = {  # methods evaluated by a global model: config, and search space beside the rate
    "FedAvg": ("fedavg", {}),
    "FedProx": ("fedprox", {"method.mu": LogUniform(1e-3, 1e-1)}),
    "SCAFFOLD": ("scaffold", {"method.server_lr": LogUniform(0.1, 1.0)}),
    "FedDyn": ("feddyn", {"method.alpha": LogUniform(0.1, 10.0)}),
    "FedDC": ("feddc", {"method.alpha": LogUniform(0.1, 10.0)}),
    "FedNova": ("fednova", {"method.server_momentum": (0.0, 0.5, 0.9)}),
    "FedExP": ("fedexp", {"method.eps": LogUniform(1e-3, 1e-1)}),
    "FedLC": ("fedlc", {"method.tau": LogUniform(0.1, 10.0)}),
    "FedNTD": ("fedntd", {"method.beta": LogUniform(0.1, 10.0)}),
    "FedCM": ("fedcm", {"method.alpha": LogUniform(0.03, 1.0)}),
    "FedACG": ("fedacg", {"method.lam": (0.0, 0.5, 0.85)}),
    "MimeLite": ("mime_lite", {"method.b1": (0.0, 0.5, 0.9)}),
    "FedSAM": ("fedsam", {"method.rho": LogUniform(0.01, 1.0)}),
    "FedSpeed": ("fedspeed", {"method.rho": LogUniform(0.01, 1.0)}),
    "AFL": ("afl", {"method.ascent_lr": LogUniform(1e-3, 1.0)}),
    "q-FedAvg": ("qfedavg", {"method.q": LogUniform(0.01, 1.0)}),
    "FedOPT (Adam)": ("fedopt", {"method.server_lr": LogUniform(1e-3, 1e-1)}),
    "MOON": ("moon", {"method.mu": LogUniform(0.1, 10.0)}),
    "FedProto-G": ("fedproto_g", {"method.lam": LogUniform(0.01, 1.0)}),
    "FedNH": ("fednh", {"method.scale": LogUniform(1.0, 30.0)}),
    "FedRCL": ("fedrcl", {"method.beta": LogUniform(0.1, 10.0)}),
    "FedGen": ("fedgen", {"method.alpha": LogUniform(0.1, 10.0)}),
    "HierFAVG": ("hierfavg", {"method.cloud_period": (2, 3, 5)}),
    "FedSKC": ("fedskc", {"method.lcl.tau": LogUniform(0.05, 5.0)}),
}
CONTROLS: dict[str, tuple[str, dict[str, Any]]] = {  # what a method with one model gains by equal weights alone
    "FedAvg (uniform)": ("fedavg", {}),
}
PERSONAL: dict[str, tuple[str, dict[str, Any]]] = {  # methods evaluated by a model per client
    "Local": ("local", {}),
    "FedAvg, fine-tuned": ("fedavg_ft", {"method.finetune_rate": LogUniform(0.1, 10.0)}),
    "Per-FedAvg": ("per_fedavg", {"method.alpha": LogUniform(1e-3, 1.0)}),
    "FedAvg+Linear": ("fedavg_linear", {}),
    "FedPer": ("fedper", {}),
    "FedRep": ("fedrep", {}),
    "LG-FedAvg": ("lg_fedavg", {}),
    "FedPAC": ("fedpac", {"method.lam": LogUniform(0.1, 10.0)}),
    "FedBABU": ("fedbabu", {"method.finetune_rate": LogUniform(0.1, 10.0)}),
    "APFL": ("apfl", {"method.alpha": (0.25, 0.5, 0.75)}),
    "DBE": ("dbe", {"method.kappa": LogUniform(0.1, 100.0)}),
    "FedRoD": ("fedrod", {"method.gamma": LogUniform(0.1, 10.0)}),
    "FedCP": ("fedcp", {"method.lam": LogUniform(0.1, 10.0)}),
    "Ditto": ("ditto", {"method.lam": LogUniform(0.1, 10.0)}),
    "FML": ("fml", {"method.alpha": (0.25, 0.5, 0.75)}),
    "pFedMe": ("pfedme", {"method.lam": LogUniform(0.1, 10.0)}),
    "FedALA": ("fedala", {"method.mix_lr": LogUniform(0.1, 10.0)}),
    "pFedSD": ("pfedsd", {"method.lam": LogUniform(0.01, 1.0)}),
    "pFedGate": ("pfedgate", {"method.sparsity": (0.3, 0.5, 1.0)}),
    "FedAMP": ("fedamp", {"method.alpha": LogUniform(0.01, 0.65)}),
    "FedFomo": ("fedfomo", {"method.models": (2, 4, 8)}),
    "FedCAC": ("fedcac", {"method.tau": (0.3, 0.5, 0.7)}),
    "IFCA": ("ifca", {"method.clusters": (2, 3, 4)}),
    "CFL": ("cfl", {"method.client_norm": LogUniform(0.1, 10.0)}),
    "DFedAvg": ("dfedavg", {"method.degree": (2, 4, 8)}),
    "pFedPT": ("pfedpt", {"method.prompt_lr": LogUniform(0.1, 10.0)}),
    "FedPFT": ("fedpft", {"method.transform_rate": LogUniform(0.05, 5.0)}),
    "FedProto": ("fedproto", {"method.lam": LogUniform(0.1, 10.0)}),
    "FedTGP": ("fedtgp", {"method.lam": LogUniform(0.1, 10.0)}),
    "FedGH": ("fedgh", {"method.server_lr": LogUniform(1e-3, 1e-1)}),
    "FedHe": ("fedhe", {"method.alpha": LogUniform(0.05, 5.0)}),
    "HeteroFL": ("heterofl", {}),
    "FedRolex": ("fedrolex", {}),
}
CHANGES = {
    "FedGen": {"method.variant": "official"},  # which is for one network, as all others here
    "FedAvg (uniform)": {"method.weights": "uniform"},
}
HALVED = ("HeteroFL", "FedRolex")  # rows in which every second client has the narrower network
RATES = LogUniform(0.01, 1.0)
OWN = ("test/personal/own/accuracy", "test/global/own/accuracy")
GAP = ("test/personal/gap/accuracy", "test/global/gap/accuracy")
SHARED: dict[str, Any] = {
    "data.clients": 20,
    "data.partition": "dirichlet(alpha=0.1, min_size=10)",
    "data.unseen_clients": 4,
    "data.validation": 0.2,
    "evaluation.scopes": ("own",),
    "evaluation.every": 5,
}


def row(label: str, name: str, model: str, space: dict[str, Any]) -> Row:
    """Returns a method with its small config; the round is selected by the model that is evaluated."""
    small = importlib.import_module(f"configs.{name}").get_config
    changes = {"evaluation.select": f"validation/{model}/own/accuracy/mean"} | CHANGES.get(label, {})
    return Row(label, lambda variant: small("smoke" if variant == "smoke" else "small"), changes, {"optimizer.lr": RATES} | space)


def make_columns(variant: str) -> list[tuple[Column, tuple[str, ...]]]:
    """Returns the columns, each with its network and that of half the width."""
    rounds = {"smoke": (2,), "small": (50, 30, 30), "paper": (200, 200, 200)}[variant]
    small = variant == "small"
    first = 1 if small else 0  # of the networks
    mnist = {"data.source": "mnist"} | ({"data.examples": 4_000, "data.size": 14} if small else {})
    cifar10 = {"data.source": "tfds:cifar10"} | ({"data.examples": 4_000, "data.size": 16} if small else {})
    mlps = ("mlp(widths=(64,))", "mlp(widths=(32,))")
    cnns = ("cnn(widths=(16, 32), dense=64)", "cnn(widths=(8, 16), dense=32)", "cnn(widths=(4, 8), dense=16)")
    pooled = tuple(network.replace("dense", "padding='SAME', pool='each', dense") for network in cnns)
    columns = (
        ("digits", {"data.source": "digits"}, mlps),
        ("MNIST", mnist, cnns[first : first + 2]),
        ("CIFAR-10", cifar10, pooled[first : first + 2]),
    )
    return [
        (Column(label, changes | {"models": networks[:1], "rounds": n}), networks)
        for (label, changes, networks), n in zip(columns, rounds, strict=False)
    ]


def get_table(variant: str = "small") -> Table:
    rows = [
        row(label, name, model, space)
        for model, of in (("global", GLOBAL | CONTROLS), ("personal", PERSONAL))
        for label, (name, space) in of.items()
    ]
    columns = make_columns(variant)
    chosen = tuple(f"{name}/mean" for name in OWN)
    return Table(
        title="Methods with one network, tuned with equal budgets",
        rows=tuple(rows),
        columns=tuple(column for column, _ in columns),
        measures=(
            Measure("own test rows", chosen, "selected"),
            Measure("worst tenth of the clients", OWN, "selected", clients="worst_tenth"),
            Measure("first decile", OWN, "selected", clients="decile(number=1)"),
            Measure("clients worse off than with Local", OWN, "selected", clients="worse_than(row='Local')"),
            Measure("unseen clients", tuple(name.replace("own", "unseen") + "/mean" for name in OWN), "selected"),
            Measure("participation gap", GAP, "selected", percent=True, better="neither"),
        ),
        cells={(label, column.label): {"models": networks} for label in HALVED for column, networks in columns},
        changes=SHARED | ({"evaluation.every": 1} if variant == "smoke" else {}),
        against="FedAvg",
        figure=("own test rows", "worst tenth of the clients", "unseen clients"),
        search=Search(
            tuple(f"validation/{model}/own/accuracy/mean" for model in ("personal", "global")),
            trials=2 if variant == "smoke" else 8,
        ),
        note="Test rows choose nothing: settings and the round are chosen on validation rows. `configs/tables/fair.py` says how.",
        differ=("network", "optimizer", *(["epochs"] if variant == "smoke" else [])),  # FedProto's smoke config has one
    )
