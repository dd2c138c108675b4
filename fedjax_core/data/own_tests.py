"""The clients' own test rows: parts of the official test set that go with their training rows."""

from collections.abc import Sequence

import numpy as np

from fedjax_core.data import draws
from fedjax_core.data.row_lists import RowLists
from fedjax_core.data.sources import Dataset
from fedjax_core.data.targets import number, strata


def proportional(dataset: Dataset, train_index: Sequence[np.ndarray], seed: int) -> RowLists:
    """Each class's test rows, divided over the clients in proportion to their training rows of it; where targets are no classes,
    all test rows in proportion to all training rows."""
    labels, table = strata(dataset.test.y), _table(dataset, train_index)
    rng = draws.generator(seed, "test_proportional")
    dealt, whose = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for c in np.flatnonzero(table.sum(0)):
        rows = rng.permutation(np.flatnonzero(labels == c))
        dealt.append(rows)
        whose.append(np.repeat(np.arange(len(table)), draws.apportion(len(rows), table[:, c])))
    rows, owners = np.concatenate(dealt), np.concatenate(whose)
    size = np.bincount(owners, minlength=len(table))
    return RowLists(rows[np.lexsort((rows, owners))], np.cumsum(size) - size, size)


def matched(dataset: Dataset, train_index: Sequence[np.ndarray], test_examples: int, seed: int) -> list[np.ndarray]:
    """`test_examples` rows for each client, with the label distribution of its training rows; clients may share.

    Raises:
      ValueError: a client wants more rows of a class than there are; the message says how many would do.
    """
    if test_examples < 1:
        raise ValueError(f"test_examples={test_examples}: must be >= 1.")
    labels, table = strata(dataset.test.y), _table(dataset, train_index)
    of_class = [np.flatnonzero(labels == c) for c in range(table.shape[1])]
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


def _table(dataset: Dataset, train_index: Sequence[np.ndarray]) -> np.ndarray:
    """[N, K] training rows of each class; [N, 1] where targets are no classes."""
    return RowLists.of(train_index).counts(strata(dataset.train.y), number(dataset.train.y, len(dataset.class_names)))
