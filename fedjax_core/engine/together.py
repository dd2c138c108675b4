"""What the processes of one run find and decide once: clocks, files, caches, memory and signals differ between them.

On several processes each of these functions must be called by all, in the same order; on one they do nothing.
"""

import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


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


def wait(where: str) -> None:
    """Until all processes are there."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)
