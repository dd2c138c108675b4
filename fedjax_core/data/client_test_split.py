"""The clients' own test examples: parts of the official test set that match their training
examples.
"""

from collections.abc import Sequence

import numpy as np

from fedjax_core.data import apportion
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.data.sources import Dataset
from fedjax_core.data.target_types import num_strata, stratify

_CELLS = 2**22  # of tables that are worked on at once


def split_proportionally(dataset: Dataset, train_index: Sequence[np.ndarray], seed: int) -> RaggedIndex:
    """Divides each class's test examples over the clients in proportion to their training examples
    of it; where targets are no classes, all test examples in proportion to all training examples.
    """
    labels, table = stratify(dataset.test.y), _table(dataset, train_index)
    rng = apportion.make_generator(seed, "test_proportional")
    dealt, whose = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for c in np.flatnonzero(table.sum(0)):
        rows = rng.permutation(np.flatnonzero(labels == c))
        dealt.append(rows)
        whose.append(np.repeat(np.arange(len(table)), apportion.apportion(len(rows), table[:, c])))
    rows, owners = np.concatenate(dealt), np.concatenate(whose)
    size = np.bincount(owners, minlength=len(table))
    return RaggedIndex(rows[np.lexsort((rows, owners))], np.cumsum(size) - size, size)


def sample_matched(dataset: Dataset, train_index: Sequence[np.ndarray], test_examples: int, seed: int) -> Sequence[np.ndarray]:
    """Draws `test_examples` examples per client, with the label distribution of its training
    examples; clients may share.

    Raises:
      ValueError: a client wants more examples of a class than there are; the message says how many
        would do.
    """
    if test_examples < 1:
        raise ValueError(f"test_examples={test_examples}: must be >= 1.")
    labels, table = stratify(dataset.test.y), _table(dataset, train_index)
    of_class = [np.flatnonzero(labels == c) for c in range(table.shape[1])]
    available = np.array([len(rows) for rows in of_class])
    rng = apportion.make_generator(seed, "test_matched")
    if len(table) > apportion.MANY:
        return _together(table, of_class, available, test_examples, rng)
    index = []
    for client, counts in enumerate(table):
        if not counts.any():
            index.append(np.zeros(0, np.int32))
            continue
        wanted = apportion.apportion(test_examples, counts)
        if np.any(wanted > available):
            raise _too_many(client, counts, wanted, available, test_examples)
        chosen = [rng.choice(rows, number, replace=False) for rows, number in zip(of_class, wanted, strict=True)]
        index.append(np.sort(np.concatenate(chosen)).astype(np.int32))
    return index


def _too_many(client: int, counts: np.ndarray, wanted: np.ndarray, available: np.ndarray, test_examples: int) -> ValueError:
    c = int(np.argmax(wanted - available))
    most = int(np.min(available[counts > 0] * counts.sum() / counts[counts > 0]))
    return ValueError(
        f"test_split='matched': client {client} wants {wanted[c]} of the {available[c]} test examples of class {c}; "
        f"test_examples={test_examples} must be <= {most} for it."
    )


def _together(
    table: np.ndarray, of_class: Sequence[np.ndarray], available: np.ndarray, test_examples: int, rng: np.random.Generator
) -> RaggedIndex:
    """Draws as `sample_matched`, without a step for each client. Examples of a class are chosen by
    Floyd's algorithm, one for each client at a time.
    """
    parts, sizes, first = [], [], np.cumsum(available) - available
    rows_by_class = np.concatenate([np.zeros(0, np.int64), *of_class])
    block = max(1, _CELLS // max(table.shape[1], test_examples))
    for begin in range(0, len(table), block):
        counts = table[begin : begin + block]
        wanted = apportion.apportion_systematically(np.where(counts.any(1), test_examples, 0), counts, rng)
        if len(over := np.flatnonzero((wanted > available).any(1))):
            raise _too_many(begin + int(over[0]), counts[over[0]], wanted[over[0]], available, test_examples)
        client, class_index = np.nonzero(wanted)
        number = wanted[client, class_index]
        chosen = np.full((len(number), int(number.max(initial=0))), -1)
        for at in range(chosen.shape[1]):
            going = number > at
            top = available[class_index[going]] - number[going] + at
            drawn = rng.integers(0, top + 1)
            chosen[going, at] = np.where((chosen[going, :at] == drawn[:, None]).any(1), top, drawn)
        real = chosen >= 0
        rows, whose = rows_by_class[(chosen + first[class_index][:, None])[real]], np.repeat(client, number)
        parts.append(rows[np.lexsort((rows, whose))].astype(np.int32))
        sizes.append(np.bincount(whose, minlength=len(counts)))
    size = np.concatenate(sizes)
    return RaggedIndex(np.concatenate(parts), np.cumsum(size) - size, size)


def _table(dataset: Dataset, train_index: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the training examples of each class [N, K]; [N, 1] where targets are no classes."""
    return RaggedIndex.from_lists(train_index).count_labels(
        stratify(dataset.train.y), num_strata(dataset.train.y, len(dataset.class_names))
    )
