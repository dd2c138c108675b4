"""FedSKC's parts against FedAvg on MNIST, each tuned; `tuned_cifar10.py` has CIFAR-10.

Command:  fedjax-core table fedskc/tuned --workdir=runs/fedskc_tuned --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default): 12,000 training images, a CNN of 16 and 32 channels, 2 local epochs,
          60 rounds; paper: all images, 10 local epochs, 200 rounds; smoke: two rounds of digits,
          two trials.

A small CNN under strong and mild skew. 20 clients, 8 a round, batches of 64, plain SGD. The rows
are those of the paper's Table V and three controls: FedAvg and LCL with uniform weights, and GDA
alone. They show whether GDA does more than uniform weights. A tenth of each client's training
examples is held out for validation and selects settings, with the same number of trials for every
row and column, and the round. Test examples select nothing. All rows try rates between 0.01 and
0.5; rows with LCL also its temperature, over two magnitudes. A third of the trials continues after
a third of the rounds. Each seed draws its own partition. The last column partitions the data as in
the released code, into clients of equal size, for which weights by samples are uniform.
"""

from configs import fedavg, fedskc
from configs.tables.base import Changes, Column, LogUniform, Measure, Row, Search, Table
from configs.tables.fedskc import all_methods
from configs.tables.fedskc.table5 import ALONE, PARTS

CNN = {"models": ("cnn(widths=(16, 32), dense=64)",)}
SETTINGS = {
    "paper": {"method.epochs": 10, "optimizer.lr": 0.01, "rounds": 200},
    "small": {"method.epochs": 2, "optimizer.lr": 0.1, "rounds": 60, "data.examples": 12_000},
    "smoke": {"method.epochs": 1, "rounds": 2, "evaluation.every": 1, "models": ("mlp(widths=(16,))",), "data.source": "digits"},
}
SHARED = {
    "method.batch": 64,
    "data.validation": 0.1,
    "evaluation.every": 5,
    "evaluation.batch": 1000,
    "evaluation.select": "validation/global/accuracy",
}


def table(variant: str, data: str, changes: Changes, highest: float, trials: int) -> Table:
    """Returns the table of FedAvg and FedSKC's parts on one data set.

    Args:
      variant: small, paper or smoke.
      data: name of the data set in the columns.
      changes: data set and network, which smoke replaces.
      highest: maximum learning rate of the trials.
      trials: number of trials per row and column.
    """
    rate = {"optimizer.lr": LogUniform(0.01, highest)}
    with_tau = rate | {"method.lcl.tau": LogUniform(0.05, 5.0)}
    rows = [
        Row("FedAvg", fedavg.get_config, space=rate),
        Row("FedAvg (uniform)", fedavg.get_config, {"method.weights": "uniform"}, space=rate),
        Row("GDA alone", fedskc.get_config, ALONE["GDA"], space=rate),
        Row("LCL + uniform", fedskc.get_config, PARTS["LCL"] | {"method.weights": "uniform"}, space=with_tau),
    ]
    rows += [Row(label, fedskc.get_config, own, space=with_tau) for label, own in PARTS.items()]
    smoke = variant == "smoke"
    return Table(
        title="FedSKC's parts and FedAvg, tuned with equal budgets",
        rows=tuple(rows),
        columns=(
            *(Column(f"{data}, alpha {a}", {"data.partition": f"dirichlet(alpha={a})"}) for a in (0.05, 0.2)),
            Column(f"{data}, as released", {"data.partition": "grouped_dirichlet(alpha=0.05)"}),
        ),
        measures=(
            Measure("selected round", ("test/global/accuracy",), "selected"),
            Measure("last round", ("test/global/accuracy",)),
        ),
        seeds=(0, 1, 2, 3, 4),
        changes={**all_methods.SHARED, **SHARED, **changes, **SETTINGS[variant]},
        new_partitions=True,
        against="FedAvg",
        search=Search("validation/global/accuracy", trials=2 if smoke else trials, halving=None if smoke else 3),
    )


def get_table(variant: str = "small") -> Table:
    return table(variant, "MNIST", CNN | {"data.source": "mnist"}, highest=0.5, trials=6)
