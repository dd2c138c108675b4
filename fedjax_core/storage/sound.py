"""Numbers in a file of weights that a network can compute with, in float32."""

import os
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

_VARIANCES = ("var", "running_var")  # how the names of batch norm's end


def check_weights(arrays: Mapping[str, np.ndarray], where: str | os.PathLike) -> None:
    """Checks a file's arrays, by name.

    Raises:
      ValueError: one has a value that float32 does not hold, or is a variance below 0; the message begins with `where`.
    """
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            continue
        with np.errstate(over="ignore"):
            values = np.asarray(array, np.float32)
        if not np.isfinite(values).all():
            raise ValueError(f"{os.fspath(where)}: {name} is not finite; a network needs finite weights (as float32)")
        if name.rpartition(".")[2] in _VARIANCES and values.size and values.min() < 0:
            raise ValueError(f"{os.fspath(where)}: {name} has {values.min():g}; a variance must be at least 0")


def check_scaling(description: Mapping[str, Any], where: str | os.PathLike) -> None:
    """Checks the mean and deviation that a file says inputs are normalised by.

    Raises:
      ValueError: one of them is not finite, or a deviation is not positive, as float32; the message begins with `where`.
    """
    with np.errstate(over="ignore", under="ignore"):
        mean, std = (np.asarray(description[field], np.float64).astype(np.float32) for field in ("mean", "std"))
    right = {"mean": np.isfinite(mean), "std": np.isfinite(std) & (std >= np.finfo(np.float32).tiny)}
    for field, wanted in (("mean", "finite"), ("std", "finite and positive")):
        if not right[field].all():
            said = f"{field}={description[field]} must be {wanted}: inputs are normalised by it"
            raise ValueError(f"{os.fspath(where)}: {said} (as float32)")
