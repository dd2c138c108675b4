"""The time and memory that rounds take."""

import contextlib
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax

from fedjax_core.engine.simulator import Simulator

Result = TypeVar("Result")


def measure_time(work: Callable[[], Result], trace: Path | None = None) -> tuple[Result, float, float]:
    """Returns the result of `work`, the seconds that it took, and how many of them compiled programs.

    Args:
      work: rounds of training.
      trace: the folder of a profiler's trace; None: nothing is traced.
    """
    compile_seconds, start = _CompileTime.seconds, time.monotonic()
    with contextlib.nullcontext() if trace is None else _profile(trace):
        result = work()
    return result, time.monotonic() - start, _CompileTime.seconds - compile_seconds


def _profile(folder: Path) -> contextlib.AbstractContextManager:
    """A trace without Python calls: their hooks, set in all threads, have ended processes (SIGSEGV), and a round is one call."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    return jax.profiler.trace(folder, profiler_options=options)


class _CompileTime:
    """Seconds that this process has spent tracing and compiling."""

    seconds = 0.0

    @classmethod
    def add(cls, event: str, duration_secs: float, **kwargs: Any) -> None:
        del kwargs
        if event.startswith("/jax/core/compile/"):
            cls.seconds += duration_secs


jax.monitoring.register_event_duration_secs_listener(_CompileTime.add)


def peak_memory(simulator: Simulator) -> int:
    """Returns the most bytes in use: of the device, or of this process where the device does not report them."""
    stats = simulator.spec.mesh.local_devices[0].memory_stats() or {}
    scale = 1 if sys.platform == "darwin" else 1024
    return stats.get("peak_bytes_in_use") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
