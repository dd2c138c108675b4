"""Classes thinned to a long tail, before a partition."""

import math

import numpy as np

from fedjax_core.data.apportion import generator
from fedjax_core.data.partition.rows import check_labels, choose_rows


def long_tail(labels: np.ndarray, seed: int, *, rho: float) -> np.ndarray:
    """Thins the classes to an exponential profile; applied before any of the partitions.

    Class j of K keeps n_j = floor(n_max * rho^(-j / (K-1))) rows, chosen at random: class 0 is the head, class K-1 the tail,
    and rho the ratio between them. On CIFAR-10 with rho = 100: 5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50. n_max is the
    size of the classes if all are equal, and else the largest with which no class falls short of its n_j. Small rho means less
    skew; 1 balances the classes.

    Args:
      labels: [rows] class indices.
      seed: data seed.
      rho: imbalance factor, at least 1 (FedSKC: 10, 50, 100).

    Returns:
      The kept rows, sorted, int32.

    Raises:
      ValueError: rho is not a number >= 1, or so large that the last class would be empty; the message has the largest
        that is possible.

    Source: Cao et al. Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss. NeurIPS 2019.
    """
    labels = check_labels(labels, 1)
    if not (isinstance(rho, int | float | np.number) and math.isfinite(rho) and rho >= 1):
        raise ValueError(f"rho={rho!r}: must be a finite number >= 1 (1 balances the classes, 100 is a long tail).")
    classes, rows = np.unique(labels, return_counts=True)
    decay = float(rho) ** -(np.arange(len(classes)) / max(len(classes) - 1, 1))
    most = np.min(rows / decay)
    kept = np.floor(np.floor(most + 1e-9) * decay + 1e-9).astype(int)
    if kept.min() < 1:
        raise ValueError(
            f"rho={rho}: class {classes[-1]} would keep no row of {rows[-1]} (the first class keeps {kept[0]}); "
            f"allowed here: 1 to {kept[0]}."
        )
    rng = generator(seed, "long_tail")
    return choose_rows(rng, [np.flatnonzero(labels == c) for c in classes], kept, replace=False)
