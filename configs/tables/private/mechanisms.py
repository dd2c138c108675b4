"""Accuracy against epsilon: Gaussian noise, with and without amplification, and correlated noise.

Command:  fedjax-core table private/mechanisms --workdir=runs/private
Figure:   fedjax-core analyse runs/private/runs/*--epsilon-1--* --what=epsilon --out=runs/private
Expect:   see configs/RESULTS.md; on two cores some seconds a cell, 28 of them.
Variants: small (the default): digits, an MLP, 100 rounds; smoke: two rounds; paper: EMNIST by
          writer, 3,400 clients, a CNN, 1,500 rounds, three seeds (needs TensorFlow Federated's
          files, see `configs/fedopt_femnist.py`).

In small, 10 of 250 clients take part in a round. Epsilon at delta 1e-4 is that of a deployment with
40 of 1,000. With cyclic cohorts, a client takes part every 25th round, 4 times in total. At epsilon
1, the mean of 40 deltas, of norm at most 0.5, has independent noise of norm 4.3 (2,410 entries with
deviation 0.088 each), at epsilon 8 of 0.7. A much larger deployment has so little noise that
mechanisms do not differ. In paper, 100 clients take part in a round, for 10,000 of 340,000; with
cyclic cohorts every 34th round.

"Gaussian, sampled" draws each client independently, with amplification; this needs a server that
can sample. The other mechanisms use cyclic cohorts ("in turn"). "no noise" clips deltas to the same
norm, with cyclic and with sampled cohorts; its columns are equal. Epsilon is that of the last
round; each run's records have its course.
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
    """The deployment for which epsilon is computed.

    Attributes:
      cohort: clients per round.
      population: number of clients.
      delta: delta of (epsilon, delta).
    """

    cohort: int
    population: int
    delta: float


def private(change: dict[str, Any], variant: str, deployment: Deployment) -> dict[str, Any]:
    """Returns the settings of a row."""
    if "privacy.mechanism" not in change:
        return {"aggregation.rule": f"norm_bound(bound={CLIP})"} | change
    if variant == "smoke":
        change = change | ({"privacy.mechanism": "banded(bands=2)"} if "banded" in change["privacy.mechanism"] else {})
    return {f"privacy.{name}": value for name, value in deployment._asdict().items()} | {"privacy.clip": CLIP} | change


def table(title: str, variant: str, changes: dict[str, Any], deployment: Deployment) -> Table:
    """Returns the table of all mechanisms at all epsilons.

    Args:
      title: heading.
      variant: "smoke" has two bands, for few rounds; "paper" three seeds.
      changes: settings of all cells.
      deployment: deployment for which epsilon is computed.
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
    """Returns the settings that all cells share, except data and network."""
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
