"""Gives unused memory of the heap back to the system.

XLA's compiler for CPUs leaves up to half a gigabyte on the heap after a large program. The C library
keeps it, beside what the first round then takes; so it is given back as soon as a long compilation ends.
"""

import ctypes
import sys
from typing import Any

COMPILED = "/jax/core/compile/backend_compile_duration"  # jax's event
LONG = 1.0  # seconds of a compilation


def trim_heap() -> None:
    """Gives unused memory back, if the C library is glibc; else does nothing."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def trim_after_compiling(event: str, duration_secs: float, **kwargs: Any) -> None:
    """Trims the heap after a long compilation; a listener of jax's events."""
    del kwargs
    if event == COMPILED and duration_secs >= LONG:
        trim_heap()
