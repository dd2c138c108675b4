"""Measurements of a run's process: seconds, those of compiling, peak memory, and a trace."""

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax

from fedjax_core.engine.simulator import Simulator

Result = TypeVar("Result")


def measure_time(work: Callable[[], Result], trace: Path | None = None) -> tuple[Result, float, float]:
    """Returns the result of `work`, its seconds, and how many of them compiled programs.

    Args:
      trace: the folder of a profiler's trace; None: nothing is traced.
    """
    compile_seconds, start = _CompileTime.seconds, time.monotonic()
    with contextlib.nullcontext() if trace is None else trace_without_python(trace):
        result = work()
    return result, time.monotonic() - start, _CompileTime.seconds - compile_seconds


def trace_without_python(folder: Path) -> contextlib.AbstractContextManager:
    """Returns a trace without Python calls, whose hooks have ended processes (SIGSEGV)."""
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
    """Returns the peak bytes of the device, or of this process if the device reports none; 0: unknown."""
    stats = simulator.spec.mesh.local_devices[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use") or _peak_memory_of_process()


def _peak_memory_of_process() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
