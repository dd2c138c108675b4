"""Test sets of our own, where a set comes without one."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from fedjax_core.data.apportion import apportion, generator
from fedjax_core.option_types import Limit

TestFraction = Annotated[float, Limit("between 0 and 1", lambda v: 0 < v < 1)]
SPLIT_SEED = 0  # of the splits that are ours, where a set comes without one


def stratified(strata: np.ndarray, tests: int) -> np.ndarray:
    """[rows] bool: `tests` test rows, from every stratum in proportion; the same at every call."""
    values, counts = np.unique(strata, return_counts=True)
    rng = generator(SPLIT_SEED, "split")
    is_test = np.zeros(len(strata), bool)
    for value, number in zip(values, apportion(tests, counts), strict=True):
        is_test[rng.permutation(np.flatnonzero(strata == value))[:number]] = True
    return is_test


def choose_rows(strata: np.ndarray, number: int | None) -> np.ndarray | None:
    """Returns so many rows, from every stratum in proportion and always the same ones; None for all that there are."""
    return None if number is None or number >= len(strata) else np.flatnonzero(stratified(strata, number))


def stratified_fraction(columns: Sequence[np.ndarray], fraction: float) -> np.ndarray:
    """[rows] bool: a fraction of the rows as test rows, stratified by all columns together.

    Raises:
      ValueError: the fraction is no number between 0 and 1, or leaves no row on one of the sides.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, int | float | np.number) or not 0 < fraction < 1:
        raise ValueError(f"test_fraction={fraction!r}: must lie between 0 and 1, such as 0.2.")
    rows = len(columns[0])
    if not 0 < (tests := round(fraction * rows)) < rows:
        raise ValueError(f"test_fraction={fraction} of {rows} rows leaves {rows - tests} to train and {tests} to test on.")
    _, strata = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)
    return stratified(strata.reshape(-1), tests)
