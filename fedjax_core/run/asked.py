"""The rounds that a run asks for, and what it gets: between the loop of a run and whoever does its rounds."""

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_core.engine.simulator import Simulation, State


class Asked(NamedTuple):
    """Rounds that are to be done; see `Simulation.rounds`.

    Attributes:
      simulation, state, n, scored: what is to be called.
      trace: where a profiler's trace of them goes; None: nowhere.
    """

    simulation: Simulation
    state: State
    n: int
    scored: bool
    trace: Path | None


class Done(NamedTuple):
    """Rounds that were done.

    Attributes:
      state: after them.
      records: one for each.
      seconds: that they took; of several runs together, if they were done so, by the share of rounds of the one that had most.
      compiling: of these, for programs.
    """

    state: State
    records: list[dict[str, float]]
    seconds: float
    compiling: float


Steps = Generator[Asked, Done, Any]


def clocked(work: Callable[[], Any], trace: Path | None = None) -> tuple[Any, float, float]:
    """(what `work` gave, seconds that it took, of these for programs), under the profiler or not."""
    compiled, start = _Compiling.seconds, time.monotonic()
    with contextlib.nullcontext() if trace is None else _profiled(trace):
        found = work()
    return found, time.monotonic() - start, _Compiling.seconds - compiled


def _profiled(folder: Path) -> contextlib.AbstractContextManager:
    """A trace without calls of Python: their hooks, set in all threads, have ended processes (SIGSEGV), and a round is one call."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    return jax.profiler.trace(folder, profiler_options=options)


class _Compiling:
    """Seconds that this process has spent tracing and compiling."""

    seconds = 0.0

    @classmethod
    def listen(cls, event: str, duration_secs: float, **kwargs: Any) -> None:
        del kwargs
        if event.startswith("/jax/core/compile/"):
            cls.seconds += duration_secs


jax.monitoring.register_event_duration_secs_listener(_Compiling.listen)
