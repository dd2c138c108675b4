"""The clients' own test rows: parts of the official test set that go with their training rows."""

from collections.abc import Sequence

import numpy as np

from fedjax_core.data import apportion
from fedjax_core.data.ragged_index import RowLists
from fedjax_core.data.sources import Dataset
from fedjax_core.data.target_types import number, stratify

_CELLS = 2**22  # of tables that are worked on at once


def split_proportionally(dataset: Dataset, train_index: Sequence[np.ndarray], seed: int) -> RowLists:
    """Each class's test rows, divided over the clients in proportion to their training rows of it; where targets are no classes,
    all test rows in proportion to all training rows."""
    labels, table = stratify(dataset.test.y), _table(dataset, train_index)
    rng = apportion.make_generator(seed, "test_proportional")
    dealt, whose = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for c in np.flatnonzero(table.sum(0)):
        rows = rng.permutation(np.flatnonzero(labels == c))
        dealt.append(rows)
        whose.append(np.repeat(np.arange(len(table)), apportion.apportion(len(rows), table[:, c])))
    rows, owners = np.concatenate(dealt), np.concatenate(whose)
    size = np.bincount(owners, minlength=len(table))
    return RowLists(rows[np.lexsort((rows, owners))], np.cumsum(size) - size, size)


def sample_matched(dataset: Dataset, train_index: Sequence[np.ndarray], test_examples: int, seed: int) -> Sequence[np.ndarray]:
    """`test_examples` rows for each client, with the label distribution of its training rows; clients may share.

    Raises:
      ValueError: a client wants more rows of a class than there are; the message says how many would do.
    """
    if test_examples < 1:
        raise ValueError(f"test_examples={test_examples}: must be >= 1.")
    labels, table = stratify(dataset.test.y), _table(dataset, train_index)
    of_class = [np.flatnonzero(labels == c) for c in range(table.shape[1])]
    there = np.array([len(rows) for rows in of_class])
    rng = apportion.make_generator(seed, "test_matched")
    if len(table) > apportion.MANY:
        return _together(table, of_class, there, test_examples, rng)
    index = []
    for client, counts in enumerate(table):
        if not counts.any():
            index.append(np.zeros(0, np.int32))
            continue
        wanted = apportion.apportion(test_examples, counts)
        if np.any(wanted > there):
            raise _too_many(client, counts, wanted, there, test_examples)
        chosen = [rng.choice(rows, number, replace=False) for rows, number in zip(of_class, wanted, strict=True)]
        index.append(np.sort(np.concatenate(chosen)).astype(np.int32))
    return index


def _too_many(client: int, counts: np.ndarray, wanted: np.ndarray, there: np.ndarray, test_examples: int) -> ValueError:
    c = int(np.argmax(wanted - there))
    most = int(np.min(there[counts > 0] * counts.sum() / counts[counts > 0]))
    return ValueError(
        f"test_split='matched': client {client} wants {wanted[c]} of the {there[c]} test rows of class {c}; "
        f"test_examples={test_examples} must be <= {most} for it."
    )


def _together(
    table: np.ndarray, of_class: Sequence[np.ndarray], there: np.ndarray, test_examples: int, rng: np.random.Generator
) -> RowLists:
    """`matched` without a step for each client. Rows of a class are chosen by Floyd's algorithm, one for each client at a time."""
    parts, sizes, first = [], [], np.cumsum(there) - there
    rows_by_class = np.concatenate([np.zeros(0, np.int64), *of_class])
    each = max(1, _CELLS // max(table.shape[1], test_examples))
    for begin in range(0, len(table), each):
        counts = table[begin : begin + each]
        wanted = apportion.apportion_systematically(np.where(counts.any(1), test_examples, 0), counts, rng)
        if len(over := np.flatnonzero((wanted > there).any(1))):
            raise _too_many(begin + int(over[0]), counts[over[0]], wanted[over[0]], there, test_examples)
        client, of = np.nonzero(wanted)
        number = wanted[client, of]
        chosen = np.full((len(number), int(number.max(initial=0))), -1)
        for at in range(chosen.shape[1]):
            going = number > at
            top = there[of[going]] - number[going] + at
            drawn = rng.integers(0, top + 1)
            chosen[going, at] = np.where((chosen[going, :at] == drawn[:, None]).any(1), top, drawn)
        real = chosen >= 0
        rows, whose = rows_by_class[(chosen + first[of][:, None])[real]], np.repeat(client, number)
        parts.append(rows[np.lexsort((rows, whose))].astype(np.int32))
        sizes.append(np.bincount(whose, minlength=len(counts)))
    size = np.concatenate(sizes)
    return RowLists(np.concatenate(parts), np.cumsum(size) - size, size)


def _table(dataset: Dataset, train_index: Sequence[np.ndarray]) -> np.ndarray:
    """[N, K] training rows of each class; [N, 1] where targets are no classes."""
    return RowLists.of(train_index).counts(stratify(dataset.train.y), number(dataset.train.y, len(dataset.class_names)))
