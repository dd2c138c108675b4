"""Small tables with a search, and what is read of them."""

import dataclasses
import math
from typing import Any

from configs import fedavg
from configs.tables.base import Column, LogUniform, Measure, Row, Search, Table
from fedjax_core.commands import tables

BY = "validation/global/accuracy"

RATES = {"optimizer.lr": LogUniform(0.01, 1.0)}


def get_config(variant: str) -> Any:
    config = fedavg.get_config(variant)
    config.rounds, config.evaluation.every, config.data.clients, config.models = 4, 1, 4, ("mlp(widths=(4,))",)
    config.data.validation = 0.2
    return config


def definition(of: dict[str, Any] | None = None, **changes) -> Table:
    """Two rows, one column, one seed, a random search of four trials."""
    made = Table(
        title="Small",
        rows=(Row("A", get_config, space=RATES), Row("B", get_config, {"method.weights": "uniform"}, RATES)),
        columns=(Column("IID", {"data.partition": "iid"}),),
        measures=(Measure("global", ("test/global/accuracy",)),),
        seeds=(0,),
        search=dataclasses.replace(Search(BY, 4), **(of or {})),
    )
    return dataclasses.replace(made, **changes)


def quality(config: Any) -> float:
    """Of a setting: the best rate is 0.3, and uniform weights are worse."""
    return 0.9 - abs(math.log10(config.optimizer.lr / 0.3)) / 10 - (0.05 if config.method.weights == "uniform" else 0)


def run(directory, table=None, **options) -> tuple[tables.Outcome, list[str]]:
    said: list[str] = []
    return tables.run(table or definition(), str(directory), "smoke", say=said.append, **options), said


def line(directory, row: str, heading: str = "## Search") -> str:
    """A row of a part of table.md."""
    text = (directory / "table.md").read_text().split(heading)[1]
    return next(found for found in text.splitlines() if found.startswith(f"| {row} |"))


def rates(table: Table | None = None, row: str = "A") -> list[float]:
    return [t.values["optimizer.lr"] for t in tables.plan_searches(table or definition(), "smoke")[row, "IID"].trials]
