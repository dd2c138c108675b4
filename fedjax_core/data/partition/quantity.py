"""Rows at random: clients of one size, or of different sizes."""

import numpy as np

from fedjax_core.data.apportion import apportion, generator
from fedjax_core.data.partition.rows import check_labels
from fedjax_core.data.partition.sampling import Alpha, concentrations, draw_until, log_dirichlet
from fedjax_core.data.ragged_index import RowLists
from fedjax_core.option_types import AtLeastOne, AtLeastZero


def iid(labels: np.ndarray, clients: int, seed: int) -> RowLists:
    """Shuffles all rows and cuts them into N parts of equal size (up to one row).

    Args:
      labels: [rows] class indices; only their number matters.
      clients: N, at most the number of rows.
      seed: data seed.

    Returns:
      N disjoint index arrays that cover all rows: 10 rows for 3 clients give sizes 4, 3, 3.

    Raises:
      ValueError: more clients than rows, or bad labels.
    """
    labels = check_labels(labels, clients)
    each, more = divmod(len(labels), clients)
    return RowLists.cut(generator(seed, "iid").permutation(len(labels)), each + (np.arange(clients) < more))


def quantity_skew(
    labels: np.ndarray, clients: int, seed: int, *, alpha: Alpha, min_size: AtLeastZero = 1, max_tries: AtLeastOne = 1000
) -> RowLists:
    """Client sizes from a Dirichlet distribution, rows at random: label distributions agree, quantities do not.

    Small alpha means more skew: with 10 clients the largest holds 66 % of the rows on average at alpha 0.1, 15 % at alpha 10.

    Args:
      labels: [rows] class indices; only their number matters.
      clients: N, at most the number of rows.
      seed: data seed.
      alpha: concentration, one number or N of them.
      min_size: rows that the smallest client must have; 0 allows empty clients.
      max_tries: draws before giving up on `min_size`.

    Returns:
      N disjoint index arrays that cover all rows.

    Raises:
      ValueError: as `dirichlet`.

    Source: Li, Diao, Chen, He. Federated Learning on Non-IID Data Silos: An Experimental Study. ICDE 2022.
    """
    labels = check_labels(labels, clients)
    rng = generator(seed, "quantity_skew")

    def draw(concentration):
        return apportion([len(labels)], np.exp(log_dirichlet(rng, concentration, (1, clients))))

    concentration = concentrations(alpha, clients, "client")
    sizes = draw_until(draw, "quantity_skew", concentration, min_size, len(labels), clients, max_tries)[0]
    return RowLists.cut(rng.permutation(len(labels)), sizes)
