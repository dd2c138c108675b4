"""What the processes of one run find and decide once: clocks, files, caches, memory and signals differ between them.

On several processes each of these functions must be called by all, in the same order; on one they do nothing.
"""

import errno
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

Result = TypeVar("Result")


def said(value: Any) -> Any:
    """The JSON value that process 0 has, whatever the others have."""
    if jax.process_count() == 1:
        return value
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
    mine = text if jax.process_index() == 0 else np.zeros(length, np.uint8)
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(mine), np.uint8).tobytes())


def seen(numbers: Sequence[int]) -> np.ndarray:
    """[processes, n] what each process has to say, in their order."""
    mine = np.asarray(numbers, np.int32)
    return mine[None] if jax.process_count() == 1 else np.asarray(multihost_utils.process_allgather(mine))


def anywhere(fact: bool) -> bool:
    """Whether it is so in any process."""
    return bool(seen([fact]).any())


def alike(what: str, digest: str) -> None:
    """Raises ValueError in all processes if one has something else than process 0.

    Args:
      what: for the message, such as "the data".
      digest: hexadecimal, of what must be the same.
    """
    every = seen([int(digest[i : i + 7], 16) for i in range(0, 28, 7)])
    if len(others := np.flatnonzero((every != every[0]).any(1))):
        raise ValueError(f"{what} of process {others[0]} are not those of process 0; all processes need the same config and files")


def all_or_none(what: str, step: Callable[[], Result]) -> Result:
    """Does a step in all processes; where it fails in one it fails in all.

    Args:
      what: for the others' message, such as "write their parts of a checkpoint".
      step: what to do.

    Raises:
      Whatever the step raised; OSError where it did so in another process.
    """
    result: Any = None
    try:
        result, failed = step(), None
    except BaseException as error:
        failed = error
    where = np.flatnonzero(seen([failed is not None]))
    if failed is not None:
        raise failed
    if len(where):
        raise OSError(errno.EIO, f"process {where[0]} could not {what}")
    return result


def wait(where: str) -> None:
    """Until all processes are there."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)
