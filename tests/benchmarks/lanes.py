"""Four seeds of a job in one process, sequentially and in one vmapped program, in turns.

python -m tests.benchmarks --scale=lanes --repeats=9
"""

import dataclasses
import os
import time
from typing import Any

from configs import fedavg, scaffold
from fedjax_core import experiment
from fedjax_core.engine.vmapped_runs import VmappedSeeds
from tests.benchmarks.turns import Contender, measure, table

SEEDS, ROUNDS = 4, 10


@dataclasses.dataclass
class Alone(Contender):
    """A program of one run, called once per run."""

    def after(self, state: list[Any]) -> list[Any]:
        return [self.simulation.run_rounds(one, self.rounds)[0] for one in state]


@dataclasses.dataclass
class Together(Contender):
    """One program of all runs."""

    lanes: Any = None

    def after(self, state: list[Any]) -> list[Any]:
        seeds = list(zip(self.lanes.replicas, state, strict=True))
        return [result[0] for result in self.lanes.advance_seeds(seeds, self.rounds)]


def seeds(repeats: int) -> str:
    """Measures digits with two methods; `set up` is the first turn, including compilation."""
    tables = []
    for name, config in (("FedAvg", fedavg.get_config()), ("SCAFFOLD", scaffold.get_config())):
        before, contenders = os.getloadavg()[0], []
        data = experiment.dataset(config)
        for devices in (None, 1):
            config.plan.devices = devices
            sim = experiment.build(config, data)
            lanes = VmappedSeeds(experiment.build(config, data), SEEDS)
            places = f"{sim.spec.plan.devices} devices"
            contenders.append(Alone(f"one after another, {places}", sim, ROUNDS, state=[sim.init(s) for s in range(SEEDS)]))
            states = [lane.init(s) for s, lane in enumerate(lanes.replicas)]
            contenders.append(Together(f"{SEEDS} lanes, {places}", lanes.replicas[0], ROUNDS, state=states, lanes=lanes))
        for contender in contenders:
            start = time.perf_counter()
            contender.turn()
            contender.setting_up = time.perf_counter() - start
        measure(contenders, repeats)
        tables.append(table(f"**lanes** {name} on digits, {SEEDS} seeds; ms of a round of all of them", contenders, before))
    return "\n\n".join(tables)
