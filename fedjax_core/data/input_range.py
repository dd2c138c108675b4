"""Centre, spread and scale of each channel (the last axis), estimated from a sample of examples."""

import math

import numpy as np

SAMPLE = 2**20  # numbers that are looked at
NORMAL_IQR = 1.349  # interquartile range of a normal distribution, in standard deviations
LOSS = 1e-3  # of a channel's spread, that rounding to float32 may take away
FLOAT32_STEP = 2.0**-24  # largest relative error of rounding to float32
MAX_SCALE_RATIO = 30.0  # how many times larger deviations of one part may be than those of another
MIN_SAMPLE = 10  # numbers of a channel, of which a deviation says something


def sample_channels(x: np.ndarray, rows: np.ndarray | None = None, most: int = SAMPLE) -> np.ndarray:
    """Returns about `most` numbers of x [n, ..., C] as [n, C] float64, of evenly spaced examples.

    Args:
      x: in memory or in a file, of which the sampled examples alone are read.
      rows: example indices that may be sampled; None: all.
      most: numbers; at least one whole example is taken.
    """
    count = len(x) if rows is None else len(rows)
    number = min(count, max(1, most // max(1, math.prod(x.shape[1:]))))
    kept = np.arange(number) * count // max(1, number)
    return np.asarray(x[kept if rows is None else rows[kept]], np.float64).reshape(-1, x.shape[-1])


def find_centre_and_spread(sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns median [C] and robust deviation [C] of each channel of a sample [n, C].

    The deviation is the interquartile range over 1.349, as of a normal distribution. Where that is
    0 (more than half of the examples alike) it is that of the 99 % of examples nearest to the
    median, and where those are alike, too, that of all examples.
    """
    low, median, high = np.quantile(sample, (0.25, 0.5, 0.75), axis=0)
    spread = (high - low) / NORMAL_IQR
    for flat in np.flatnonzero(spread == 0):
        squares = np.sort((sample[:, flat] - median[flat]) ** 2)
        nearest = squares[: len(squares) - math.ceil(len(squares) / 100)]
        spread[flat] = math.sqrt(nearest.mean()) if nearest.any() else math.sqrt(squares.mean())
    return median, spread


def find_offset(x: np.ndarray) -> np.ndarray | None:
    """Returns what to take off each channel [C] so that float32 keeps its digits; None: nothing.

    A channel is far from 0 if rounding to float32 changes its typical numbers by more than a
    thousandth of their spread, such as seconds since 1970. Then its median is taken off, else 0.
    """
    median, spread = find_centre_and_spread(sample_channels(x))
    is_far = (spread > 0) & (np.abs(median) * FLOAT32_STEP > LOSS * spread)
    return np.where(is_far, median, 0.0) if is_far.any() else None


def ratio_of_deviations(x: np.ndarray, other: np.ndarray) -> float | None:
    """Returns the median over channels of deviations of `other` over those of x.

    None for too few numbers, or numbers that are all alike.
    """
    samples = [sample_channels(part) for part in (x, other)]
    if min(map(len, samples)) < MIN_SAMPLE:
        return None
    deviations = [sample.std(0) for sample in samples]
    is_varied = (deviations[0] > 0) & (deviations[1] > 0)
    return float(np.median(deviations[1][is_varied] / deviations[0][is_varied])) if is_varied.any() else None


def is_alike(ratio: float | None) -> bool:
    """Returns whether a ratio of deviations is such as two parts of one data set may have."""
    return ratio is None or 1 / MAX_SCALE_RATIO <= ratio <= MAX_SCALE_RATIO
