"""Seeded random generators, and integers in given proportions."""

import zlib
from typing import Any

import numpy as np


def make_generator(seed: int, stream: str) -> np.random.Generator:
    """Returns the random generator of one purpose; streams of one seed are independent."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"data seed {seed!r}: must be an integer >= 0.")
    return np.random.default_rng((int(seed), zlib.crc32(stream.encode())))


def apportion(total: Any, shares: np.ndarray) -> np.ndarray:
    """Returns integers in the proportions of `shares` that add up to `total` (largest remainders).

    Of equal remainders the first are rounded up: `apportion(10, [1, 1, 1])` is `[4, 3, 3]`.

    Args:
      total: [...] integers.
      shares: [..., N] numbers >= 0, not all of them 0 in any row; they need not add up to 1.
    """
    total, shares = np.asarray(total), np.asarray(shares, float)
    quota = total[..., None] * (shares / shares.sum(-1, keepdims=True))
    floor = np.floor(quota).astype(np.int64)
    left = total - floor.sum(-1)
    if not total.ndim:  # the same without sorting, for millions of shares
        return floor + _largest_mask(quota - floor, int(left))
    rank = np.argsort(np.argsort(-(quota - floor), axis=-1, kind="stable"), axis=-1, kind="stable")
    return floor + (rank < left[..., None])


def _largest_mask(values: np.ndarray, number: int) -> np.ndarray:
    """Returns the mask [N] of the `number` largest values [N]; of equal values the first."""
    if not 0 < number < len(values):
        return np.full(len(values), number > 0)
    least = np.partition(values, len(values) - number)[len(values) - number]
    chosen = values > least
    chosen[np.flatnonzero(values == least)[: number - chosen.sum()]] = True
    return chosen


def apportion_owed(total: int, shares: np.ndarray, owed: np.ndarray) -> np.ndarray:
    """Returns integers in the proportions of `shares` [N] that add up to `total`; those who are owed most are rounded up.

    Of equal ones the first are rounded up.

    Args:
      shares: integers >= 0, not all of them 0.
      owed: [N] what rounding has cost each so far; what it costs here is added in place.
    """
    parts, rest = np.divmod(total * shares, shares.sum())
    owed += rest / shares.sum()
    up = _largest_mask(np.where(rest > 0, owed.round(9), -np.inf), total - int(parts.sum()))
    owed -= up
    return parts + up


MANY = 10_000  # clients; above it draws avoid a Python loop over clients, which takes a second or two up to here


def apportion_systematically(total: np.ndarray, parts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Apportions totals [n] to very many rows of parts [n, K], each rounded at random.

    Rows without parts get 0.
    """
    whole = np.maximum(parts.sum(-1), 1)
    begin = rng.integers(0, whole)
    ends = (np.cumsum(parts, -1) * np.asarray(total)[:, None] + begin[:, None]) // whole[:, None]
    return np.diff(ends, axis=-1, prepend=0)


def apportion_capped(total: int, shares: np.ndarray, caps: np.ndarray) -> np.ndarray:
    """Apportions a total to shares [K] such that no part exceeds its cap [K].

    The excess goes to the others in proportion to their shares; when all parts with a positive
    share are full, in proportion to the room that is left. The total must not exceed the sum of the
    caps.
    """
    parts = np.zeros(len(caps), np.int64)
    while left := total - int(parts.sum()):
        room = caps - parts
        weights = np.where(room > 0, shares, 0.0)
        wanted = apportion(left, weights if weights.sum() > 0 else room)
        parts += np.minimum(wanted, room)
    return parts
