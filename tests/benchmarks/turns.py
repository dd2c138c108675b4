"""Contenders of one process that take turns, and the table of their times."""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_core.engine import simulator
from tests.benchmarks.report import number, row

QUIET = 0.1  # seconds between contenders, for threads to finish


@dataclasses.dataclass
class Contender:
    """A simulation that takes turns.

    Attributes:
      name: name in the table.
      simulation: the simulation.
      rounds: rounds per turn.
      before: called before a turn, unmeasured.
      setting_up: seconds from index lists to the first round.
    """

    name: str
    simulation: simulator.Simulator
    rounds: int
    before: Callable[[], None] = lambda: None
    setting_up: float = 0.0
    seconds: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)
    state: Any = None

    def after(self, state: Any) -> Any:
        """Returns the state after the rounds of a turn."""
        return self.simulation.run_rounds(state, self.rounds)[0]

    def turn(self) -> None:
        self.before()
        time.sleep(QUIET)
        start, worked = time.perf_counter(), time.process_time()
        self.state = self.after(self.state)
        jax.block_until_ready(self.state)
        self.seconds.append((time.perf_counter() - start) / self.rounds)
        self.cpu.append((time.process_time() - worked) / self.rounds)


def measure(contenders: Sequence[Contender], repeats: int) -> None:
    """Measures all contenders in turns, after a warm-up."""
    for contender in contenders:
        contender.state = contender.simulation.init(0) if contender.state is None else contender.state
        contender.turn()
        contender.seconds.clear()
        contender.cpu.clear()
    for turn in range(repeats):
        for contender in contenders if turn % 2 == 0 else contenders[::-1]:
            contender.turn()


def table(title: str, contenders: Sequence[Contender], before: float) -> str:
    """Returns a table, with ratios to the first contender per turn."""
    columns = ("", "ms a round, median (quartiles)", "ratio", "CPU ms a round", "ratio", "set up, s")
    lines = [f"{title}. {len(contenders[0].seconds)} turns; load {before:.1f} before, {os.getloadavg()[0]:.1f} after.", ""]
    lines += [row(*columns), "|---" * len(columns) + "|"]
    for each in contenders:
        cells = [each.name]
        for mine, first in ((each.seconds, contenders[0].seconds), (each.cpu, contenders[0].cpu)):
            cells.append(spread([1e3 * second for second in mine], ".1f"))
            cells.append(spread([of / beside for of, beside in zip(mine, first, strict=True)], ".3f"))
        lines.append(row(*cells, number(each.setting_up)))
    return "\n".join(lines)


def spread(values: Sequence[float], form: str) -> str:
    """Returns median and quartiles."""
    first, median, third = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{median:{form}} ({first:{form}}-{third:{form}})"
