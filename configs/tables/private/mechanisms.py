"""Accuracy against epsilon: Gaussian noise with and without amplification by sampling, and noise that is correlated over rounds.

Command:  fedjax-core table private/mechanisms --workdir=runs/private
Figure:   fedjax-core analyse runs/private/runs/* --what=epsilon --out=runs/private
Expect:   not run yet; on two cores some seconds a cell, 28 of them.
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

from typing import Any

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


def private(change: dict[str, Any], variant: str) -> dict[str, Any]:
    """A row's settings."""
    if "privacy.mechanism" not in change:
        return {"aggregation.rule": f"norm_bound(bound={CLIP})"} | change
    if variant == "smoke":
        change = change | ({"privacy.mechanism": "banded(bands=2)"} if "banded" in change["privacy.mechanism"] else {})
    size, everybody, delta = (10_000, 340_000, 1e-6) if variant == "paper" else (40, 1_000, 1e-4)
    return {"privacy.clip": CLIP, "privacy.delta": delta, "privacy.cohort": size, "privacy.population": everybody} | change


def get_table(variant: str = "small") -> Table:
    paper = variant == "paper"
    changes: dict[str, Any] = {
        "data.clients": 250,
        "data.partition": "iid",
        "cohort.size": 10,
        "method.weights": "uniform",
        "method.epochs": 1,
        "method.batch": 10,
        "models": ("mlp(widths=(32,))",),
        "normalise": "unit",
        "optimizer.lr": 0.3,
        "rounds": 2 if variant == "smoke" else 100,
        "evaluation.every": 1 if variant == "smoke" else 10,
        "evaluation.scopes": ("global",),
    }
    if paper:
        changes |= {"data.source": "femnist", "data.clients": 3400, "data.partition": "natural", "cohort.size": 100}
        changes |= {"models": ("cnn(widths=(32, 64), dense=128)",), "method.batch": 20, "optimizer.lr": 0.1}
        changes |= {"rounds": 1500, "evaluation.every": 50}
    columns = tuple(Column(f"epsilon {epsilon:g}", {}) for epsilon in EPSILONS)
    rows = tuple(Row(label, fedavg.get_config, private(change, variant)) for label, change in MECHANISMS.items())
    cells = {
        (row.label, column.label): {"privacy.epsilon": epsilon}
        for row in rows
        if not row.label.startswith("no noise")
        for column, epsilon in zip(columns, EPSILONS, strict=True)
    }
    return Table(
        title="Accuracy against epsilon",
        rows=rows,
        columns=columns,
        measures=(Measure("last round", ("test/global/accuracy",)), Measure("best round", ("test/global/accuracy",), "best")),
        seeds=(0, 1, 2) if paper else (0,),
        changes=changes,
        cells=cells,
        against="Gaussian, in turn",
    )
