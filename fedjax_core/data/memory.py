"""Arrays that cannot be: refused before anything is allocated."""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np


def check_fits(what: str, shape: Sequence[int], dtype: Any) -> None:
    """Refuses an array that is larger than this machine's memory.

    Args:
      what: begins the message: the field or the file, and its value.
      shape: of the array.
      dtype: of the array.

    Raises:
      ValueError: it does not fit; the message has both sizes.
    """
    needed = math.prod(int(n) for n in shape) * np.dtype(dtype).itemsize
    if needed > (here := there()):
        raise ValueError(
            f"{what}: an array {list(shape)} of {np.dtype(dtype)} takes {said(needed)}, this machine has {said(here)}."
        )


def there() -> float:
    """Bytes of memory of this machine; infinite where it does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.inf


def said(number: float) -> str:
    """A number of bytes in a unit that suits it."""
    for unit, size in (("TB", 2**40), ("GB", 2**30)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number / 2**20:,.1f} MB" if number >= 2**20 else f"{number:,} bytes"
