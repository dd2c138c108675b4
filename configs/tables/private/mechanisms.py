"""Accuracy against epsilon: Gaussian noise with and without amplification by sampling, and noise that is correlated over rounds.

Command:  fedjax-core table private/mechanisms --workdir=runs/private
Figure:   fedjax-core analyse runs/private/runs/*--epsilon-1--* --what=epsilon --out=runs/private
Expect:   see configs/RESULTS.md; on two cores some seconds a cell, 28 of them.
Variants: small (the default): digits, an MLP, 100 rounds; smoke: two rounds; paper: EMNIST by writer, 3,400 clients, a CNN, 1,500
          rounds, three seeds (TensorFlow Federated's files must be there, see `configs/fedopt_femnist.py`).

small: 250 clients, 10 a round, in place of a deployment of 1,000 with 40 a round, whose epsilon at delta 1e-4 is told. In turn
a client comes every 25th round, 4 times in all. At epsilon 1 the mean of 40 deltas, of length 0.5 at most, has independent noise in
turn of length 4.3 (2,410 numbers, each of deviation 0.088), at epsilon 8 of 0.7; a much larger deployment has so little that no
mechanism differs from another. paper: 100 clients a round, for 10,000 of 340,000; in turn every 34th round.

"Gaussian, sampled" draws each client by itself and is amplified by that, which needs a server that can; the others are told whom
rounds bring, in turn. "no noise" has deltas of the same length at most, and the same cohorts, in turn and sampled: its columns are
alike. Epsilon is of the last round; one over the rounds is in each run's records.
"""

from typing import Any, NamedTuple

from configs import fedavg
from configs.tables.base import Column, Measure, Row, Table

EPSILONS = (1.0, 2.0, 4.0, 8.0)
CLIP = 0.5
MECHANISMS = {
    "no noise, sampled": {"cohort.sampling": "poisson"},
    "no noise, in turn": {"cohort.sampling": "cyclic"},
    "Gaussian, sampled": {"privacy.mechanism": "gaussian", "cohort.sampling": "poisson"},
    "Gaussian, in turn": {"privacy.mechanism": "gaussian", "cohort.sampling": "cyclic"},
    "tree": {"privacy.mechanism": "tree", "cohort.sampling": "cyclic"},
    "banded": {"privacy.mechanism": "banded(bands=8)", "cohort.sampling": "cyclic"},
    "BLT": {"privacy.mechanism": "blt(buffers=3)", "cohort.sampling": "cyclic"},
}


class Deployment(NamedTuple):
    """What epsilon is told of.

    Attributes:
      cohort: clients a round.
      population: all of them.
      delta: of (epsilon, delta).
    """

    cohort: int
    population: int
    delta: float


def private(change: dict[str, Any], variant: str, deployment: Deployment) -> dict[str, Any]:
    """A row's settings."""
    if "privacy.mechanism" not in change:
        return {"aggregation.rule": f"norm_bound(bound={CLIP})"} | change
    if variant == "smoke":
        change = change | ({"privacy.mechanism": "banded(bands=2)"} if "banded" in change["privacy.mechanism"] else {})
    return {f"privacy.{name}": value for name, value in deployment._asdict().items()} | {"privacy.clip": CLIP} | change


def table(title: str, variant: str, changes: dict[str, Any], deployment: Deployment) -> Table:
    """All mechanisms at all epsilons.

    Args:
      title: of the table.
      variant: "smoke" has two bands, for few rounds; "paper" three seeds.
      changes: what all cells have.
      deployment: what epsilon is told of.
    """
    columns = tuple(Column(f"epsilon {epsilon:g}", {}) for epsilon in EPSILONS)
    rows = tuple(Row(label, fedavg.get_config, private(change, variant, deployment)) for label, change in MECHANISMS.items())
    cells = {
        (row.label, column.label): {"privacy.epsilon": epsilon}
        for row in rows
        if not row.label.startswith("no noise")
        for column, epsilon in zip(columns, EPSILONS, strict=True)
    }
    return Table(
        title=title,
        rows=rows,
        columns=columns,
        measures=(Measure("last round", ("test/global/accuracy",)), Measure("best round", ("test/global/accuracy",), "best")),
        seeds=(0, 1, 2) if variant == "paper" else (0,),
        changes=changes,
        cells=cells,
        against="Gaussian, in turn",
        differ=("cohort",),
    )


def shared(variant: str) -> dict[str, Any]:
    """What all cells have, but for data and network."""
    return {
        "data.partition": "iid",
        "method.weights": "uniform",
        "method.epochs": 1,
        "method.batch": 10,
        "normalise": "unit",
        "optimizer.lr": 0.3,
        "rounds": 2 if variant == "smoke" else 100,
        "evaluation.every": 1 if variant == "smoke" else 10,
        "evaluation.scopes": ("global",),
    }


def get_table(variant: str = "small") -> Table:
    changes = shared(variant) | {"data.clients": 250, "cohort.size": 10, "models": ("mlp(widths=(32,))",)}
    if variant == "paper":
        changes |= {"data.source": "femnist", "data.clients": 3400, "data.partition": "natural", "cohort.size": 100}
        changes |= {"models": ("cnn(widths=(32, 64), dense=128)",), "method.batch": 20, "optimizer.lr": 0.1}
        changes |= {"rounds": 1500, "evaluation.every": 50}
        return table("Accuracy against epsilon", variant, changes, Deployment(10_000, 340_000, 1e-6))
    return table("Accuracy against epsilon", variant, changes, Deployment(40, 1_000, 1e-4))
