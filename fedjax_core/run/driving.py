"""Who does the rounds that runs ask for: the simulation of one run, or lanes of several runs at once."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedjax_core.engine.simulator import Simulation
from fedjax_core.engine.vmapped_runs import Lanes, Wanted
from fedjax_core.run.asked import Asked, Done, Steps, clocked
from fedjax_core.run.loop import Finished, Interrupted, steps
from fedjax_core.run.signals import lenient_console

Outcome = Finished | Exception | Interrupted  # of one of several runs: what it returned or raised


def run(simulation: Simulation, directory: str, config: Mapping[str, Any], **settings: Any) -> Finished:
    """Runs a simulation to its last round, resuming what the directory holds: `loop.steps` says what it takes, gives and raises."""
    going = steps(simulation, directory, config, **settings)
    with lenient_console():
        try:
            asked = next(going)
            while True:
                try:
                    found, *seconds = clocked(_rounds(asked), asked.trace)
                except BaseException as error:
                    asked = going.throw(error)
                else:
                    asked = going.send(Done(*found, *seconds))
        except StopIteration as end:
            return end.value


def _rounds(asked: Asked) -> Callable[[], Any]:
    return lambda: asked.simulation.rounds(asked.state, asked.n, asked.scored)


def run_in_lanes(runs: Sequence[Steps], lanes: Lanes) -> list[Outcome]:
    """Drives several runs, whose rounds are done together. One that ends, as it would alone, lets the others go on.

    Args:
      runs: the `loop.steps` of simulations of `lanes`, with one `Stop` in common.
      lanes: what does their rounds.

    Returns:
      As many outcomes, in their order.

    Raises:
      KeyboardInterrupt: a second signal came.
    """
    asked: dict[int, Asked] = {}
    ended: dict[int, Outcome] = {}

    def go(i: int, step: Callable[[], Asked]) -> None:
        try:
            asked[i] = step()
        except StopIteration as end:
            ended[i] = end.value
        except (Exception, Interrupted) as error:
            ended[i] = error

    try:
        with lenient_console():
            for i, one in enumerate(runs):
                go(i, functools.partial(next, one))
            while asked:
                now, asked = asked, {}
                wanted = [Wanted(one.simulation, one.state, one.n, one.scored) for one in now.values()]
                found: list[Any]
                try:
                    found, seconds, compiling = clocked(functools.partial(lanes.rounds, wanted))
                except Exception as error:
                    found, seconds, compiling = [error] * len(now), 0.0, 0.0
                most = max(one.n for one in wanted)
                for i, one in zip(now, found, strict=True):
                    if isinstance(one, Exception):
                        go(i, functools.partial(runs[i].throw, one))
                    else:
                        share = now[i].n / most
                        go(i, functools.partial(runs[i].send, Done(one[0], one[1], seconds * share, compiling * share)))
    except BaseException as error:
        for one in runs:  # each ends as it would alone
            with contextlib.suppress(BaseException):
                one.throw(error)
        raise
    return [ended[i] for i in range(len(runs))]
