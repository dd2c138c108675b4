"""Chooses rows of many for a figure or an analysis."""

import numpy as np


def space_evenly(number: int, most: int) -> np.ndarray:
    """Returns at most `most` of the indices 0 ... number - 1, evenly spaced.

    >>> space_evenly(3, 5), space_evenly(9, 3)
    (array([0, 1, 2]), array([0, 4, 8]))
    """
    return np.unique(np.linspace(0, number - 1, min(most, number)).round().astype(int))
