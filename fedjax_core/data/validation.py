"""Validation rows: a part of each client's training rows that nobody trains on, to choose rounds and settings by."""

from collections.abc import Sequence

import numpy as np

from fedjax_core import values
from fedjax_core.data import draws
from fedjax_core.data.federated import FederatedData, divided_anew
from fedjax_core.data.row_lists import RowLists
from fedjax_core.data.targets import number as strata_number
from fedjax_core.data.targets import strata


def hold_out(data: FederatedData, part: float | int, seed: int) -> FederatedData:
    """The same data with some of each client's training rows in `validation_index`, its classes in proportion as far as they go.

    Args:
      data: without validation rows.
      part: of each client's training rows, a fraction in (0, 1), rounded down; or how many rows, a whole number.
      seed: data seed.

    Raises:
      ValueError: the data have validation rows already, `part` is out of range, or a client would have nothing left to train on.
    """
    if RowLists.of(data.validation_index).total:
        raise ValueError(f"data.validation={part}: these data have validation rows already")
    values.check("data.validation", part, values.Part)
    lists = RowLists.of(data.train_index)
    numbers = np.where(lists.size > 0, part if part >= 1 else part * lists.size.astype(float), 0).astype(np.int64)
    if len(few := np.flatnonzero((lists.size > 0) & (lists.size <= numbers))):
        most = int(lists.size[lists.size > 0].min()) - 1
        what = f"data.validation={part}: client {few[0]} has {lists.size[few[0]]} training rows"
        raise ValueError(f"{what}; it must be at most {most}, or a fraction")
    rng, classes = draws.generator(seed, "holdout"), strata_number(data.train.y, data.classes)
    divided = _one_by_one if len(lists) <= draws.MANY else _together
    kept, held = divided(lists, numbers, strata(data.train.y), classes, rng)
    return divided_anew(data, kept, data.test_index, held)


Lists = Sequence[np.ndarray]


def _one_by_one(
    lists: RowLists, numbers: np.ndarray, all_labels: np.ndarray, classes: int, rng: np.random.Generator
) -> tuple[Lists, Lists]:
    """(kept, held) rows of each client, of which `numbers` are held; of `all_labels` [rows]."""
    kept, held = [], []
    for rows, number in zip(lists, numbers, strict=True):
        labels = all_labels[rows]
        counts = np.bincount(labels, minlength=classes)
        wanted = draws.apportion(number, counts) if len(rows) else np.zeros_like(counts)
        chosen = [rng.choice(rows[labels == c], n, replace=False) for c, n in enumerate(wanted) if n]
        mine = np.sort(np.concatenate([np.zeros(0, np.int32), *chosen])).astype(np.int32)
        kept.append(np.setdiff1d(rows, mine).astype(np.int32))
        held.append(mine)
    return kept, held


def _together(
    lists: RowLists, numbers: np.ndarray, all_labels: np.ndarray, classes: int, rng: np.random.Generator
) -> tuple[Lists, Lists]:
    """As `_one_by_one`, without a step for each client: of its rows in a random order, class by class, equally spaced ones are
    held, from a random one on."""
    kept, held = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for block in lists.blocks():
        rows, size = lists.joined(block), lists.size[block].astype(np.int64)
        whose, number = np.repeat(np.arange(len(size)), size), numbers[block]
        order = np.argsort(whose * classes + all_labels[rows] + rng.random(len(rows)))
        place = np.arange(len(rows)) - np.repeat(np.cumsum(size) - size, size)
        begin = rng.integers(0, np.maximum(size, 1))[whose]
        before = (place * number[whose] + begin) // size[whose]
        chosen = np.empty(len(rows), bool)
        chosen[order] = ((place + 1) * number[whose] + begin) // size[whose] > before
        kept.append(rows[~chosen])
        held.append(rows[chosen])
    lists_of = lambda rows, size: RowLists(np.concatenate(rows), np.cumsum(size) - size, size)
    return lists_of(kept, lists.size - numbers), lists_of(held, numbers)
