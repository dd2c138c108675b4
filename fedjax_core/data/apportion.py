"""Seeded random generators, and integers in given proportions."""

import zlib
from typing import Any

import numpy as np


def make_generator(seed: int, stream: str) -> np.random.Generator:
    """Returns the random generator of one purpose: streams of one seed are independent of each
    other.

    Raises:
      ValueError: `seed` is not an integer >= 0.
    """
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"data seed {seed!r}: must be an integer >= 0.")
    return np.random.default_rng((int(seed), zlib.crc32(stream.encode())))


def apportion(total: Any, shares: np.ndarray) -> np.ndarray:
    """Returns integers in the proportions of `shares` that add up to `total` exactly (largest
    remainders; ties to the first).

    Args:
      total: [...] integers.
      shares: [..., N] numbers >= 0, not all of them 0 in any row; they need not add up to 1.

    Returns:
      [..., N] int64; `apportion(10, [1, 1, 1])` is `[4, 3, 3]`.
    """
    total, shares = np.asarray(total), np.asarray(shares, float)
    quota = total[..., None] * (shares / shares.sum(-1, keepdims=True))
    whole = np.floor(quota).astype(np.int64)
    left = total - whole.sum(-1)
    if not total.ndim:  # the same without sorting, for millions of shares
        return whole + _largest(quota - whole, int(left))
    rank = np.argsort(np.argsort(-(quota - whole), axis=-1, kind="stable"), axis=-1, kind="stable")
    return whole + (rank < left[..., None])


def _largest(values: np.ndarray, number: int) -> np.ndarray:
    """Returns the mask [N] of the `number` largest values [N]; of equal values the first."""
    if not 0 < number < len(values):
        return np.full(len(values), number > 0)
    least = np.partition(values, len(values) - number)[len(values) - number]
    chosen = values > least
    chosen[np.flatnonzero(values == least)[: number - chosen.sum()]] = True
    return chosen


MANY = 10_000  # clients for which draws are made together: a loop over fewer takes a second or two


def apportion_systematically(total: np.ndarray, parts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Apportions the totals of very many rows of parts: each part is rounded up or down at random,
    in time that grows with their number alone.

    Args:
      total: [n] integers.
      parts: [n, K] integers >= 0.
      rng: a number of each row is drawn.

    Returns:
      [n, K] int64 that add up to `total`; 0 where all parts are.
    """
    whole = np.maximum(parts.sum(-1), 1)
    begin = rng.integers(0, whole)
    ends = (np.cumsum(parts, -1) * np.asarray(total)[:, None] + begin[:, None]) // whole[:, None]
    return np.diff(ends, axis=-1, prepend=0)


def apportion_capped(total: int, shares: np.ndarray, caps: np.ndarray) -> np.ndarray:
    """Apportions a total such that no part exceeds its cap: the excess goes to the others in
    proportion to their shares.

    When all parts with a positive share are full, the rest is divided by the room that is left.

    Args:
      total: at most the sum of the caps.
      shares: [K] numbers >= 0.
      caps: [K] integers >= 0.

    Returns:
      [K] int64 that adds up to `total`.
    """
    parts = np.zeros(len(caps), np.int64)
    while left := total - int(parts.sum()):
        room = caps - parts
        weights = np.where(room > 0, shares, 0.0)
        wanted = apportion(left, weights if weights.sum() > 0 else room)
        parts += np.minimum(wanted, room)
    return parts
