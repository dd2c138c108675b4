"""The clients' own test rows: parts of the official test set that go with their training rows."""

from collections.abc import Sequence

import numpy as np

from fedjax_core.data import draws
from fedjax_core.data.sources import Dataset


def proportional(dataset: Dataset, train_index: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """Each class's test rows, divided over the clients in proportion to their training rows of it."""
    table = label_table(dataset.train.y, train_index, len(dataset.class_names))
    rng = draws.generator(seed, "test_proportional")
    hands: list[list[np.ndarray]] = [[] for _ in train_index]
    for c in np.flatnonzero(table.sum(0)):
        rows = rng.permutation(np.flatnonzero(dataset.test.y == c))
        cuts = np.cumsum(draws.apportion(len(rows), table[:, c]))[:-1]
        for hand, part in zip(hands, np.split(rows, cuts), strict=True):
            hand.append(part)
    return [np.sort(np.concatenate([np.zeros(0, np.int64), *hand])).astype(np.int32) for hand in hands]


def matched(dataset: Dataset, train_index: Sequence[np.ndarray], test_examples: int, seed: int) -> list[np.ndarray]:
    """`test_examples` rows for each client, with the label distribution of its training rows; clients may share.

    Raises:
      ValueError: a client wants more rows of a class than there are; the message says how many would do.
    """
    if test_examples < 1:
        raise ValueError(f"test_examples={test_examples}: must be >= 1.")
    table = label_table(dataset.train.y, train_index, len(dataset.class_names))
    of_class = [np.flatnonzero(dataset.test.y == c) for c in range(table.shape[1])]
    there = np.array([len(rows) for rows in of_class])
    rng = draws.generator(seed, "test_matched")
    index = []
    for client, counts in enumerate(table):
        if not counts.any():
            index.append(np.zeros(0, np.int32))
            continue
        wanted = draws.apportion(test_examples, counts)
        if np.any(wanted > there):
            c = int(np.argmax(wanted - there))
            most = int(np.min(there[counts > 0] * counts.sum() / counts[counts > 0]))
            raise ValueError(
                f"test_split='matched': client {client} wants {wanted[c]} of the {there[c]} test rows of class {c}; "
                f"test_examples={test_examples} must be <= {most} for it."
            )
        chosen = [rng.choice(rows, number, replace=False) for rows, number in zip(of_class, wanted, strict=True)]
        index.append(np.sort(np.concatenate(chosen)).astype(np.int32))
    return index


def label_table(labels: np.ndarray, index: Sequence[np.ndarray], classes: int) -> np.ndarray:
    """[N, K] rows of each class."""
    return np.stack([np.bincount(labels[rows], minlength=classes) for rows in index])
