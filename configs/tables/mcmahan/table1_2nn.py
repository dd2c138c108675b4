"""McMahan et al. (2017), Table 1, upper half: rounds to 97 % on MNIST, 2NN, one local epoch.

Command:  fedjax-core table mcmahan/table1_2nn --workdir=runs/mcmahan --set=data.dir=DIR
Expect:   see configs/RESULTS.md.
Variants: small (the default) and paper: the published protocol; smoke: two rounds of digits,
          seconds.

100 clients of 600 images: IID, or two shards of 300 images with about one digit each. C * 100 of
them take part in a round, at least one; plain SGD; means weighted by examples; B inf is one batch
of all 600. Pixels are in [0, 1]; `table1_2nn_normalised.py` normalises them by the training set's
mean and deviation, as our configs do. The paper gives neither this nor the initialization.

A number is the round in which the test accuracy crosses the target (`Measure`, "rounds_to"). A run
ends there, or after 1.5 times the published rounds, or after 1,600 if the paper never reached the
target. Accuracy is evaluated every round if fewer than 250 rounds are published, else every fifth.
As in the paper, the rate of each cell is the best one by this number itself, so it is selected on
test data. `RATES` come from a grid of ratio 10^(1/3) that `rates_2nn.py` runs;
configs/results/fedavg.md shows which of them were run and which are guesses.
"""

import math
from collections.abc import Mapping
from typing import Any

from configs import fedavg
from configs.tables.base import Column, Measure, Row, Table

SOURCE = "McMahan et al. 2017, Table 1"
TARGET = 0.97
FRACTIONS = (0.0, 0.1, 0.2, 0.5, 1.0)
SPLITS = {"IID": "iid", "non-IID": "shards(shards_per_client=2)"}
BATCHES = {"B inf": 600, "B 10": 10}
COLUMNS = tuple((split, batch) for split in SPLITS for batch in BATCHES)
PUBLISHED = {  # rounds, for the columns in order; None: never reached
    0.0: (1455, 316, 4278, 3275),
    0.1: (1474, 87, 1796, 664),
    0.2: (1658, 77, 1528, 619),
    0.5: (None, 75, None, 443),
    1.0: (None, 70, None, 380),
}
LONGER = 1.5  # maximum length of a run over the published rounds
UNKNOWN = 1600  # maximum number of rounds without a published number
RATES = {  # per cell, in the order of `PUBLISHED`
    0.0: (0.464, 0.1, 0.215, 0.1),
    0.1: (1.0, 0.215, 0.464, 0.215),
    0.2: (0.464, 0.215, 0.464, 0.215),
    0.5: (0.464, 0.215, 0.464, 0.215),
    1.0: (0.464, 0.215, 0.464, 0.215),
}
MODEL = "mlp(widths=(200, 200))"


def label(fraction: float) -> str:
    return f"C {fraction:.1f}"


def clients(fraction: float) -> dict[str, Any]:
    """Returns a cohort of max(C * 100, 1) clients."""
    return {"cohort.size": max(round(fraction * 100), 1)}


def data(split: str, batch: str) -> dict[str, Any]:
    return {"data.partition": SPLITS[split], "method.batch": BATCHES[batch]}


def rounds(published: int | None) -> dict[str, Any]:
    """Returns the maximum length of a run and the interval of its evaluations.

    There are at least 50 evaluations before the published number; below 250 rounds, one per round.
    """
    most = UNKNOWN if published is None else math.ceil(LONGER * published)
    return {"rounds": most, "evaluation.every": 1 if (published or most) < 250 else 5}


def shared(variant: str, target: float = TARGET, **changes: Any) -> dict[str, Any]:
    """Returns the settings that all cells share."""
    settings = {
        "method.weights": "samples",
        "normalise": "unit",
        "models": (MODEL,),
        "evaluation.scopes": ("global",),
        "evaluation.batch": 1000,
        "evaluation.until": f"test/global/accuracy >= {target}",
    } | {field.replace("__", "."): value for field, value in changes.items()}
    if variant == "smoke":
        smoke = {"data.source": "digits", "data.clients": 100, "rounds": 2, "evaluation.every": 1}
        return settings | smoke | {"models": ("mlp(widths=(4,))",)}
    return settings


def measure(target: float = TARGET) -> Measure:
    return Measure(f"rounds to {100 * target:g} %", ("test/global/accuracy",), f"rounds_to(target={target})")


def table(
    title: str,
    variant: str,
    changes: dict[str, Any],
    rates: Mapping[float, tuple[float, ...]],
    published: Mapping[float, tuple[int | None, ...]] | None = None,
    target: float = TARGET,
) -> Table:
    """Returns a half of the table.

    Args:
      title: heading.
      variant: variant of the configs.
      changes: settings of all cells, from `shared`.
      rates: learning rate of each cell.
      published: published rounds of each cell.
      target: accuracy.
    """
    published = published or PUBLISHED
    columns = tuple(Column(", ".join(place), data(*place)) for place in COLUMNS)
    cells = {
        (label(fraction), column.label): ({} if variant == "smoke" else rounds(number)) | {"optimizer.lr": rate}
        for fraction in FRACTIONS
        for column, number, rate in zip(columns, published[fraction], rates[fraction], strict=True)
    }
    paper = {
        label(fraction): {c.label: math.inf if n is None else n for c, n in zip(columns, published[fraction], strict=True)}
        for fraction in FRACTIONS
    }
    return Table(
        title=title,
        rows=tuple(Row(label(fraction), get_base_config(variant), clients(fraction)) for fraction in FRACTIONS),
        columns=columns,
        measures=(measure(target),),
        changes=changes,
        cells=cells,
        paper=paper,
        source=SOURCE,
        against=label(0.0),
        note="Rates are the best ones by the numbers themselves, as in the paper, so these are selected on test data.",
        differ=("cohort", "rounds", "optimizer"),
    )


def get_base_config(variant: str) -> Any:
    """Returns FedAvg's config for MNIST, or in smoke for digits."""
    return lambda _: fedavg.get_config("smoke" if variant == "smoke" else "paper")


def get_table(variant: str = "small") -> Table:
    return table("FedAvg on MNIST, 2NN", variant, shared(variant), RATES)
