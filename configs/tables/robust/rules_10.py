"""Robust rules on MNIST, a tenth of the clients attacking: 8 rules, 6 attacks, 3 partitions.

Command:  fedjax-core table robust/rules_10 --workdir=runs/robust --set=data.dir=DIR
Expect:   see configs/RESULTS.md; on two cores some seconds a cell, 168 of them.
Variants: small (the default): 4,000 images at 14 x 14 pixels, an MLP, 25 rounds; smoke: two rounds
          of digits; paper: all of MNIST at full size with a CNN, 100 rounds, three seeds.

A column has no attack. 20 clients, all in every round, of which 2 attack (6 in `rules_30`). Rules
are set to this number. ALIE uses z = 1.5, because its default is 0 with so few attackers. Sign
flips double the norm: with three times the norm, six attackers of 20 invert the mean and its run
diverges. Clients have equal weights, as in the rules. The same command again runs missing cells.
"""

from typing import Any

from configs import fedavg
from configs.tables.base import Column, Measure, Row, Table

RULES = {  # with the fraction of attackers, for rules that take it
    "mean": "mean",
    "median": "median",
    "trimmed mean": "trimmed_mean(attackers={share})",
    "multi-Krum": "multi_krum(attackers={share})",
    "Bulyan": "bulyan(attackers={share})",
    "geometric median": "geometric_median",
    "centred clipping": "centred_clipping(radius=1.0, iterations=3)",
    "mixing, trimmed mean": "mixing(attackers={share}) | trimmed_mean(attackers={share})",
}
ATTACKS = {
    "labels flipped": "label_flip",
    "sign flip": "sign_flip(scale=2.0)",
    "noise": "noise(deviation=0.1)",
    "ALIE": "alie(z=1.5)",
    "inner product": "inner_product(epsilon=2.0)",
    "mimic": "mimic",
}
PARTITIONS = {"IID": "iid", "Dirichlet(1)": "dirichlet(alpha=1.0)", "Dirichlet(0.1)": "dirichlet(alpha=0.1, min_size=10)"}


def shared(variant: str) -> dict[str, Any]:
    """Returns the settings that all cells share."""
    settings: dict[str, Any] = {
        "data.clients": 20,
        "method.weights": "uniform",
        "method.epochs": 1,
        "method.batch": 20,
        "cohort.fraction": 1.0,
        "optimizer.lr": 0.1,
        "evaluation.scopes": ("global",),
        "evaluation.batch": 1000,
    }
    if variant == "smoke":
        return settings | {"rounds": 2, "evaluation.every": 1}
    if variant == "paper":
        cnn = {"models": ("cnn(widths=(16, 32), dense=64)",), "method.epochs": 2, "method.batch": 50}
        return settings | cnn | {"data.source": "mnist", "rounds": 100, "evaluation.every": 10}
    few = {"data.examples": 4_000, "data.size": 14, "models": ("mlp(widths=(64,))",)}
    return settings | few | {"data.source": "mnist", "rounds": 25, "evaluation.every": 5}


def table(variant: str, share: float) -> Table:
    """Returns the table for a fraction of attackers."""
    columns = [
        Column(f"{partition}, {attack}", {"data.partition": scheme} | change)
        for partition, scheme in PARTITIONS.items()
        for attack, change in [
            ("no attack", {}),
            *((attack, {"adversary.attack": spec, "adversary.fraction": share}) for attack, spec in ATTACKS.items()),
        ]
    ]
    rows = [
        Row(rule, lambda v: fedavg.get_config("smoke" if v == "smoke" else "small"), {"aggregation.rule": spec.format(share=share)})
        for rule, spec in RULES.items()
    ]
    return Table(
        title=f"Robust rules, {100 * share:.0f} % of the clients attacking",
        rows=tuple(rows),
        columns=tuple(columns),
        measures=(Measure("last round", ("test/global/accuracy",)),),
        seeds=(0, 1, 2) if variant == "paper" else (0,),
        changes=shared(variant),
        against="mean",
    )


def get_table(variant: str = "small") -> Table:
    return table(variant, 0.1)
