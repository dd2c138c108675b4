"""Named host arrays in a directory, as Orbax lays them out. The only module that knows Orbax.

It is imported with the first checkpoint: it takes about as long as jax, and no run waits for it before its first round.
"""

import concurrent.futures
import contextlib
import errno
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

T = TypeVar("T")


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays, each with some elements, into a new directory.

    Raises:
      OSError: it cannot be written.
    """

    def write():
        import orbax.checkpoint as ocp

        with _checkpointer() as checkpointer:
            checkpointer.save(path, args=ocp.args.PyTreeSave(arrays))

    _quietly(write)


def read_arrays(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Reads arrays that `write_arrays` wrote.

    Raises:
      OSError: they cannot be read.
    """

    def read():
        import orbax.checkpoint as ocp

        host = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        with _checkpointer() as checkpointer:
            return checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=host))

    return _quietly(read)


def _checkpointer() -> Any:
    """Orbax for host arrays, in this process alone: the others are not waited for."""
    import orbax.checkpoint as ocp

    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(),
        active_processes={jax.process_index()},
        barrier_sync_key_prefix=f"process{jax.process_index()}",
    )
    return ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, multiprocessing_options=alone),
        multiprocessing_options=alone,
    )


def _quietly(call: Callable[[], T]) -> T:
    """Calls Orbax silently, in a thread of its own (a notebook's thread runs an event loop already).

    Raises:
      OSError: whatever Orbax raises, with the errno that its message tells.
    """
    with _no_logs("absl"), concurrent.futures.ThreadPoolExecutor(1) as thread:
        before, sys.unraisablehook = sys.unraisablehook, _unless_loop_closed(sys.unraisablehook)
        try:
            result = thread.submit(call).result()
            sys.unraisablehook = before  # after a failure it stays: writes under way still report to a closed loop
            return result
        except (OSError, MemoryError):
            raise
        except Exception as error:  # tensorstore reports a full disk as a ValueError
            if code := re.search(r"os_error_code='(\d+)'", str(error)):
                raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
            text = str(error).partition("\n")[0].partition(" [tensorstore_spec=")[0]
            raise OSError(errno.EIO, text or type(error).__name__) from error


def _unless_loop_closed(hook: Callable) -> Callable:
    """An unraisablehook that leaves out what TensorStore's threads print when the event loop that waited for them has failed."""

    def filtered(unraisable):
        if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
            hook(unraisable)

    return filtered


@contextlib.contextmanager
def _no_logs(name: str) -> Iterator[None]:
    """Silences a logger: what goes wrong is raised."""
    logger = logging.getLogger(name)
    refuse = lambda record: False
    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
