"""Finds the mean and deviation by which a network's inputs are normalised, and checks the inputs
against them."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_core import registry
from fedjax_core.algorithm import Examples
from fedjax_core.data.input_range import find_centre_and_spread, sample_channels
from fedjax_core.data.row_readers import locate_in_file
from fedjax_core.data.sources.dataset import is_images
from fedjax_core.experiment.lookup import NORMALISATIONS, ROBUST
from fedjax_core.storage import pretrained_weights

NEARLY = 1e-3  # how far pixels may be outside [0, 1], as after a resizing
ROBUST_LIMIT = 10.0  # deviations at which robust normalisation clips
ROBUST_SAMPLE = 2**22  # numbers from which robust statistics are estimated
FAR = 10.0  # largest distance of pixels from the mean, and of columns on average, in deviations
STRETCHED = 100.0  # how many times larger than the robust one a deviation may be
ADVICE = (
    "pass bytes (uint8), or floats in [0, 1]: x / 255 for 8 bits, x / 65535 for 16 bits; "
    "or take normalise='unit' if they are normalised already"
)


class Scaling(NamedTuple):
    """The normalisation of inputs.

    Attributes:
      mean: of each channel, or of all.
      std: standard deviation, likewise.
      limit: deviations at which normalised inputs are clipped; None: nowhere.
    """

    mean: Sequence[float]
    std: Sequence[float]
    limit: float | None = None


def find_scaling(
    normalise: str,
    examples: Examples,
    file: str | None,
    rows: np.ndarray | None = None,
    offset: np.ndarray | None = None,
) -> Scaling:
    """Returns how inputs that are no token ids are normalised: as the network's file of weights
    says, else by `config.normalise`.

    Args:
      normalise: one of `NORMALISATIONS`.
      examples: of training.
      file: that a network begins from, or None.
      rows: indices of the examples that count; None: all.
      offset: subtracted from the examples already (`FederatedData.x_offset`), or None.

    Raises:
      ValueError: the normalisation is for other channels.
    """
    channels = examples.x.shape[-1] if examples.x.ndim > 1 else 1
    own = None if file is None else pretrained_weights.read_scaling(file)
    if own is not None and file is not None:
        scaling = Scaling(*own, pretrained_weights.read_input_limit(file))
        _check_channels(scaling, channels, f"weights={file!r}")
        return scaling if offset is None else scaling._replace(mean=tuple((np.asarray(scaling.mean) - offset).tolist()))
    if (constants := NORMALISATIONS[normalise]) is not None:
        _check_channels(Scaling(*constants), channels, f"normalise={normalise!r}")
        return Scaling(*constants)
    return compute_robust_scaling(examples, rows) if normalise == ROBUST else Scaling(*compute_mean_and_std(examples, rows))


def _check_channels(scaling: Scaling, channels: int, origin: str) -> None:
    if len(scaling.mean) not in (1, channels):
        raise ValueError(f"{origin} is for images of {len(scaling.mean)} channels, these have {channels}")


def _is_one_repeated(x: np.ndarray) -> bool:
    """Returns whether inputs are one example many times, as in `mock_data.py`."""
    return x.strides[0] == 0


def compute_robust_scaling(examples: Examples, rows: np.ndarray | None = None) -> Scaling:
    """Returns median and interquartile range of each channel, which a few outliers do not move,
    with a limit for clipping.

    The range is divided by 1.349, so that it is the deviation of a normal distribution. Both are
    estimated from at most 4 million numbers of evenly spaced examples; those of uint8 pixels are in
    units of 255.
    """
    x = np.asarray(examples.x)
    x, rows = (x[:1], None) if _is_one_repeated(x) else (x, rows)
    median, spread = find_centre_and_spread(sample_channels(x, rows, ROBUST_SAMPLE))
    unit = 255.0 if x.dtype == np.uint8 else 1.0
    return Scaling(tuple((median / unit).tolist()), tuple((np.where(spread > 0, spread, unit) / unit).tolist()), ROBUST_LIMIT)


def compute_mean_and_std(examples: Examples, rows: np.ndarray | None = None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and standard deviation of each channel (the last axis), in units of 255 for
    uint8 pixels."""
    x = np.asarray(examples.x)
    x, rows = (x[:1], None) if _is_one_repeated(x) else (x, rows)
    axes, number = tuple(range(x.ndim - 1)), len(x) if rows is None else len(rows)
    block_of = lambda start, size: x[start : start + size] if rows is None else x[rows[start : start + size]]
    if x.dtype == np.uint8:  # integer sums, block by block: several times faster, and exact
        sums = np.zeros((2, math.prod(x.shape[1:])), np.uint64)
        for start in range(0, number, 64):
            wide = block_of(start, 64).reshape(-1, sums.shape[1]).astype(np.uint32)
            sums += np.stack([wide.sum(0, dtype=np.uint32), (wide * wide).sum(0, dtype=np.uint32)])
        total, squares = sums.reshape(2, -1, x.shape[-1]).sum(1).tolist()
        number = number * math.prod(x.shape[1:-1])
        mean = np.array(total) / number / 255
        std = np.array([(q * number - s * s) ** 0.5 for s, q in zip(total, squares, strict=True)]) / number / 255
    elif locate_in_file(x):
        mean, std = _scale_by_blocks(x.shape, number, block_of)
    else:
        x = x if rows is None else x[rows]
        mean, std = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def _scale_by_blocks(shape: tuple[int, ...], number: int, block_of: Callable) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and deviation [C] of `number` examples of an array in a file, with a thousand in
    memory at a time."""
    sums, first = np.zeros((2, shape[-1])), block_of(0, 1).reshape(-1, shape[-1])[0].astype(np.float64)
    for start in range(0, number, 1000):
        block = block_of(start, 1000).reshape(-1, shape[-1]) - first  # of a constant exactly 0
        sums += np.stack([block.sum(0), (block * block).sum(0)])
    mean, square = sums * shape[-1] / (number * math.prod(shape[1:]))
    return first + mean, np.sqrt(np.maximum(square - mean**2, 0))


def _leaves_unit_range(low: float, high: float) -> bool:
    """Returns whether pixels are outside [0, 1] by more than a resizing makes them."""
    return low < -NEARLY or high > 1 + NEARLY


def check_colours(augment: str, examples: Examples) -> None:
    """Raises ValueError for inputs outside [0, 1] with an augmentation of colours: it would clip
    them, in training only."""
    x = np.asarray(examples.x)
    if x.dtype == np.uint8 or "colour_jitter" not in (registry.parse_spec(part)[0] for part in augment.split("|")):
        return
    x = x[:1] if _is_one_repeated(x) else x
    blocks = [x[start : start + 1000] for start in range(0, len(x), 1000)]
    low, high = min(float(block.min()) for block in blocks), max(float(block.max()) for block in blocks)
    if _leaves_unit_range(low, high):
        raise ValueError(
            f"augment={augment!r}: colour_jitter is for images of bytes, or of floats in [0, 1], these {x.dtype} are in "
            f"[{low:.4g}, {high:.4g}]"
        )


def check_inputs(
    normalise: str, file: str | None, scaling: Scaling, examples: Examples, rows: np.ndarray | None = None
) -> list[str]:
    """Returns warnings of inputs that the normalisation leaves too large or makes
    indistinguishable; [] if all is well.

    Args:
      file: of weights, whose own mean and deviation are taken, or None.

    Raises:
      ValueError: the inputs are images of floats or integers in another range than the
        normalisation is for, such as 0 ... 255.
    """
    x = np.asarray(examples.x)
    if x.dtype == np.uint8 or _is_one_repeated(x):
        return []
    sample = sample_channels(x, rows)
    is_of_file = file is not None and pretrained_weights.read_scaling(file) is not None
    origin = f"weights={file!r}" if is_of_file else f"normalise={normalise!r}"
    if NORMALISATIONS[normalise] is None and not is_of_file:
        return _check_outliers(origin, scaling, sample, x, rows) if normalise != ROBUST else []
    distance = np.abs(sample - np.asarray(scaling.mean)) / np.asarray(scaling.std)
    low, high = sample.min(), sample.max()
    is_outside = not is_of_file and normalise != "unit" and _leaves_unit_range(low, high)
    if is_images(x) and (is_outside or distance.max() > FAR):
        raise ValueError(f"{origin} is for pixels in [0, 1], these {x.dtype} are in [{low:.4g}, {high:.4g}]: {ADVICE}")
    far = np.flatnonzero(distance.mean(0) > FAR)
    if is_images(x) or not len(far):
        return []
    column = sample[:, far[0]]
    what = f"{_describe_columns(x, far)} {x.dtype} in [{column.min():.4g}, {column.max():.4g}], which it leaves on average"
    return [f"{origin}: {what} {distance[:, far[0]].mean():.4g} from 0: scale them first, or take normalise='data'"]


def _check_outliers(origin: str, scaling: Scaling, sample: np.ndarray, x: np.ndarray, rows: np.ndarray | None) -> list[str]:
    """Returns a warning of channels whose deviation a few outliers stretch, so that all other
    examples become alike."""
    spread = find_centre_and_spread(sample)[1]
    far = np.flatnonzero((spread > 0) & (np.asarray(scaling.std) > STRETCHED * spread))
    if not len(far):
        return []
    column = (x if rows is None else x[rows])[..., far[0]]
    low, high = np.quantile(sample[:, far[0]], (0.25, 0.75))
    what = f"{_describe_columns(x, far)} in [{column.min():.4g}, {column.max():.4g}]"
    return [
        f"{origin}: {what}, and half of it in [{low:.4g}, {high:.4g}]: "
        "a few rows stretch the deviation, so that all others become alike; take them out, or normalise='robust'"
    ]


def _describe_columns(x: np.ndarray, columns: np.ndarray) -> str:
    what = "column" if x.ndim == 2 else "channel"
    return f"{what} {columns[0]} of x is" if len(columns) == 1 else f"{len(columns)} {what}s of x are such; {what} {columns[0]} is"
