"""Accuracy over simulated time of FedAvg under five policies of the server, with log-normal speeds.

Command:  fedjax-core table time/asynchronous --workdir=runs/asynchronous --set=data.dir=DIR
Figure:   fedjax-core analyse runs/asynchronous/runs/* --what=curves --axis=seconds --out=runs/time
Expect:   see configs/RESULTS.md; on two cores half a minute a run, 15 of them.
Variants: small (the default): 10,000 images of MNIST at 14 x 14 pixels, an MLP, 1,200 client
          updates; smoke: two rounds of digits; paper: all of MNIST with a CNN, 6,000 updates.

100 clients, Dirichlet(0.3). Speeds are log-normal with sigma 1, so the slowest clients take more
than ten times as long as the median. 20 clients train at once. All policies take as many updates,
but for those that the deadline drops:

  synchronous     the server waits for all of 20 clients
  over-selection  it waits for the first 20 of 25
  deadline        it waits for at most 10 seconds
  FedAsync        it moves towards each client's model as it arrives
  FedBuff         it adds the mean of 5 deltas as they arrive
"""

from typing import Any

from configs import fedavg
from configs.tables.base import Column, Measure, Row, Table

PLACES = 20
POLICIES: dict[str, tuple[int, dict[str, Any]]] = {  # updates of a server step, changes
    "synchronous": (PLACES, {}),
    "over-selection": (PLACES, {"cohort.size": PLACES + 5, "devices.wait_for": PLACES}),
    "deadline": (PLACES, {"devices.deadline": 10.0}),
    "FedAsync": (1, {"schedule": "fedasync(alpha=0.6, staleness='polynomial(a=0.5)')"}),
    "FedBuff": (5, {"schedule": "fedbuff(buffer=5)"}),
}


def get_table(variant: str = "small") -> Table:
    updates, points = {"small": 1200, "paper": 6000, "smoke": 2 * PLACES}[variant], 30
    changes: dict[str, Any] = {
        "data.clients": 100,
        "data.partition": "dirichlet(alpha=0.3)",
        "cohort.size": PLACES,
        "method.epochs": 1,
        "method.batch": 20,
        "method.weights": "uniform",
        "optimizer.lr": 0.1,
        "evaluation.scopes": ("global",),
        "devices.profile": "lognormal(examples_per_second=20, sigma=1.0)",
    }
    if variant != "smoke":
        changes |= {"data.source": "mnist"}
    if variant == "small":
        changes |= {"data.examples": 10_000, "data.size": 14, "models": ("mlp(widths=(64,))",)}
    if variant == "paper":
        changes |= {"models": ("cnn(widths=(16, 32), dense=64)",)}
    length = lambda step: {"rounds": updates // step, "evaluation.every": max(1, updates // step // points)}
    config = lambda v: fedavg.get_config("smoke" if v == "smoke" else "small")
    score = ("test/global/accuracy",)
    return Table(
        title="Policies of the server under log-normal speeds",
        rows=tuple(Row(name, config, length(step) | policy) for name, (step, policy) in POLICIES.items()),
        columns=(Column("MNIST" if variant != "smoke" else "digits", {}),),
        measures=(
            Measure("last round", score),
            Measure("seconds to 80 %", score, "seconds_to(target=0.8)"),
            Measure("seconds to 85 %", score, "seconds_to(target=0.85)"),
        ),
        seeds=(0, 1, 2),
        changes=changes,
        targets=(0.8, 0.85, 0.9),
        against="synchronous",
        note="Nothing was tuned: one learning rate, the papers' default weights of staleness. A round is a step of the server.",
        differ=("cohort", "rounds"),
    )
