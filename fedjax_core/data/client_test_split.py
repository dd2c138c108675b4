"""The clients' own test examples, which match their training examples."""

from collections.abc import Sequence

import numpy as np

from fedjax_core.algorithm import Examples
from fedjax_core.data import apportion
from fedjax_core.data.ragged_index import RaggedIndex, list_owners, list_places
from fedjax_core.data.sources import Dataset
from fedjax_core.data.target_types import num_strata, stratify

MERGED_TEST_SHARE = 0.25  # of each client's examples, as in PFLlib
_CELLS = 2**22  # of tables that are worked on at once


def split_proportionally(dataset: Dataset, train_index: Sequence[np.ndarray], seed: int) -> RaggedIndex:
    """Divides each class's test examples over the clients in proportion to their training examples.

    What rounding down has cost a client in one class counts in the next, so that clients with equal
    data differ by about one example in all. Equal ones are rounded up in a random order. Where
    targets are no classes, all test examples in proportion to all training examples.
    """
    labels, table = stratify(dataset.test.y), _label_table(dataset, train_index)
    rng = apportion.make_generator(seed, "test_proportional")
    turn = apportion.make_generator(seed, "test_turn").permutation(len(table))
    owed = np.zeros(len(table))
    rows, owners = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for c in np.flatnonzero(table.sum(0)):
        rows.append(rng.permutation(np.flatnonzero(labels == c)))
        owners.append(np.repeat(turn, apportion.apportion_owed(len(rows[-1]), table[turn, c], owed)))
    return RaggedIndex.group_by_client(np.concatenate(rows), np.concatenate(owners), len(table))


def merge_columns(dataset: Dataset) -> Dataset:
    """Returns targets, domains and clients of the training set followed by the test set; x is left out."""

    def join(train: np.ndarray | None, test: np.ndarray | None) -> np.ndarray | None:
        return None if train is None or test is None else np.concatenate([train, test])

    return dataset._replace(
        train=Examples((), join(dataset.train.y, dataset.test.y)),
        test=Examples((), dataset.test.y[:0]),
        train_domains=join(dataset.train_domains, dataset.test_domains),
        train_clients=join(dataset.train_clients, dataset.test_clients),
        test_domains=None,
        test_clients=None,
    )


def split_merged(dataset: Dataset, lists: Sequence[np.ndarray], seed: int) -> tuple[Dataset, RaggedIndex, RaggedIndex]:
    """Splits each client's examples into 75 % for training and 25 % for testing, at random.

    Args:
      lists: N lists of rows of the training set followed by the test set.

    Returns:
      A data set of the rows that are trained on and of those that are tested on; and the clients'
      lists into both. A client with examples has at least one to train on.

    Raises:
      ValueError: clients share examples, so that one would be tested on what another trains on.
    """
    joined = RaggedIndex.from_lists(lists)
    rows, size = joined.concatenate(), joined.size
    if len(np.unique(rows)) < len(rows):
        raise ValueError("test_split='merged': clients of this partition share examples; it must give each to one client.")
    owners = list_owners(size)
    order = np.lexsort((apportion.make_generator(seed, "test_merged").random(len(rows)), owners))
    number = np.clip(np.ceil(MERGED_TEST_SHARE * size).astype(int), 0, np.maximum(size - 1, 0))
    is_test, parts, indices = list_places(size) < np.repeat(number, size), [], []
    for chosen, sizes in ((~is_test, size - number), (is_test, number)):
        kept = rows[order][chosen]
        used = np.sort(kept)
        parts.append(Examples(*(_take(*pair, used) for pair in zip(dataset.train, dataset.test, strict=True))))
        indices.append(RaggedIndex.split(np.searchsorted(used, kept), sizes))
    train, test = parts
    return Dataset(dataset.name, train, test, dataset.class_names), *indices


def _take(train: np.ndarray, test: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns rows of two arrays, the second after the first; mock data, one row repeated, stay so."""
    if train.strides[0] == 0:
        return np.broadcast_to(train[:1], (len(rows), *train.shape[1:]))
    taken = np.empty((len(rows), *train.shape[1:]), train.dtype)
    is_train = rows < len(train)
    taken[is_train], taken[~is_train] = train[rows[is_train]], test[rows[~is_train] - len(train)]
    return taken


def sample_matched(dataset: Dataset, train_index: Sequence[np.ndarray], test_examples: int, seed: int) -> Sequence[np.ndarray]:
    """Draws `test_examples` examples per client, with the label shares of its training data.

    Its numbers of classes are rounded at random. Clients may share examples.

    Raises:
      ValueError: a client wants more examples of a class than there are; the message says how many
        would do.
    """
    if test_examples < 1:
        raise ValueError(f"test_examples={test_examples}: must be >= 1.")
    labels, table = stratify(dataset.test.y), _label_table(dataset, train_index)
    of_class = [np.flatnonzero(labels == c) for c in range(table.shape[1])]
    available = np.array([len(rows) for rows in of_class])
    rng = apportion.make_generator(seed, "test_matched")
    if len(table) > apportion.MANY:
        return _sample_in_blocks(table, of_class, available, test_examples, rng)
    index = []
    for client, wanted in enumerate(_round_at_random(table, test_examples, rng)):
        if np.any(wanted > available):
            raise _shortage_error(client, table[client], wanted, available, test_examples)
        chosen = [rng.choice(rows, number, replace=False) for rows, number in zip(of_class, wanted, strict=True)]
        index.append(np.sort(np.concatenate(chosen)).astype(np.int32))
    return index


def _round_at_random(table: np.ndarray, test_examples: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the numbers of examples of each class [n, K] that clients want; 0 for one without training examples."""
    return apportion.apportion_systematically(np.where(table.any(1), test_examples, 0), table, rng)


def _shortage_error(client: int, counts: np.ndarray, wanted: np.ndarray, available: np.ndarray, test_examples: int) -> ValueError:
    if lacking := np.flatnonzero((counts > 0) & (available == 0)).tolist():
        what = f"client {client} has {counts[lacking[0]]} training examples of class {lacking[0]}, which has no test example"
        return ValueError(f"test_split='matched': {what}; take another test_split, or a set that has some.")
    c = int(np.argmax(wanted - available))
    most = int(np.min(available[counts > 0] * counts.sum() / counts[counts > 0]))
    return ValueError(
        f"test_split='matched': client {client} wants {wanted[c]} of the {available[c]} test examples of class {c}; "
        f"test_examples={test_examples} must be <= {most} for it."
    )


def _sample_in_blocks(
    table: np.ndarray, of_class: Sequence[np.ndarray], available: np.ndarray, test_examples: int, rng: np.random.Generator
) -> RaggedIndex:
    """Draws as `sample_matched`, without a loop over clients, by Floyd's algorithm."""
    parts, sizes, first = [], [], np.cumsum(available) - available
    rows_by_class = np.concatenate([np.zeros(0, np.int64), *of_class])
    block = max(1, _CELLS // max(table.shape[1], test_examples))
    for begin in range(0, len(table), block):
        counts = table[begin : begin + block]
        wanted = _round_at_random(counts, test_examples, rng)
        if len(over := np.flatnonzero((wanted > available).any(1))):
            raise _shortage_error(begin + int(over[0]), counts[over[0]], wanted[over[0]], available, test_examples)
        client, class_index = np.nonzero(wanted)
        number = wanted[client, class_index]
        chosen = np.full((len(number), int(number.max(initial=0))), -1)
        for at in range(chosen.shape[1]):
            going = number > at
            top = available[class_index[going]] - number[going] + at
            drawn = rng.integers(0, top + 1)
            chosen[going, at] = np.where((chosen[going, :at] == drawn[:, None]).any(1), top, drawn)
        real = chosen >= 0
        rows, owners = rows_by_class[(chosen + first[class_index][:, None])[real]], np.repeat(client, number)
        lists = RaggedIndex.group_by_client(rows, owners, len(counts))
        parts.append(lists.rows)
        sizes.append(lists.size)
    return RaggedIndex.from_sizes(np.concatenate(parts), np.concatenate(sizes))


def _label_table(dataset: Dataset, train_index: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the training examples of each class [N, K]; [N, 1] where targets are no classes."""
    return RaggedIndex.from_lists(train_index).count_labels(
        stratify(dataset.train.y), num_strata(dataset.train.y, len(dataset.class_names))
    )
