"""Methods with one network for all clients, tuned with equal budgets on validation data.

Command:  fedjax-core table fair --workdir=runs/fair --set=data.dir=DIR
Expect:   see configs/RESULTS.md; on two cores 10 seconds a run.
Variants: small (the default): digits with an MLP, 50 rounds, and 4,000 images of MNIST at 14 x 14
          pixels with a small CNN, 30 rounds; smoke (two rounds of digits, two trials); paper: both
          with 200 rounds, all of MNIST at full size.

20 clients, Dirichlet(0.1), of which 4 are unseen: they never train. A fifth of each client's
training examples is held out for validation and selects settings, by 8 trials for each row and
column, and the round. Test examples select nothing. Every row tries rates between 0.01 and 1.
FedAvg, Local, FedAvg+Linear, FedPer, FedRep and LG-FedAvg try nothing else. Each other row tries
one coefficient of its own, most of them over two magnitudes, not necessarily centered at the
authors' value (FedSKC's tau from 0.05 to 5; theirs is 0.08). SCAFFOLD's server rate covers one
magnitude, Per-FedAvg's alpha and DBE's kappa three, FedNH's scale 1 to 30, FedAMP's alpha up to
sigma / 15 (16 clients train); pFedGate, FedCAC, APFL, FedFomo, IFCA, DFedAvg and HierFAVG try one
of three values. A client is evaluated with the method's personal model if there is one, else with
the global model, on its own test examples.
"""

import importlib
from typing import Any

from configs.tables.base import Column, LogUniform, Measure, Row, Search, Table

GLOBAL: dict[str, tuple[str, dict[str, Any]]] = {  # methods evaluated by a global model: config, and search space beside the rate
    "FedAvg": ("fedavg", {}),
    "FedProx": ("fedprox", {"method.mu": LogUniform(1e-3, 1e-1)}),
    "SCAFFOLD": ("scaffold", {"method.server_lr": LogUniform(0.1, 1.0)}),
    "FedDyn": ("feddyn", {"method.alpha": LogUniform(0.1, 10.0)}),
    "FedNova": ("fednova", {"method.server_momentum": (0.0, 0.5, 0.9)}),
    "FedExP": ("fedexp", {"method.eps": LogUniform(1e-3, 1e-1)}),
    "FedLC": ("fedlc", {"method.tau": LogUniform(0.1, 10.0)}),
    "FedNTD": ("fedntd", {"method.beta": LogUniform(0.1, 10.0)}),
    "FedCM": ("fedcm", {"method.alpha": LogUniform(0.03, 1.0)}),
    "FedSAM": ("fedsam", {"method.rho": LogUniform(0.01, 1.0)}),
    "FedSpeed": ("fedspeed", {"method.rho": LogUniform(0.01, 1.0)}),
    "AFL": ("afl", {"method.ascent_lr": LogUniform(1e-3, 1.0)}),
    "q-FedAvg": ("qfedavg", {"method.q": LogUniform(0.01, 1.0)}),
    "FedOPT (Adam)": ("fedopt", {"method.server_lr": LogUniform(1e-3, 1e-1)}),
    "MOON": ("moon", {"method.mu": LogUniform(0.1, 10.0)}),
    "FedProto-G": ("fedproto_g", {"method.lam": LogUniform(0.01, 1.0)}),
    "FedNH": ("fednh", {"method.scale": LogUniform(1.0, 30.0)}),
    "FedRCL": ("fedrcl", {"method.beta": LogUniform(0.1, 10.0)}),
    "HierFAVG": ("hierfavg", {"method.cloud_period": (2, 3, 5)}),
    "FedSKC": ("fedskc", {"method.lcl.tau": LogUniform(0.05, 5.0)}),
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
}
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
    select = {"evaluation.select": f"validation/{model}/own/accuracy/mean"}
    return Row(label, lambda variant: small("smoke" if variant == "smoke" else "small"), select, {"optimizer.lr": RATES} | space)


def get_table(variant: str = "small") -> Table:
    rows = [
        row(label, name, model, space)
        for model, of in (("global", GLOBAL), ("personal", PERSONAL))
        for label, (name, space) in of.items()
    ]
    rounds = {"smoke": (2,), "small": (50, 30), "paper": (200, 200)}[variant]
    mlp = {"data.source": "digits", "models": ("mlp(widths=(64,))",)}
    cnn = {"data.source": "mnist", "models": ("cnn(widths=(16, 32), dense=64)",)}
    if variant == "small":
        cnn |= {"data.examples": 4_000, "data.size": 14, "models": ("cnn(widths=(8, 16), dense=32)",)}
    columns = [Column(label, of | {"rounds": n}) for (label, of), n in zip((("digits", mlp), ("MNIST", cnn)), rounds, strict=False)]
    chosen = tuple(f"{name}/mean" for name in OWN)
    return Table(
        title="Methods with one network, tuned with equal budgets",
        rows=tuple(rows),
        columns=tuple(columns),
        measures=(
            Measure("own test rows", chosen, "selected"),
            Measure("worst tenth of the clients", OWN, "selected", clients="worst_tenth"),
            Measure("first decile", OWN, "selected", clients="decile(number=1)"),
            Measure("clients worse off than with Local", OWN, "selected", clients="worse_than(row='Local')"),
            Measure("unseen clients", tuple(name.replace("own", "unseen") + "/mean" for name in OWN), "selected"),
            Measure("participation gap", GAP, "selected", percent=True, better="neither"),
        ),
        changes=SHARED | ({"evaluation.every": 1} if variant == "smoke" else {}),
        against="FedAvg",
        figure=("own test rows", "worst tenth of the clients", "unseen clients"),
        search=Search(
            tuple(f"validation/{model}/own/accuracy/mean" for model in ("personal", "global")),
            trials=2 if variant == "smoke" else 8,
        ),
        note="Test rows choose nothing: settings and the round are chosen on validation rows. `configs/tables/fair.py` says how.",
        differ=("epochs",) if variant == "smoke" else (),  # FedProto's smoke config has one
    )
