"""Partitions that ignore labels (IID, quantity skew), and long-tailed class sizes."""

import math

import numpy as np

from fedjax_core.data.apportion import apportion, make_generator
from fedjax_core.data.partition.sampling import (
    Alpha,
    check_concentration,
    check_labels,
    choose_examples,
    draw_until_min_size,
    log_dirichlet,
)
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.option_types import AtLeastOne, AtLeastZero


def iid(labels: np.ndarray, clients: int, seed: int) -> RaggedIndex:
    """Shuffles all examples and cuts them into N parts of equal size, up to one example."""
    labels = check_labels(labels, clients)
    size, more = divmod(len(labels), clients)
    return RaggedIndex.split(make_generator(seed, "iid").permutation(len(labels)), size + (np.arange(clients) < more))


def quantity_skew(
    labels: np.ndarray, clients: int, seed: int, *, alpha: Alpha, min_size: AtLeastZero = 1, max_tries: AtLeastOne = 1000
) -> RaggedIndex:
    """Draws client sizes from a Dirichlet distribution, and examples at random.

    Label distributions agree, quantities do not. Small alpha means more skew: with 10 clients the
    largest holds 66 % of the examples on average at alpha 0.1, 15 % at alpha 10.

    Args:
      alpha: concentration, one number or N of them.
      min_size: examples that the smallest client must have; 0 allows empty clients.
      max_tries: draws before giving up on `min_size`.

    Source: Li, Diao, Chen, He. Federated Learning on Non-IID Data Silos: An Experimental Study.
    ICDE 2022.
    """
    labels = check_labels(labels, clients)
    rng = make_generator(seed, "quantity_skew")

    def draw(concentration):
        return apportion([len(labels)], np.exp(log_dirichlet(rng, concentration, (1, clients))))

    concentration = check_concentration(alpha, clients, "client")
    sizes = draw_until_min_size(draw, "quantity_skew", concentration, min_size, len(labels), clients, max_tries)[0]
    return RaggedIndex.split(rng.permutation(len(labels)), sizes)


def long_tail(labels: np.ndarray, seed: int, *, rho: float) -> np.ndarray:
    """Thins the classes to an exponential profile; applied before any of the partitions.

    Class j of K keeps n_j = floor(n_max * rho^(-j / (K-1))) examples, chosen at random: class 0 is
    the head, class K-1 the tail, and rho the ratio between them. On CIFAR-10 with rho = 100: 5000,
    2997, 1796, 1077, 645, 387, 232, 139, 83, 50. n_max is the size of the classes if all are equal,
    and else the largest with which no class falls short of its n_j.

    Args:
      labels: [n] class indices.
      seed: data seed.
      rho: imbalance factor, at least 1, which balances the classes (FedSKC: 10, 50, 100).

    Returns:
      The kept examples, sorted, int32.

    Raises:
      ValueError: rho is not a number >= 1, or so large that the last class would be empty.

    Source: Cao et al. Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss.
    NeurIPS 2019.
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
            f"rho={rho}: class {classes[-1]} would keep no example of {rows[-1]} (the first class keeps {kept[0]}); "
            f"allowed here: 1 to {kept[0]}."
        )
    rng = make_generator(seed, "long_tail")
    return choose_examples(rng, [np.flatnonzero(labels == c) for c in classes], kept, replace=False)
