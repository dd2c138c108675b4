"""Memory of the heap is given back after long compilations."""

import ctypes
import subprocess
import sys

import pytest

from fedjax_core.engine import heap

GIVEN_BACK = """
import os
import jax
from fedjax_core.engine import dispatch, heap

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

held = [bytes(1 << 14) for _ in range(10_000)]  # pieces that the C library keeps when they are freed
last = bytes(1 << 14)
del held
before = resident()
jax.monitoring.record_event_duration_secs(heap.COMPILED, 2 * heap.LONG)
assert resident() < before - 100_000_000, (before, resident())
"""


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="no glibc here")
def test_a_long_compilation_gives_the_heap_back():
    subprocess.run([sys.executable, "-c", GIVEN_BACK], check=True, timeout=120)


@pytest.mark.parametrize(("event", "seconds"), [(heap.COMPILED, heap.LONG / 2), ("/jax/core/compile/jaxpr_trace_duration", 9.0)])
def test_nothing_else_does(monkeypatch, event, seconds):
    monkeypatch.setattr(heap, "trim_heap", lambda: pytest.fail("trimmed"))
    heap.trim_after_compiling(event, seconds, fun_name="f")
