"""Validation examples: a part of each client's training examples that nobody trains on, to choose
rounds and settings by.
"""

from collections.abc import Callable, Sequence

import numpy as np

from fedjax_core import option_types
from fedjax_core.data import apportion
from fedjax_core.data.federated_data import FederatedData, replace_index
from fedjax_core.data.ragged_index import RaggedIndex
from fedjax_core.data.target_types import num_strata as strata_number
from fedjax_core.data.target_types import stratify


def hold_out_validation(data: FederatedData, part: float | int, seed: int) -> FederatedData:
    """Moves some of each client's training examples into `validation_index`, its classes in
    proportion as far as possible.

    An example that is a validation example of anybody is a training example of nobody, also where
    clients share examples. Of examples that a client has several times one is held; those that it
    goes on training on stay as often as they are. Unseen clients keep theirs, they train nothing
    that validation examples choose.

    Args:
      data: without validation examples.
      part: of each client's training examples, repeats counted once, a fraction in (0, 1), rounded
        down; or a number of examples.
      seed: data seed.

    Raises:
      ValueError: the data have validation examples already, `part` is out of range, or a client
        would have nothing left to train on.
    """
    if RaggedIndex.from_lists(data.validation_index).total:
        raise ValueError(f"data.validation={part}: these data have validation examples already")
    option_types.check_value("data.validation", part, option_types.Part)
    lists, labels, classes = (
        RaggedIndex.from_lists(data.train_index),
        stratify(data.train.y),
        strata_number(data.train.y, data.classes),
    )
    given, which = lists.unique()
    used = np.zeros(len(labels), bool)
    used[given.concatenate()] = True
    shared = lists.total > np.count_nonzero(used)  # some example is in two lists, or twice in one
    once = _each_once(given) if shared else given
    size = once.size[which]
    numbers = np.where(size > 0, part if part >= 1 else part * size.astype(float), 0).astype(np.int64)
    if len(few := np.flatnonzero((size > 0) & (size <= numbers))):
        most, different = int(size[size > 0].min()) - 1, "different " if shared else ""
        what = f"data.validation={part}: client {few[0]} has {size[few[0]]} {different}training examples"
        raise ValueError(f"{what}; it must be {f'at most {most}, or ' if most else ''}a fraction")
    rng = apportion.make_generator(seed, "holdout")
    if not shared:
        divided = _one_by_one if len(lists) <= apportion.MANY else _together
        kept, held = divided(lists, numbers, labels, classes, rng)
        return replace_index(data, kept, data.test_index, held)
    number = np.zeros(len(once), np.int64)
    number[which] = numbers
    held = _in_common(once, number, labels, classes, rng)
    kept = _without(given, held.concatenate(), len(labels))
    if len(idle := np.flatnonzero((size > 0) & (kept.size[which] == 0))):
        client, rows, own = idle[0], size[idle[0]], numbers[idle[0]]
        what = f"data.validation={part}: client {client} would train on nothing: of its {rows} different training examples"
        whose = f"{own} would be its validation examples, the other {rows - own} those of clients that share them"
        do = "take a smaller part, another data.seed, or a partition whose clients share fewer examples"
        raise ValueError(f"{what} {whose}; {do}")
    return replace_index(data, kept.select(which), data.test_index, held.select(which))


Lists = Sequence[np.ndarray]


def _one_by_one(
    lists: RaggedIndex, numbers: np.ndarray, all_labels: np.ndarray, classes: int, rng: np.random.Generator
) -> tuple[Lists, Lists]:
    """Returns the (kept, held) examples of each client, of which `numbers` are held; `all_labels`
    is [n].
    """
    kept, held = [], []
    for rows, number in zip(lists, numbers, strict=True):
        labels = all_labels[rows]
        counts = np.bincount(labels, minlength=classes)
        wanted = apportion.apportion(number, counts) if len(rows) else np.zeros_like(counts)
        chosen = [rng.choice(rows[labels == c], n, replace=False) for c, n in enumerate(wanted) if n]
        chosen_examples = np.sort(np.concatenate([np.zeros(0, np.int32), *chosen])).astype(np.int32)
        kept.append(np.setdiff1d(rows, chosen_examples).astype(np.int32))
        held.append(chosen_examples)
    return kept, held


def _together(
    lists: RaggedIndex, numbers: np.ndarray, all_labels: np.ndarray, classes: int, rng: np.random.Generator
) -> tuple[Lists, Lists]:
    """Divides as `_one_by_one`, without a step for each client: of its examples in a random order,
    class by class, equally spaced ones are held, from a random one on.
    """
    kept, held = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for block in lists.blocks():
        rows, size = lists.concatenate(block), lists.size[block].astype(np.int64)
        whose, number = np.repeat(np.arange(len(size)), size), numbers[block]
        order = np.argsort(whose * classes + all_labels[rows] + rng.random(len(rows)))
        place = np.arange(len(rows)) - np.repeat(np.cumsum(size) - size, size)
        begin = rng.integers(0, np.maximum(size, 1))[whose]
        before = (place * number[whose] + begin) // size[whose]
        chosen = np.empty(len(rows), bool)
        chosen[order] = ((place + 1) * number[whose] + begin) // size[whose] > before
        kept.append(rows[~chosen])
        held.append(rows[chosen])
    lists_of = lambda rows, size: RaggedIndex(np.concatenate(rows), np.cumsum(size) - size, size)
    return lists_of(kept, lists.size - numbers), lists_of(held, numbers)


def _in_common(
    lists: RaggedIndex, numbers: np.ndarray, all_labels: np.ndarray, classes: int, rng: np.random.Generator
) -> RaggedIndex:
    """Returns the examples that each client holds where clients share examples. Each example has a
    random rank, the same for everybody, and of each class a client holds those with the lowest. So
    clients hold the same examples as far as they go, and few are lost to the others.

    A class's number is rounded down; what is missing are examples with the lowest ranks again, of
    each class one at most.
    """
    rank = rng.permutation(len(all_labels))
    parts = [np.zeros(0, np.int32)]
    for block in lists.blocks():
        rows, size, number = lists.concatenate(block), lists.size[block].astype(np.int64), numbers[block]
        cells = np.repeat(np.arange(len(size)), size) * classes + all_labels[rows]  # a client's examples of a class
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
    return RaggedIndex(np.concatenate(parts), np.cumsum(numbers) - numbers, numbers)


def _without(lists: RaggedIndex, taken: np.ndarray, rows: int) -> RaggedIndex:
    """Returns the lists, of indices below `rows`, without those that are taken."""
    free = np.ones(rows, bool)
    free[taken] = False
    return _filtered(lists, lambda rows, whose: free[rows])


def _each_once(lists: RaggedIndex) -> RaggedIndex:
    """Returns the sorted lists without repeats."""
    return _filtered(lists, lambda rows, whose: np.append(True, (np.diff(rows) != 0) | (np.diff(whose) != 0))[: len(rows)])


def _filtered(lists: RaggedIndex, wanted: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> RaggedIndex:
    """Keeps the examples for which `wanted(examples [R], clients [R])` is true, a block of clients
    at a time.
    """
    parts, sizes = [np.zeros(0, np.int32)], np.zeros(len(lists), np.int64)
    for block in lists.blocks():
        rows, size = lists.concatenate(block), lists.size[block]
        whose = np.repeat(np.arange(len(size)), size)
        chosen = wanted(rows, whose)
        parts.append(rows[chosen])
        sizes[block] = np.bincount(whose[chosen], minlength=len(size))
    return RaggedIndex(np.concatenate(parts), np.cumsum(sizes) - sizes, sizes)
