"""FedAvg, FedProx and FedNova where clients train for 1 to 10 epochs, tuned with equal budgets.

Command:  fedjax-core table time/epochs --workdir=runs/epochs --set=data.dir=DIR
Expect:   see configs/RESULTS.md; on two cores 10 seconds a run, 30 of them.
Variants: small (the default): 10,000 images of MNIST, an MLP, 40 rounds; smoke: two rounds of
          digits, two trials; paper: all of MNIST with a CNN, 200 rounds.

30 clients, Dirichlet(0.1), 10 a round. In one column each client's number of local epochs is drawn
once from 1 to 10, from the data seed, so all rows have the same clients; in the other all clients
train for 5. A tenth of each client's training examples is held out for validation and selects the
learning rate, and FedProx's mu, by 3 trials for each row and column. Test examples select nothing.
"""

from typing import Any

from configs import fedavg, fednova, fedprox
from configs.tables.base import Column, LogUniform, Measure, Row, Search, Table


def get_table(variant: str = "small") -> Table:
    rate = {"optimizer.lr": LogUniform(0.01, 0.3)}
    config = lambda get_config: lambda v: get_config("smoke" if v == "smoke" else "small")
    changes: dict[str, Any] = {"evaluation.scopes": ("global",), "data.validation": 0.1, "method.batch": 32}
    changes |= {"data.clients": 30, "data.partition": "dirichlet(alpha=0.1, min_size=10)", "cohort.size": 10}
    if variant != "smoke":
        changes |= {"data.source": "mnist", "models": ("mlp(widths=(64,))",), "rounds": 40, "evaluation.every": 4}
    if variant == "small":
        changes |= {"data.examples": 10_000}
    if variant == "paper":
        changes |= {"models": ("cnn(widths=(16, 32), dense=64)",), "rounds": 200}
    if variant == "smoke":
        changes |= {"rounds": 2, "evaluation.every": 1}
    return Table(
        title="Local epochs that differ by client",
        rows=(
            Row("FedAvg", config(fedavg.get_config), {}, rate),
            Row("FedProx", config(fedprox.get_config), {}, rate | {"method.mu": LogUniform(1e-3, 1.0)}),
            Row("FedNova", config(fednova.get_config), {}, rate),
        ),
        columns=(
            Column("5 epochs", {"method.epochs": 5}),
            Column("1 to 10 epochs", {"method.epochs": 5, "clients.epochs": "uniform(low=1, high=10)"}),
        ),
        measures=(
            Measure("last round", ("test/global/accuracy",)),
            Measure("best round", ("test/global/accuracy",), "best"),
            Measure("rounds to 85 %", ("test/global/accuracy",), "rounds_to(target=0.85)"),
        ),
        seeds=(0, 1, 2),
        changes=changes,
        against="FedAvg",
        search=Search(("validation/global/accuracy",), trials=2 if variant == "smoke" else 3),
        note="Validation examples chose the learning rates, and FedProx's mu. Epochs are drawn from the data seed.",
    )
