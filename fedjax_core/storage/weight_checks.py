"""Checks that a network can compute with the numbers of a file of weights, in float32."""

import os
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

_VARIANCES = ("var", "running_var")  # last parts of names
_LARGEST = float(np.sqrt(np.finfo(np.float32).max))  # float32 holds its square, as in norms and optimizers


def check_weights(arrays: Mapping[str, np.ndarray], where: str | os.PathLike) -> None:
    """Checks a file's arrays, by name.

    Raises:
      ValueError: a value or its square is not finite in float32, or a variance is negative; the message begins
        with `where`.
    """
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.floating):
            continue
        with np.errstate(over="ignore"):
            values = np.asarray(array, np.float32)
        if not np.isfinite(values).all():
            raise ValueError(f"{os.fspath(where)}: {name} is not finite; a network needs finite weights (as float32)")
        if not values.size:
            continue
        if name.rpartition(".")[2] in _VARIANCES:
            if values.min() < 0:
                raise ValueError(f"{os.fspath(where)}: {name} has {values.min():g}; a variance must be at least 0")
        elif np.abs(values).max() > _LARGEST:
            largest = values.flat[np.argmax(np.abs(values))]
            raise ValueError(
                f"{os.fspath(where)}: {name} has {largest:g}; a weight must lie between -{_LARGEST:.2g} and {_LARGEST:.2g}"
            )


def check_scaling(description: Mapping[str, Any], where: str | os.PathLike) -> None:
    """Checks the input normalisation of a file.

    Args:
      description: "mean" and "std", and optionally "offset" and "limit".
      where: begins the message.

    Raises:
      ValueError: a number is not finite in float32 ("offset": float64), or "std" or "limit" is not
        positive.
    """
    tiny = np.finfo(np.float32).tiny
    for field, type_, is_positive in (
        ("mean", np.float32, False),
        ("std", np.float32, True),
        ("offset", np.float64, False),
        ("limit", np.float32, True),
    ):
        if description.get(field) is None:
            continue
        with np.errstate(over="ignore", under="ignore"):
            values = np.asarray(description[field], np.float64).astype(type_)
        if not np.isfinite(values).all() or (is_positive and not (values >= tiny).all()):
            wanted = "finite and positive" if is_positive else "finite"
            message = f"{field}={description[field]} must be {wanted}: inputs are normalised by it"
            raise ValueError(f"{os.fspath(where)}: {message} (as {type_.__name__})")
