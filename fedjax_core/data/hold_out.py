"""Clients and examples that nobody trains on.

Unseen clients have training and test examples, and never train: they score what a method does for
clients that join later. Validation examples are a part of each client's training examples, to
choose rounds and settings by.
"""

from collections.abc import Callable

import numpy as np

from fedjax_core import option_types
from fedjax_core.data import apportion
from fedjax_core.data.federated_data import FederatedData, UnseenClients, replace_index
from fedjax_core.data.ragged_index import RaggedIndex, list_owners, list_places
from fedjax_core.data.target_types import label_table, num_strata, stratify


def hold_out_clients(data: FederatedData, part: float | int, seed: int) -> FederatedData:
    """Moves random clients into `unseen`; the others keep their order, and are numbered from 0.

    Args:
      data: without unseen clients. Validation examples of those that are chosen become training
        examples again.
      part: of the clients, a fraction in (0, 1), rounded, at least one; or a number of clients.
      seed: data seed.

    Raises:
      ValueError: the data have unseen clients already, are poisoned, or `part` is out of range.
    """
    _check_unpoisoned(f"data.unseen_clients={part}", data)
    if data.unseen is not None:
        raise ValueError(f"data.unseen_clients={part}: these data have unseen clients already")
    if option_types.describe_mismatch(part, option_types.Part) or max(part, 1) >= data.clients:
        what = f"data.unseen_clients={part} must be a fraction in (0, 1), or a number below that of all clients"
        raise ValueError(f"{what}, {data.clients}")
    number = int(part) if part >= 1 else min(max(1, round(part * data.clients)), data.clients - 1)
    ids = np.sort(apportion.make_generator(seed, "unseen").permutation(data.clients)[:number]).astype(np.int32)
    others = np.setdiff1d(np.arange(data.clients), ids)
    train, test, validation = map(RaggedIndex.from_lists, (data.train_index, data.test_index, data.validation_index))
    train_of_unseen = _merge(train.select(ids), validation.select(ids))
    table = label_table(data.train.y, train_of_unseen, data.classes)
    names = [tuple(data.client_names[i] for i in which) if data.client_names else () for which in (ids, others)]
    unseen = UnseenClients(ids, train_of_unseen, test.select(ids), table, data.test_label_table[ids], names[0])
    train, test, validation = (each.select(others) for each in (train, test, validation))
    return replace_index(data, train, test, validation, unseen, names[1])


def _check_unpoisoned(field: str, data: FederatedData) -> None:
    """Raises ValueError for poisoned data: what attackers train on would be held out, or be poisoned again."""
    if data.poisoned_by:
        raise ValueError(f"{field}: these data are poisoned already, by {data.poisoned_by[0]!r}: give them as they were before")


def find_seen_examples(data: FederatedData) -> np.ndarray | None:
    """Returns the training examples of seen clients, by which inputs may be scaled; None: all.

    They are those before any poisoning, as when a simulation is built of data that it will poison.
    """
    if data.unseen is None and not data.poisoned_rows:
        return None
    seen = np.ones(len(data.train.y), bool)
    if data.unseen is not None:
        seen[RaggedIndex.from_lists(data.unseen.train_index).concatenate()] = False
        for index in (data.train_index, data.validation_index):
            seen[RaggedIndex.from_lists(index).concatenate()] = True
    seen[len(seen) - data.poisoned_rows :] = False
    return np.flatnonzero(seen)


def _merge(*parts: RaggedIndex) -> RaggedIndex:
    """Merges the lists of each client, repeats included, ascending."""
    rows = np.concatenate([lists.concatenate() for lists in parts])
    owners = np.concatenate([list_owners(lists.size) for lists in parts])
    return RaggedIndex.group_by_client(rows, owners, len(parts[0]))


def hold_out_validation(data: FederatedData, part: float | int, seed: int) -> FederatedData:
    """Moves a part of each client's training examples, by class, into `validation_index`.

    An example that is a validation example of anybody is a training example of nobody, also where
    clients share examples. Of examples that a client has several times one is held out. Unseen
    clients keep theirs.

    Args:
      data: without validation examples.
      part: of each client's training examples, repeats counted once, a fraction in (0, 1), rounded
        down; or a number of examples.
      seed: data seed.

    Raises:
      ValueError: the data have validation examples already, are poisoned, `part` is out of range, or
        a client would have nothing left to train on.
    """
    _check_unpoisoned(f"data.validation={part}", data)
    if RaggedIndex.from_lists(data.validation_index).total:
        raise ValueError(f"data.validation={part}: these data have validation examples already")
    option_types.check_value("data.validation", part, option_types.Part)
    lists = RaggedIndex.from_lists(data.train_index)
    labels, classes = stratify(data.train.y), num_strata(data.train.y, data.classes)
    different, which = lists.unique()
    used = np.zeros(len(labels), bool)
    used[different.concatenate()] = True
    shared = lists.total > np.count_nonzero(used)  # some example is in two lists, or twice in one
    once = different
    if shared:
        is_first = lambda rows, whose: np.append(True, (np.diff(rows) != 0) | (np.diff(whose) != 0))[: len(rows)]
        once = _filter(different, is_first)
    size = once.size[which]
    numbers = np.where(size > 0, part if part >= 1 else part * size.astype(float) + 1e-9, 0).astype(np.int64)
    if len(few := np.flatnonzero((size > 0) & (size <= numbers))):
        most, kind = int(size[size > 0].min()) - 1, "different " if shared else ""
        what = f"data.validation={part}: client {few[0]} has {size[few[0]]} {kind}training examples"
        raise ValueError(f"{what}; it must be {f'at most {most}, or ' if most else ''}a fraction")
    rng = apportion.make_generator(seed, "holdout")
    if not shared:
        kept, held = _hold_by_class(lists, numbers, labels, classes, rng)
        return replace_index(data, kept, data.test_index, held)
    number = np.zeros(len(once), np.int64)
    number[which] = numbers
    held = _hold_in_common(once, number, labels, classes, rng)
    free = np.ones(len(labels), bool)
    free[held.concatenate()] = False
    kept = _filter(different, lambda rows, whose: free[rows])
    if len(idle := np.flatnonzero((size > 0) & (kept.size[which] == 0))):
        client, rows, own = idle[0], size[idle[0]], numbers[idle[0]]
        what = f"data.validation={part}: client {client} would train on nothing: of its {rows} different training examples"
        whose = f"{own} would be its validation examples, the other {rows - own} those of clients that share them"
        do = "take a smaller part, another data.seed, or a partition whose clients share fewer examples"
        raise ValueError(f"{what} {whose}; {do}")
    return replace_index(data, kept.select(which), data.test_index, held.select(which))


def _hold_by_class(
    lists: RaggedIndex, numbers: np.ndarray, all_labels: np.ndarray, classes: int, rng: np.random.Generator
) -> tuple[RaggedIndex, RaggedIndex]:
    """Returns the (kept, held) examples of each client, of which `numbers` are held.

    Of a client's examples in a random order, class by class, equally spaced ones are held, from a
    random one on. So each class has its part of all validation examples, however few a client has.
    """
    kept, held = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for block in lists.blocks():
        rows, size = lists.concatenate(block), lists.size[block].astype(np.int64)
        whose, number = list_owners(size), numbers[block]
        order = np.argsort(whose * classes + all_labels[rows] + rng.random(len(rows)))
        place = list_places(size)
        begin = rng.integers(0, np.maximum(size, 1))[whose]
        before = (place * number[whose] + begin) // size[whose]
        chosen = np.empty(len(rows), bool)
        chosen[order] = ((place + 1) * number[whose] + begin) // size[whose] > before
        kept.append(rows[~chosen])
        held.append(rows[chosen])
    return RaggedIndex.from_sizes(np.concatenate(kept), lists.size - numbers), RaggedIndex.from_sizes(np.concatenate(held), numbers)


def _hold_in_common(
    lists: RaggedIndex, numbers: np.ndarray, all_labels: np.ndarray, classes: int, rng: np.random.Generator
) -> RaggedIndex:
    """Returns the examples that each client holds out where clients share examples.

    Each example has a random rank, the same for everybody, and of each class a client holds out
    those with the lowest. So clients hold out the same examples as far as possible, and few are
    lost to the others. A class's number is rounded down; what is missing are examples with the
    lowest ranks again, of each class one at most.
    """
    rank = rng.permutation(len(all_labels))
    parts = [np.zeros(0, np.int32)]
    for block in lists.blocks():
        rows, size, number = lists.concatenate(block), lists.size[block].astype(np.int64), numbers[block]
        cells = list_owners(size) * classes + all_labels[rows]  # a client's examples of a class
        order = np.lexsort((rank[rows], cells))
        rows, cells = rows[order], cells[order]
        whose, begin = cells // classes, np.searchsorted(cells, cells)
        place, cell_size = np.arange(len(cells)) - begin, np.searchsorted(cells, cells, "right") - begin
        whole, rest = np.divmod(number[whose] * cell_size, size[whose])
        held = place < whole
        missing = number - np.bincount(whose[held], minlength=len(size))
        following = np.flatnonzero((place == whole) & (rest > 0))
        following = following[np.lexsort((rank[rows[following]], whose[following]))]
        owners = whose[following]
        held[following[np.arange(len(owners)) - np.searchsorted(owners, owners) < missing[owners]]] = True
        parts.append(RaggedIndex.group_by_client(rows[held], whose[held], len(size)).rows)
    return RaggedIndex.from_sizes(np.concatenate(parts), numbers)


def _filter(lists: RaggedIndex, wanted: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> RaggedIndex:
    """Keeps the examples for which `wanted(examples [R], clients [R])` is true."""
    parts, sizes = [np.zeros(0, np.int32)], np.zeros(len(lists), np.int64)
    for block in lists.blocks():
        rows, size = lists.concatenate(block), lists.size[block]
        whose = list_owners(size)
        chosen = wanted(rows, whose)
        parts.append(rows[chosen])
        sizes[block] = np.bincount(whose[chosen], minlength=len(size))
    return RaggedIndex.from_sizes(np.concatenate(parts), sizes)
