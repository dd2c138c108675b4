"""Draws for more than `apportion.MANY` clients, without a loop over clients.

They follow the distributions of `sampling.py`, with other numbers.
"""

import itertools

import numpy as np

from fedjax_core.data.apportion import apportion
from fedjax_core.data.partition.sampling import Index
from fedjax_core.data.ragged_index import RaggedIndex, list_owners

_BLOCK = 2**22  # examples that are drawn at once


def choose_examples(rng: np.random.Generator, of_class: Index, numbers: np.ndarray, replace: bool) -> RaggedIndex:
    """Draws `numbers[i, c]` random examples of class c for each client i.

    They repeat only where a class has fewer and `replace` allows it.

    Args:
      rng: draws a block of clients after the other, class by class.
      of_class: each class's examples, ascending.
      numbers: [N, K].
      replace: whether `numbers` may exceed a class.
    """
    sizes = numbers.sum(1)
    blocks = np.maximum(np.cumsum(sizes) - 1, 0) // _BLOCK
    edges = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(numbers)]
    limit, parts = max((int(rows[-1]) for rows in of_class if len(rows)), default=0) + 1, [np.zeros(0, np.int32)]
    for begin, end in itertools.pairwise(edges):
        drawn = []
        for rows, wanted in zip(of_class, numbers[begin:end].T, strict=True):
            if replace:  # with repetition, from classes with fewer examples than wanted
                whose = list_owners(np.where(wanted > len(rows), wanted, 0))
                drawn.append(whose * limit + rows[rng.integers(0, max(len(rows), 1), len(whose))])
            whose, places = _draw_distinct(rng, np.where(wanted > len(rows), 0, wanted), len(rows))
            drawn.append(whose * limit + rows[places])
        cells = np.sort(np.concatenate(drawn))
        parts.append((cells % limit).astype(np.int32))
    return RaggedIndex.from_sizes(np.concatenate(parts), sizes)


def _draw_distinct(rng: np.random.Generator, numbers: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws (client, place): `numbers[i]` different places of `rows` for each client i, uniformly.

    What was drawn twice is drawn again. Of those that want more than a half, what they do not get
    is drawn.
    """
    most = 2 * numbers > rows
    left = np.where(most, rows - numbers, numbers)
    done, kept = [np.zeros(0, np.int64)], np.zeros(0, np.int64)
    missing = left
    while missing.any():
        drawn = list_owners(missing)
        kept = np.sort(np.concatenate([kept, drawn * rows + rng.integers(0, rows, len(drawn))]))
        kept = kept[np.append(True, kept[1:] != kept[:-1])]  # `np.unique` hashes: ten times slower
        whose = kept // rows
        missing = np.where(missing > 0, left - np.bincount(whose, minlength=len(numbers)), 0)
        full = missing[whose] == 0
        done.append(kept[full])
        kept = kept[~full]
    cells = np.concatenate(done)
    whose, places = cells // max(rows, 1), cells % max(rows, 1)
    if not most.any():
        return whose, places
    excluded = most[whose]
    row_of = np.cumsum(most) - 1
    taken = np.ones((int(most.sum()), rows), bool)
    taken[row_of[whose[excluded]], places[excluded]] = False
    owners, others = np.nonzero(taken)
    return np.concatenate([whose[~excluded], np.flatnonzero(most)[owners]]), np.concatenate([places[~excluded], others])


def assign_classes(rng: np.random.Generator, classes: int, clients: int, each: int) -> np.ndarray:
    """Assigns `each` classes per client as `sampling.assign_classes`; [N, K] 0 or 1.

    After K / gcd(K, each) clients all classes are held equally often, and the dealing begins anew:
    such runs of clients are dealt to side by side.
    """
    if not 1 <= each <= classes:
        raise ValueError(f"classes_per_client={each}: must lie in [1, {classes}], the number of classes.")
    length = classes // int(np.gcd(classes, each))
    runs = -(-clients // length)
    held, holders = np.zeros((runs, length, classes), np.int64), np.zeros((runs, classes), np.int64)
    for client in range(length):
        chosen = np.argsort(holders + rng.random((runs, classes)), axis=1)[:, :each]
        np.put_along_axis(held[:, client], chosen, 1, axis=1)
        holders += held[:, client]
    return held.reshape(runs * length, classes)[:clients]


def apportion_capped(totals: np.ndarray, shares: np.ndarray, caps: np.ndarray) -> np.ndarray:
    """Applies `apportion.apportion_capped` to totals [N], shares [N, K] and caps [K]."""
    parts = np.zeros(shares.shape, np.int64)
    while len(short := np.flatnonzero(totals - parts.sum(1))):
        room = caps - parts[short]
        weights = np.where(room > 0, shares[short], 0.0)
        weights = np.where(weights.sum(1, keepdims=True) > 0, weights, room)
        parts[short] += np.minimum(apportion((totals - parts.sum(1))[short], weights), room)
    return parts
