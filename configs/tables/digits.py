"""All methods on digits, each in its own config, as a check that they learn.

Command:  fedjax-core table --table=configs/tables/digits.py --workdir=runs/digits
Expect:   see configs/RESULTS.md.
Variants: small (the default); smoke (two rounds); paper: as small.

On the clients' own test examples, a method with one model should come within 3 points of FedAvg,
and one with a model per client at least within one point of Local. Settings are those of the
configs: published coefficients where they exist, except for FedSDR, PerAda and pFedMe, whose
configs note it. Nothing is tuned.
"""

import importlib
from pathlib import Path

from configs.tables.base import Column, Measure, Row, Table

OWN = ("test/personal/own/accuracy/mean", "test/global/own/accuracy/mean")
WHOLE = ("test/global/accuracy", "test/personal/all/accuracy/mean")
METHODS = Path(__file__).parents[2] / "methods"
# Only configs named like their method: the others have other data or targets, or repeat a method.
NAMES = sorted(path.stem for path in Path(__file__).parents[1].glob("[!_]*.py") if (METHODS / path.name).exists())


def get_table(variant: str = "small"):
    def as_small(name):
        get_config = importlib.import_module(f"configs.{name}").get_config
        return lambda variant: get_config("small" if variant == "paper" else variant)

    rows = [Row(name, as_small(name)) for name in NAMES]
    contrast = {"method.contrast.on": True, "method.transform_rate": 0.1}
    contrast |= {} if variant == "smoke" else {"rounds": 150}  # at 50 it has not converged
    rows.append(Row("fedpft with contrast", as_small("fedpft"), contrast))
    for change, values in {"method.server": ("yogi", "adagrad", "momentum")}.items():
        rows += [Row(f"fedopt {value}", as_small("fedopt"), {change: value}) for value in values]
    rows += [Row(f"fedskc {v}", as_small("fedskc"), {"method.variant": v}) for v in ("printed", "released")]
    return Table(
        title="Every method on digits",
        rows=tuple(rows),
        columns=(Column("Dirichlet(0.5)", {"data.partition": "dirichlet(alpha=0.5)"}),),
        measures=(Measure("own test rows", OWN), Measure("whole test set", WHOLE)),
        seeds=(0,),
        changes={"evaluation.scopes": ("global", "own", "all")}
        | ({"rounds": 2, "evaluation.every": 2} if variant == "smoke" else {}),
        note="own test rows: the mean over the clients of the accuracy on their own test rows, of the model that each uses. whole "
        "test set: of a global model, or the mean over the clients' models.",
        differ=("cohort", "rounds", "epochs", "network", "optimizer", "data"),
    )
