"""A small table, runs that take no time, and cells of published tables."""

import dataclasses
import functools
from typing import Any

from configs import fedavg
from configs.tables.base import Column, Measure, Row, Table
from fedjax_core.commands import tables

GLOBAL = Measure("global", ("test/global/accuracy",))


def get_config(variant: str) -> Any:
    config = fedavg.get_config(variant)
    config.rounds, config.data.clients, config.models = 3, 4, ("mlp(widths=(4,))",)
    return config


def definition(**changes) -> Table:
    """Two rows, two columns, one measure; three seeds."""
    table = Table(
        title="Small",
        rows=(Row("FedAvg", get_config), Row("Uniform & co.", get_config, {"method.weights": "uniform"})),
        columns=(Column("IID", {"data.partition": "iid"}), Column("Skewed", {"data.partition": "dirichlet(alpha=0.3)"})),
        measures=(GLOBAL,),
        targets=(0.5, 0.9),
    )
    return dataclasses.replace(table, **changes)


@functools.cache
def paper_cells(name: str) -> tuple[tables.Cell, ...]:
    """The cells of a published table, paper variant, first seed. Do not change their configs."""
    table = tables.read_definition(f"configs/tables/{name}.py", "paper")
    return tuple(tables.build_cells(table, "paper", table.seeds[:1]))


def run(directory, table=None, **options) -> tuple[tables.Outcome, list[str]]:
    said: list[str] = []
    return tables.run(table or definition(), str(directory), "smoke", say=said.append, **options), said
