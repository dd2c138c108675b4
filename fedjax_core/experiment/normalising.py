"""Mean and deviation by which a network's inputs are normalised."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from fedjax_core import by_name
from fedjax_core.algorithm import Examples
from fedjax_core.data.readers import in_file
from fedjax_core.experiment.asked import Config, resolve
from fedjax_core.experiment.named import NORMALISATIONS
from fedjax_core.storage import weights

Scaling = tuple[Sequence[float], Sequence[float]]  # mean and deviation of each channel
NEARLY = 1e-3  # how far pixels may lie outside [0, 1], as after a resizing


def scaling(config: Config, examples: Examples, file: str | None = None, rows: np.ndarray | None = None) -> Scaling | None:
    """Mean and deviation by which a network's inputs are normalised: its file's, if it says so; else as `config.normalise` asks;
    None for whole numbers that are no pixels, such as tokens.

    Raises:
      ValueError: an unknown normalisation, or one for other channels.
    """
    return of_inputs(resolve(config).normalise, examples, file, rows)


def of_inputs(normalise: str, examples: Examples, file: str | None, rows: np.ndarray | None = None) -> Scaling | None:
    """As `scaling`, of a normalisation by its name."""
    own = None if file is None else weights.scaling(file)
    dtype = np.asarray(examples.x).dtype
    if own is None and np.issubdtype(dtype, np.integer) and dtype != np.uint8:
        return None
    found = own or NORMALISATIONS[normalise] or scale(examples, rows)
    channels = examples.x.shape[-1] if examples.x.ndim > 1 else 1
    if len(found[0]) not in (1, channels):
        origin = f"weights={file!r}" if own else f"normalise={normalise!r}"
        raise ValueError(f"{origin} is for images of {len(found[0])} channels, these have {channels}")
    return found


def scale(examples: Examples, rows: np.ndarray | None = None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel (the last axis) over some rows, or all, of uint8 pixels in units of 255."""
    x = np.asarray(examples.x)
    if x.strides[0] == 0:  # one row many times, as in `stand_in.py`
        x, rows = x[:1], None
    axes, number = tuple(range(x.ndim - 1)), len(x) if rows is None else len(rows)
    block_of = lambda start, size: x[start : start + size] if rows is None else x[rows[start : start + size]]
    if x.dtype == np.uint8:  # sums of whole numbers, block by block: several times faster, and exact
        sums = np.zeros((2, math.prod(x.shape[1:])), np.uint64)
        for start in range(0, number, 64):
            wide = block_of(start, 64).reshape(-1, sums.shape[1]).astype(np.uint32)
            sums += np.stack([wide.sum(0, dtype=np.uint32), (wide * wide).sum(0, dtype=np.uint32)])
        total, squares = sums.reshape(2, -1, x.shape[-1]).sum(1).tolist()
        number = number * math.prod(x.shape[1:-1])
        mean = np.array(total) / number / 255
        std = np.array([(q * number - s * s) ** 0.5 for s, q in zip(total, squares, strict=True)]) / number / 255
    elif in_file(x):
        mean, std = _of_file_blocks(x.shape, number, block_of)
    else:
        x = x if rows is None else x[rows]
        mean, std = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def _of_file_blocks(shape: tuple[int, ...], number: int, block_of: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation [C] of so many rows of an array in a file, a thousand rows in memory at a time."""
    sums, first = np.zeros((2, shape[-1])), block_of(0, 1).reshape(-1, shape[-1])[0].astype(np.float64)
    for start in range(0, number, 1000):
        block = block_of(start, 1000).reshape(-1, shape[-1]) - first  # of a constant exactly 0
        sums += np.stack([block.sum(0), (block * block).sum(0)])
    mean, square = sums * shape[-1] / (number * math.prod(shape[1:]))
    return first + mean, np.sqrt(np.maximum(square - mean**2, 0))


def check_colours(augment: str, examples: Examples) -> None:
    """Raises ValueError for inputs outside [0, 1] whose colours an augmentation is to change: it would cut them there, in training
    alone."""
    x = np.asarray(examples.x)
    if x.dtype == np.uint8 or "colour_jitter" not in (by_name.parse(part)[0] for part in augment.split("|")):
        return
    x = x[:1] if x.strides[0] == 0 else x
    blocks = [x[start : start + 1000] for start in range(0, len(x), 1000)]
    low, high = min(float(block.min()) for block in blocks), max(float(block.max()) for block in blocks)
    if low < -NEARLY or high > 1 + NEARLY:
        raise ValueError(
            f"augment={augment!r}: colour_jitter is for images of bytes, or of floats in [0, 1], these {x.dtype} are in "
            f"[{low:.4g}, {high:.4g}]"
        )
